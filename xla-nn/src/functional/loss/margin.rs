//! Losses that vanish beyond a margin.

use super::{Reduction, pair, rounded};
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::autocast::full;
use xla_lazy::{Number, Tensor};

/// `input` where the target is 1, `max(0, margin - input)` where it is -1. The margin is data of the
/// program.
///
/// # Errors
/// [`Error::Broadcast`], [`Error::DTypeMismatch`] for an input that is not floating-point.
#[track_caller]
pub fn hinge_embedding_loss(
    input: &Tensor,
    target: &Tensor,
    margin: impl Into<Number>,
    reduction: Reduction,
) -> Result<Tensor> {
    let at = Location::caller();
    let input = &*full(input)?;
    let margin = margin.into();
    pair("hinge_embedding_loss", input, target).map_err(|e| e.at(at))?;
    let losses = |x: &Tensor| {
        let short = x.rsub(margin)?.clamp_min(0)?;
        let beside = target.ne(1)?.select_from(&short, 0)?;
        target.ne(-1)?.select_from(x, 0)?.add(&beside)
    };
    rounded(input, reduction, losses).map_err(|e| e.relocated(at))
}

/// `max(0, margin - target (first - second))`: the first should be larger where the target is 1,
/// smaller where it is -1. The margin is data of the program.
///
/// # Errors
/// [`Error::Broadcast`], [`Error::DTypeMismatch`] for inputs that are not floating-point.
#[track_caller]
pub fn margin_ranking_loss(
    first: &Tensor,
    second: &Tensor,
    target: &Tensor,
    margin: impl Into<Number>,
    reduction: Reduction,
) -> Result<Tensor> {
    const OP: &str = "margin_ranking_loss";
    let at = Location::caller();
    let first = &*full(first)?;
    let margin = margin.into();
    pair(OP, first, second).map_err(|e| e.at(at))?;
    pair(OP, first, target).map_err(|e| e.at(at))?;
    let losses = |x: &Tensor| {
        let apart = x.sub(second)?.mul(target)?;
        apart.rsub(margin)?.clamp_min(0)
    };
    rounded(first, reduction, losses).map_err(|e| e.relocated(at))
}

/// `log(1 + e^(-target input))`, exact for large products.
///
/// # Errors
/// [`Error::Broadcast`], [`Error::DTypeMismatch`] for an input that is not floating-point.
#[track_caller]
pub fn soft_margin_loss(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let at = Location::caller();
    let input = &*full(input)?;
    pair("soft_margin_loss", input, target).map_err(|e| e.at(at))?;
    rounded(input, reduction, |x| x.mul(target)?.logsigmoid()?.neg()).map_err(|e| e.relocated(at))
}

/// `1 - cos(first, second)` along the last axis where the target is 1, `max(0, cos - margin)` where it
/// is -1. The inputs are `[features]` or `[batch, features]`; the margin is data of the program.
///
/// # Errors
/// [`Error::ShapeMismatch`] when the shapes do not fit, [`Error::DTypeMismatch`] for inputs that are
/// not floating-point.
#[track_caller]
pub fn cosine_embedding_loss(
    first: &Tensor,
    second: &Tensor,
    target: &Tensor,
    margin: impl Into<Number>,
    reduction: Reduction,
) -> Result<Tensor> {
    const OP: &str = "cosine_embedding_loss";
    let at = Location::caller();
    let first = &*full(first)?;
    let margin = margin.into();
    pair(OP, first, second).map_err(|e| e.at(at))?;
    let batched = first.rank().max(second.rank());
    if !matches!(batched, 1 | 2) || target.rank() + 1 != batched {
        let expected = format!(
            "a target with one axis less than inputs of {} and {}, [features] or [batch, features]",
            first.shape(),
            second.shape()
        );
        return Err(Error::shape(OP, expected, target.shape()).at(at));
    }
    let losses = |x: &Tensor| {
        let y = second.to_dtype(x.dtype())?;
        let length = |v: &Tensor| v.square()?.sum(-1, false)?.add(1e-12);
        let both = length(x)?.mul(&length(&y)?)?.sqrt()?;
        let cosine = x.mul(&y)?.sum(-1, false)?.div(&both)?;
        let beside = cosine.sub(margin)?.clamp_min(0)?;
        let alike = target.eq(1)?.select_from(&cosine.rsub(1)?, 0)?;
        alike.add(&target.eq(-1)?.select_from(&beside, 0)?)
    };
    rounded(first, reduction, losses).map_err(|e| e.relocated(at))
}

/// What [`triplet_margin_loss`] measures; PyTorch's defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TripletMarginOptions {
    /// How much farther the negative should be. It is data of the program.
    pub margin: f64,
    /// The norm of the distance.
    pub p: f64,
    /// Added to each difference, so that the distance has a derivative.
    pub eps: f64,
    /// Whether the distance of positive and negative counts where it is the smaller one.
    pub swap: bool,
    /// What becomes of the single losses.
    pub reduction: Reduction,
}

impl Default for TripletMarginOptions {
    fn default() -> Self {
        TripletMarginOptions {
            margin: 1.0,
            p: 2.0,
            eps: 1e-6,
            swap: false,
            reduction: Reduction::Mean,
        }
    }
}

/// `max(0, d(anchor, positive) - d(anchor, negative) + margin)`, of distances along the last axis.
///
/// # Errors
/// [`Error::Broadcast`], [`Error::DTypeMismatch`] for inputs that are not floating-point,
/// [`Error::Argument`] for a `p` that is no norm.
#[track_caller]
pub fn triplet_margin_loss(
    anchor: &Tensor,
    positive: &Tensor,
    negative: &Tensor,
    options: TripletMarginOptions,
) -> Result<Tensor> {
    const OP: &str = "triplet_margin_loss";
    let at = Location::caller();
    let (anchor, positive) = (&*full(anchor)?, &*full(positive)?);
    let negative = &*full(negative)?;
    pair(OP, anchor, positive).map_err(|e| e.at(at))?;
    pair(OP, anchor, negative).map_err(|e| e.at(at))?;
    if anchor.rank() == 0 {
        let expected = "inputs of at least one axis";
        return Err(Error::shape(OP, expected, anchor.shape()).at(at));
    }
    let distance = |a: &Tensor, b: &Tensor| a.sub(b)?.add(options.eps)?.norm(options.p, -1, false);
    let losses = |anchor: &Tensor| {
        let near = distance(anchor, positive)?;
        let mut far = distance(anchor, negative)?;
        if options.swap {
            far = far.minimum(&distance(positive, negative)?)?;
        }
        near.sub(&far)?.add(options.margin)?.clamp_min(0)
    };
    rounded(anchor, options.reduction, losses).map_err(|e| e.relocated(at))
}
