//! Images to vectors.

use crate::{Module, Visitor};
use xla_core::Result;
use xla_lazy::Tensor;

/// Joins all axes but the first: `[n, a, b]` becomes `[n, a * b]`.
///
/// For another range of axes use [`Tensor::flatten`] in a module of your own.
#[derive(Debug, Clone, Copy, Default)]
pub struct Flatten;

impl Module for Flatten {
    /// # Errors
    /// [`xla_core::Error::Axis`] for an input of fewer than two axes, which has no axis 1.
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.flatten(1, -1)
    }

    fn visit(&self, _: &mut Visitor<'_>) {}
}
