//! Activations as modules, for use in [`Sequential`](crate::Sequential).

use crate::{Forward, Module};
use xla_core::Result;
use xla_lazy::Tensor;

/// `max(x, 0)`, elementwise.
#[derive(Debug, Clone, Copy, Default, Module, Forward)]
pub struct Relu;

impl Relu {
    /// See [`Tensor::relu`].
    ///
    /// # Errors
    /// As [`Tensor::relu`].
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.relu()
    }
}
