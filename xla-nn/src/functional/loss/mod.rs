//! Losses.

mod binary;
mod distance;
mod distribution;
mod labels;
mod margin;

pub use binary::{
    BceOptions, BceWithLogitsOptions, binary_cross_entropy, binary_cross_entropy_with_logits,
};
pub use distance::{huber_loss, l1_loss, mse_loss, smooth_l1_loss};
pub use distribution::{
    GaussianNllOptions, KlDivOptions, KlDivReduction, PoissonNllOptions, gaussian_nll_loss, kl_div,
    poisson_nll_loss,
};
pub use labels::{CrossEntropyOptions, NllLossOptions, cross_entropy, nll_loss};
pub use margin::{
    TripletMarginOptions, cosine_embedding_loss, hinge_embedding_loss, margin_ranking_loss,
    soft_margin_loss, triplet_margin_loss,
};

use super::{accumulator, floating};
use xla_core::{Error, Result};
use xla_lazy::Tensor;

/// What becomes of the losses of single elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Reduction {
    /// Their mean, weighted where the loss has weights for classes.
    #[default]
    Mean,
    /// Their sum.
    Sum,
    /// They are the result.
    None,
}

impl Reduction {
    #[track_caller]
    pub(in crate::functional) fn apply(self, losses: &Tensor) -> Result<Tensor> {
        match self {
            Reduction::Mean => losses.mean((), false),
            Reduction::Sum => losses.sum((), false),
            Reduction::None => Ok(losses.clone()),
        }
    }
}

/// An error unless both are floating-point tensors whose shapes broadcast.
fn pair(op: &'static str, input: &Tensor, target: &Tensor) -> Result<()> {
    floating(op, "an input", input)?;
    input.shape().broadcast(op, target.shape()).map(drop)
}

/// An error unless the target has the input's shape.
fn same_shape(op: &'static str, input: &Tensor, target: &Tensor) -> Result<()> {
    floating(op, "an input", input)?;
    if input.dims() == target.dims() {
        return Ok(());
    }
    let expected = format!("a target of the input's shape {}", input.shape());
    Err(Error::shape(op, expected, target.shape()))
}

/// A loss that is computed and reduced in the accumulator's dtype, then rounded once.
#[track_caller]
fn rounded(
    input: &Tensor,
    reduction: Reduction,
    losses: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let wide = input.to_dtype(accumulator(input.dtype()))?;
    reduction.apply(&losses(&wide)?)?.to_dtype(input.dtype())
}
