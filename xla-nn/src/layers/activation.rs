//! Activations as modules, for use in [`Sequential`](crate::Sequential).

use crate::{Module, Visitor};
use xla_core::Result;
use xla_lazy::Tensor;

/// `max(x, 0)`, elementwise.
#[derive(Debug, Clone, Copy, Default)]
pub struct Relu;

impl Module for Relu {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.relu()
    }

    fn visit(&self, _: &mut Visitor<'_>) {}
}
