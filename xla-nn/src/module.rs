//! What a module is: a function of a tensor that owns parameters, and a way to visit them.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use xla_core::Result;
use xla_lazy::Tensor;

/// A function with parameters.
///
/// A module says what it computes and what it owns; everything else (listing parameters, switching
/// between training and evaluation) follows from [`Module::visit`]. That method has no default, so a
/// module cannot forget its parameters by omission.
///
/// ```no_run
/// use xla_core::Result;
/// use xla_lazy::Tensor;
/// use xla_nn::{Linear, Module, Visitor};
///
/// struct Residual {
///     inner: Linear,
/// }
///
/// impl Module for Residual {
///     fn forward(&self, input: &Tensor) -> Result<Tensor> {
///         input.add(&self.inner.forward(input)?.relu()?)
///     }
///     fn visit(&self, visitor: &mut Visitor<'_>) {
///         visitor.module("inner", &self.inner);
///     }
/// }
///
/// let block = Residual { inner: Linear::new(8, 8, ())? };
/// let names: Vec<String> = block.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["inner.weight", "inner.bias"]);
/// # Ok::<(), xla_core::Error>(())
/// ```
pub trait Module: Send + Sync {
    /// Applies the module.
    ///
    /// # Errors
    /// An input whose shape or dtype the module cannot take.
    fn forward(&self, input: &Tensor) -> Result<Tensor>;

    /// Shows the visitor everything the module owns: parameters, modules inside it, and its training
    /// flag if it has one. The order is that of [`Module::parameters`] and must not change.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// Every parameter once, in the order visited, with its path: `0.weight`, `0.bias`, `2.weight`.
    /// A parameter that is shared is listed under the first of its paths.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        self.visit(&mut Visitor::new(&mut |item| {
            if let Item::Parameter(path, tensor) = item
                && seen.insert(tensor.storage_id())
            {
                found.push((path.to_owned(), tensor.clone()));
            }
        }));
        found
    }

    /// Every parameter once, in the order visited: what an optimizer takes.
    fn parameters(&self) -> Vec<Tensor> {
        self.named_parameters()
            .into_iter()
            .map(|(_, tensor)| tensor)
            .collect()
    }

    /// Switches every module inside between training (`true`) and evaluation. Modules are made in
    /// training mode.
    fn train(&self, training: bool) {
        self.visit(&mut Visitor::new(&mut |item| {
            if let Item::Training(flag) = item {
                flag.set(training);
            }
        }));
    }

    /// Short for `train(false)`.
    fn eval(&self) {
        self.train(false);
    }
}

/// What [`Module::visit`] shows a module's belongings to.
pub struct Visitor<'a> {
    path: String,
    sink: &'a mut dyn FnMut(Item<'_>),
}

enum Item<'a> {
    Parameter(&'a str, &'a Tensor),
    Training(&'a Training),
}

impl<'a> Visitor<'a> {
    fn new(sink: &'a mut dyn FnMut(Item<'_>)) -> Self {
        Visitor {
            path: String::new(),
            sink,
        }
    }

    /// A parameter under this name.
    pub fn parameter(&mut self, name: &str, tensor: &Tensor) {
        self.within(name, |visitor| {
            (visitor.sink)(Item::Parameter(&visitor.path, tensor))
        });
    }

    /// A module under this name, with everything in it.
    pub fn module(&mut self, name: &str, module: &dyn Module) {
        self.within(name, |visitor| module.visit(visitor));
    }

    /// The flag that says whether the module is being trained.
    pub fn training(&mut self, flag: &Training) {
        (self.sink)(Item::Training(flag));
    }

    fn within(&mut self, name: &str, visit: impl FnOnce(&mut Self)) {
        let parent = self.path.len();
        if parent > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        visit(self);
        self.path.truncate(parent);
    }
}

/// Whether a module is being trained: for modules that compute something else in evaluation.
///
/// The mode is part of the recorded program: each of the two compiles once.
#[derive(Debug)]
pub struct Training(AtomicBool);

impl Training {
    /// In training mode.
    pub const fn new() -> Self {
        Training(AtomicBool::new(true))
    }

    /// Whether the module is being trained.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    fn set(&self, training: bool) {
        self.0.store(training, Ordering::Relaxed);
    }
}

impl Default for Training {
    fn default() -> Self {
        Training::new()
    }
}

impl<M: Module + ?Sized> Module for Box<M> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (**self).forward(input)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }
}

impl<M: Module + ?Sized> Module for Arc<M> {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        (**self).forward(input)
    }

    fn visit(&self, visitor: &mut Visitor<'_>) {
        (**self).visit(visitor);
    }
}
