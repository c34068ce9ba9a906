//! Modules one after the other.

use super::at_users_line;
use crate::module::as_state;
use crate::{Forward, Module, Visitor};
use std::fmt;
use std::panic::Location;
use xla_core::Result;
use xla_lazy::Tensor;

/// Applies modules in the order in which they were added; their names are `0`, `1`, ….
///
/// ```no_run
/// use xla_nn::{Linear, Module, Relu, Sequential};
/// let model = Sequential::new()
///     .add(Linear::new(784, 128, ())?)
///     .add(Relu)
///     .add(Linear::new(128, 10, ())?);
/// assert_eq!(model.named_parameters()[2].0, "2.weight");
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// Modules of one type are collected: `(0..3).map(|_| Linear::new(8, 8, ())).collect()` is a
/// `Result<Sequential>`.
#[derive(Default, Forward)]
pub struct Sequential(Vec<Box<dyn Forward>>);

impl Sequential {
    /// No module yet: the identity.
    pub fn new() -> Self {
        Sequential::default()
    }

    /// With one more module at the end.
    #[must_use]
    #[allow(clippy::should_implement_trait)] // not the `+` of two sequences
    pub fn add(mut self, module: impl Forward + 'static) -> Self {
        self.0.push(Box::new(module));
        self
    }

    /// Number of modules.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is no module.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Applies the modules, the first one first.
    ///
    /// # Errors
    /// The first module's that fails.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let here = Location::caller();
        let mut value = input.clone();
        for module in &self.0 {
            value = module.forward(&value).map_err(|e| at_users_line(e, here))?;
        }
        Ok(value)
    }
}

impl Module for Sequential {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, 'a>) {
        for (i, module) in self.0.iter().enumerate() {
            visitor.module(&i.to_string(), &**module);
        }
    }
}

as_state!([] Sequential);

impl<M: Forward + 'static> FromIterator<M> for Sequential {
    fn from_iter<I: IntoIterator<Item = M>>(modules: I) -> Self {
        modules.into_iter().fold(Sequential::new(), Sequential::add)
    }
}

impl fmt::Debug for Sequential {
    /// The parameters, as of any `dyn Forward`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self as &dyn Forward, f)
    }
}
