//! Losses of distributions.

use super::{Reduction, pair, rounded};
use std::f64::consts::PI;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::Tensor;
use xla_lazy::autocast::full;

/// `x log x`, 0 at 0, where it has no derivative: that is NaN, as in PyTorch.
fn x_log_x(x: &Tensor) -> Result<Tensor> {
    x.eq(0)?.select_from(0, &x.mul(&x.log()?)?)
}

/// What becomes of the single terms of [`kl_div`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KlDivReduction {
    /// Their mean over all elements.
    #[default]
    Mean,
    /// Their sum divided by the length of the first axis: the mean divergence.
    BatchMean,
    /// Their sum.
    Sum,
    /// They are the result.
    None,
}

/// What [`kl_div`] takes and gives; PyTorch's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KlDivOptions {
    /// What becomes of the single terms.
    pub reduction: KlDivReduction,
    /// Whether the target too holds logarithms of probabilities.
    pub log_target: bool,
}

/// The divergence of Kullback and Leibler, `target (log target - input)`, of an input that holds
/// logarithms of probabilities. Both broadcast. Where the target is 0 so is the term, and its gradient
/// for the target is NaN.
///
/// # Errors
/// [`Error::Broadcast`], [`Error::DTypeMismatch`] for an input that is not floating-point.
#[track_caller]
pub fn kl_div(input: &Tensor, target: &Tensor, options: KlDivOptions) -> Result<Tensor> {
    let at = Location::caller();
    let (input, target) = (&*full(input)?, &*full(target)?);
    pair("kl_div", input, target).map_err(|e| e.at(at))?;
    let terms = |x: &Tensor| match options.log_target {
        true => target.exp()?.mul(&target.sub(x)?),
        false => x_log_x(target)?.sub(&target.mul(x)?),
    };
    let reduction = match options.reduction {
        KlDivReduction::Mean => Reduction::Mean,
        KlDivReduction::None => Reduction::None,
        KlDivReduction::Sum | KlDivReduction::BatchMean => Reduction::Sum,
    };
    let losses = rounded(input, reduction, terms).map_err(|e| e.relocated(at))?;
    match options.reduction {
        KlDivReduction::BatchMean => {
            let batch = input.dims().first().copied().unwrap_or(1);
            losses.div(batch as f64)
        }
        _ => Ok(losses),
    }
}

/// What [`poisson_nll_loss`] takes and gives; PyTorch's defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoissonNllOptions {
    /// Whether the input holds logarithms of rates.
    pub log_input: bool,
    /// Whether Stirling's approximation of the term that only the target determines is added.
    pub full: bool,
    /// Added to a rate before its logarithm. It is data of the program.
    pub eps: f64,
    /// What becomes of the single losses.
    pub reduction: Reduction,
}

impl Default for PoissonNllOptions {
    fn default() -> Self {
        PoissonNllOptions {
            log_input: true,
            full: false,
            eps: 1e-8,
            reduction: Reduction::Mean,
        }
    }
}

/// The negative logarithm of Poisson's probability of the target: `e^x - target x` of the logarithm of
/// a rate, `x - target log(x + eps)` of a rate.
///
/// # Errors
/// [`Error::Broadcast`], [`Error::DTypeMismatch`] for an input that is not floating-point.
#[track_caller]
pub fn poisson_nll_loss(
    input: &Tensor,
    target: &Tensor,
    options: PoissonNllOptions,
) -> Result<Tensor> {
    let at = Location::caller();
    let (input, target) = (&*full(input)?, &*full(target)?);
    pair("poisson_nll_loss", input, target).map_err(|e| e.at(at))?;
    let losses = |x: &Tensor| {
        let losses = match options.log_input {
            true => x.exp()?.sub(&target.mul(x)?)?,
            false => x.sub(&target.mul(&x.add(options.eps)?.log()?)?)?,
        };
        if !options.full {
            return Ok(losses);
        }
        let large = target.gt(1)?;
        // Of 2 where it does not count, so that no derivative is infinite.
        let t = large.select_from(target, 2.0)?;
        let stirling = t.mul(&t.log()?)?.sub(&t)?;
        let stirling = stirling.add(&t.mul(2.0 * PI)?.log()?.mul(0.5)?)?;
        losses.add(&large.select_from(&stirling, 0)?)
    };
    rounded(input, options.reduction, losses).map_err(|e| e.relocated(at))
}

/// What [`gaussian_nll_loss`] gives; PyTorch's defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GaussianNllOptions {
    /// Whether the constant `log(2 π) / 2` is added.
    pub full: bool,
    /// The least variance. It is data of the program.
    pub eps: f64,
    /// What becomes of the single losses.
    pub reduction: Reduction,
}

impl Default for GaussianNllOptions {
    fn default() -> Self {
        GaussianNllOptions {
            full: false,
            eps: 1e-6,
            reduction: Reduction::Mean,
        }
    }
}

/// The negative logarithm of the normal density with mean `input` and variance `var`, at the target:
/// `(log var + (input - target)² / var) / 2`. The gradient passes a variance raised to `eps` as if it
/// had not been.
///
/// # Errors
/// [`Error::Broadcast`], [`Error::ShapeMismatch`] for a variance that does not broadcast to the
/// input, [`Error::Argument`] for an `eps` that is not positive.
#[track_caller]
pub fn gaussian_nll_loss(
    input: &Tensor,
    target: &Tensor,
    var: &Tensor,
    options: GaussianNllOptions,
) -> Result<Tensor> {
    const OP: &str = "gaussian_nll_loss";
    let at = Location::caller();
    pair(OP, input, target).map_err(|e| e.at(at))?;
    if options.eps.is_nan() || options.eps <= 0.0 {
        return Err(Error::argument(OP, "eps", "a positive number", options.eps).at(at));
    }
    // One variance a row may lack the last axis.
    let var = match var.rank() + 1 == input.rank() && *var.dims() == input.dims()[..var.rank()] {
        true => var.unsqueeze(-1)?,
        false => var.clone(),
    };
    if !var.shape().expands_to(input.shape()) {
        let expected = format!("a var that broadcasts to {}", input.shape());
        return Err(Error::shape(OP, expected, var.shape()).at(at));
    }
    let losses = |x: &Tensor| {
        let raised = var.detach()?.maximum(options.eps)?.sub(&var.detach()?)?;
        let var = var.add(&raised)?;
        let losses = var
            .log()?
            .add(&x.sub(target)?.square()?.div(&var)?)?
            .mul(0.5)?;
        match options.full {
            true => losses.add(0.5 * (2.0 * PI).ln()),
            false => Ok(losses),
        }
    };
    rounded(input, options.reduction, losses).map_err(|e| e.relocated(at))
}
