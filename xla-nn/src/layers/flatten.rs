//! Images to vectors, and back.

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

/// Splits an axis: `[n, 12]` becomes `[n, 3, 4]` with axis 1 and sizes `[3, 4]`.
#[derive(Debug, Clone, Module, Forward)]
pub struct Unflatten {
    dim: i64,
    sizes: Vec<i64>,
}

impl Unflatten {
    /// Of this axis, counted from the end when negative, into these sizes, of which one may be -1.
    pub fn new(dim: i64, sizes: impl Into<Vec<i64>>) -> Self {
        Unflatten {
            dim,
            sizes: sizes.into(),
        }
    }

    /// See [`Tensor::unflatten`].
    ///
    /// # Errors
    /// As the method.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.unflatten(self.dim, self.sizes.as_slice())
    }
}
