//! Losses of the distance between each element and its target.

use super::{Reduction, pair, rounded};
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::autocast::full;
use xla_lazy::{Number, Tensor};

/// `(input - target)²`.
///
/// # Errors
/// [`Error::Broadcast`], [`Error::DTypeMismatch`] for an input that is not floating-point.
#[track_caller]
pub fn mse_loss(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let at = Location::caller();
    let input = &*full(input)?;
    pair("mse_loss", input, target).map_err(|e| e.at(at))?;
    rounded(input, reduction, |x| x.sub(target)?.square()).map_err(|e| e.relocated(at))
}

/// `|input - target|`.
///
/// # Errors
/// As [`mse_loss`].
#[track_caller]
pub fn l1_loss(input: &Tensor, target: &Tensor, reduction: Reduction) -> Result<Tensor> {
    let at = Location::caller();
    let input = &*full(input)?;
    pair("l1_loss", input, target).map_err(|e| e.at(at))?;
    rounded(input, reduction, |x| x.sub(target)?.abs()).map_err(|e| e.relocated(at))
}

/// The square of the distance up to `delta`, linear beyond, in one formula: with `c` the distance
/// cut at `delta`, `c (distance - c / 2)`.
fn cut(x: &Tensor, target: &Tensor, delta: f64) -> Result<Tensor> {
    let distance = x.sub(target)?.abs()?;
    let cut = distance.minimum(delta)?;
    cut.mul(&distance.sub(&cut.mul(0.5)?)?)
}

/// `(input - target)² / (2 beta)` where the distance is below `beta`, else the distance less
/// `beta / 2`. A `beta` of 0 is [`l1_loss`]; `beta` is data of the program, except for that.
///
/// # Errors
/// As [`mse_loss`]; [`Error::Argument`] for a negative `beta`.
#[track_caller]
pub fn smooth_l1_loss(
    input: &Tensor,
    target: &Tensor,
    reduction: Reduction,
    beta: impl Into<Number>,
) -> Result<Tensor> {
    const OP: &str = "smooth_l1_loss";
    let at = Location::caller();
    let input = &*full(input)?;
    let beta = beta.into().to_f64();
    if beta.is_nan() || beta < 0.0 {
        return Err(Error::argument(OP, "beta", "a number of at least 0", beta).at(at));
    }
    pair(OP, input, target).map_err(|e| e.at(at))?;
    if beta == 0.0 {
        return l1_loss(input, target, reduction);
    }
    rounded(input, reduction, |x| cut(x, target, beta)?.div(beta)).map_err(|e| e.relocated(at))
}

/// `(input - target)² / 2` where the distance is below `delta`, else `delta` times the distance less
/// `delta / 2` ([Huber 1964](https://doi.org/10.1214/aoms/1177703732)). `delta` is data of the
/// program.
///
/// # Errors
/// As [`mse_loss`]; [`Error::Argument`] for a `delta` that is not positive.
#[track_caller]
pub fn huber_loss(
    input: &Tensor,
    target: &Tensor,
    reduction: Reduction,
    delta: impl Into<Number>,
) -> Result<Tensor> {
    const OP: &str = "huber_loss";
    let at = Location::caller();
    let input = &*full(input)?;
    let delta = delta.into().to_f64();
    if delta.is_nan() || delta <= 0.0 {
        return Err(Error::argument(OP, "delta", "a positive number", delta).at(at));
    }
    pair(OP, input, target).map_err(|e| e.at(at))?;
    rounded(input, reduction, |x| cut(x, target, delta)).map_err(|e| e.relocated(at))
}
