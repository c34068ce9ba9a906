//! What a module is: a tree of parameters, buffers and other modules.

mod compiled;
mod load;
mod member;
mod training;
mod visitor;

pub(crate) use compiled::as_state;
pub use compiled::visit_module;
pub use load::IncompatibleKeys;
pub use member::{Buffer, Member};
pub use training::Training;
pub use visitor::Visitor;

use crate::StateDict;
use std::collections::HashSet;
use std::fmt;
use std::panic::Location;
use visitor::{Item, walk};
use xla_core::Result;
use xla_lazy::{Tensor, TensorOptions};

/// A tree of parameters, buffers and other modules: whatever is trained, saved and moved as one.
///
/// Derive it. Every field is then a part of the tree by its type, and none can be forgotten: see the
/// [derive macro](derive@crate::Module). What the module computes is a method of its own, with
/// whatever arguments and results it has; a `forward` from one tensor to one is what
/// [`Forward`] is about.
///
/// ```no_run
/// use xla_core::Result;
/// use xla_lazy::Tensor;
/// use xla_nn::{Linear, Module};
///
/// #[derive(Module)]
/// struct Net {
///     fc1: Linear,
///     fc2: Linear,
/// }
///
/// impl Net {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         self.fc2.forward(&self.fc1.forward(x)?.relu()?)
///     }
/// }
///
/// let net = Net { fc1: Linear::new(784, 128, ())?, fc2: Linear::new(128, 10, ())? };
/// let names: Vec<String> = net.named_parameters().into_iter().map(|(name, _)| name).collect();
/// assert_eq!(names, ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]);
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// Everything is listed in PyTorch's order: a module's own tensors, in the order of its fields, then
/// those of the modules in it.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a module",
    note = "derive it: #[derive(Module)]"
)]
pub trait Module: Send + Sync {
    /// Shows the visitor everything that the module itself owns: its tensors, the modules directly
    /// inside it, and its training flag if it has one. The order must not change.
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, 'a>);

