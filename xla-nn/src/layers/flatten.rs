//! Images to vectors.

use crate::{Forward, Module};
use xla_core::Result;
use xla_lazy::Tensor;

/// Joins all axes but the first: `[n, a, b]` becomes `[n, a * b]`.
///
/// For another range of axes use [`Tensor::flatten`] in a module of your own.
#[derive(Debug, Clone, Copy, Default, Module, Forward)]
pub struct Flatten;

impl Flatten {
    /// From `[n, ..]` to `[n, m]`.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`] for an input of fewer than two axes, which has no axis 1.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.flatten(1, -1)
    }
}