    /// Every parameter once, with its path: `0.weight`, `0.bias`, `2.weight`. A parameter that is
    /// shared is listed under the first of its paths.
    fn named_parameters(&self) -> Vec<(String, Tensor)> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        walk(self, &mut |path, item| {
            if let Item::Parameter(tensor) = item
                && seen.insert(tensor.storage_id())
            {
                found.push((path.to_owned(), tensor.clone()));
            }
        });
        found
    }

    /// Every parameter once: what an optimizer takes.
    fn parameters(&self) -> Vec<Tensor> {
        tensors(self.named_parameters())
    }

    /// Every buffer once, with its path: tensors that belong to the module but are not trained, such
    /// as running means.
    fn named_buffers(&self) -> Vec<(String, Tensor)> {
        let mut seen = HashSet::new();
        let mut found = Vec::new();
        walk(self, &mut |path, item| {
            if let Item::Buffer { tensor, .. } = item
                && seen.insert(tensor.storage_id())
            {
                found.push((path.to_owned(), tensor.clone()));
            }
        });
        found
    }

    /// Every buffer once.
    fn buffers(&self) -> Vec<Tensor> {
        tensors(self.named_buffers())
    }

    /// Every module inside this one, at any depth, with its path. One that is shared is listed under
    /// each of its paths.
    fn named_modules(&self) -> Vec<(String, &dyn Module)> {
        let mut found = Vec::new();
        walk(self, &mut |path, item| {
            if let Item::Module(module) = item {
                found.push((path.to_owned(), module));
            }
        });
        found
    }

    /// The modules directly inside this one, with their names.
    fn named_children(&self) -> Vec<(String, &dyn Module)> {
        let mut found = Vec::new();
        self.visit(&mut Visitor::new(&mut String::new(), &mut |path, item| {
            if let Item::Module(module) = item {
                found.push((path.to_owned(), module));
            }
        }));
        found
    }

    /// Number of trained and trainable numbers: elements of all parameters.
    fn num_parameters(&self) -> usize {
        self.parameters().iter().map(Tensor::numel).sum()
    }

    /// Switches every module inside between training (`true`) and evaluation. Modules are made in
    /// training mode.
    fn train(&self, training: bool) {
        walk(self, &mut |_, item| {
            if let Item::Training(flag) = item {
                flag.set(training);
            }
        });
    }

    /// Short for `train(false)`.
    fn eval(&self) {
        self.train(false);
    }

    /// Makes every parameter one that gradients flow to, or none: to freeze a part of a model.
    ///
    /// # Errors
    /// [`xla_core::Error::DTypeMismatch`] for a parameter whose dtype is no float.
    #[track_caller]
    fn requires_grad_(&self, requires_grad: bool) -> Result<()> {
        let here = Location::caller();
        for parameter in self.parameters() {
            parameter
                .requires_grad_(requires_grad)
                .map_err(|error| error.relocated(here))?;
        }
        Ok(())
    }

    /// Forgets the gradients of all parameters.
    fn zero_grad(&self) {
        for parameter in self.parameters() {
            parameter.set_grad(None);
        }
    }

    /// Moves parameters and buffers to a device, converts those of a float dtype to another, or both.
    /// They stay the same tensors, so that optimizers and shared parameters stay right; gradients
    /// follow them. What has been recorded is run before.
    ///
    /// # Errors
    /// [`xla_core::Error::DTypeMismatch`] for a dtype that is no float; what running or moving
    /// returns.
    #[track_caller]
    fn to(&self, options: impl Into<TensorOptions>) -> Result<()>
    where
        Self: Sized,
    {
        load::move_to(self, options.into(), Location::caller())
    }

    /// The parameters and persistent buffers by their paths, in order; one that is shared under each
    /// of its paths. They are no copies: what training changes afterwards changes here too.
    ///
    /// # Errors
    /// What detaching the tensors returns.
    #[track_caller]
    fn state_dict(&self) -> Result<StateDict> {
        load::state_of(self, Location::caller())
    }

    /// Takes over the values of `state`, in place, so that optimizers and shared parameters stay
    /// right. Values are converted to this module's dtypes and moved to its devices.
    ///
    /// With `strict`, `state` must hold exactly this module's keys. Without, what is missing stays as
    /// it is and what is unexpected is ignored; both are returned.
    ///
    /// # Errors
    /// [`xla_core::Error::StateDict`] with every missing key, every unexpected one and every shape
    /// that differs (the last also without `strict`); nothing has been changed then. What moving the
    /// values returns.
    #[track_caller]
    fn load_state_dict(&self, state: &StateDict, strict: bool) -> Result<IncompatibleKeys> {
        load::load(self, state, strict, Location::caller())
    }
}

/// A module that makes one tensor of one: what [`Sequential`](crate::Sequential) and
/// `Box<dyn Forward>` hold.
///
/// It is derived too: `#[derive(Module, Forward)]` calls the type's own method `forward`.
///
/// ```no_run
/// use xla_core::Result;
/// use xla_lazy::Tensor;
/// use xla_nn::{Forward, Linear, Module, Sequential};
///
/// #[derive(Module, Forward)]
/// struct Residual {
///     inner: Linear,
/// }
///
/// impl Residual {
///     fn forward(&self, x: &Tensor) -> Result<Tensor> {
///         x.add(&self.inner.forward(x)?.relu()?)
///     }
/// }
///
/// let model = Sequential::new().add(Residual { inner: Linear::new(8, 8, ())? });
/// # Ok::<(), xla_core::Error>(())
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no forward from one tensor to one",
    note = "give it a method `forward(&self, &Tensor) -> Result<Tensor>` and derive Forward"
)]
pub trait Forward: Module {
    /// Applies the module.
    ///
    /// # Errors
    /// An input whose shape or dtype the module cannot take.
    fn forward(&self, input: &Tensor) -> Result<Tensor>;
}

impl fmt::Debug for dyn Forward + '_ {
    /// The parameters with their paths, dtypes and shapes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.named_parameters()).finish()
    }
}

fn tensors(named: Vec<(String, Tensor)>) -> Vec<Tensor> {
    named.into_iter().map(|(_, tensor)| tensor).collect()
}
