//! Elements moved between channels and space.

use super::window::LIMIT;
use std::panic::Location;
use xla_core::{Dims, Error, Result};
use xla_lazy::Tensor;

/// From `[.., channels * r², height, width]` to `[.., channels, height * r, width * r]`, where `r`
/// is `upscale_factor` (Shi et al. 2016).
///
/// # Errors
/// [`Error::ShapeMismatch`] for fewer than three axes or channels that `r²` does not divide;
/// [`Error::Argument`] for a factor of 0.
#[track_caller]
pub fn pixel_shuffle(input: &Tensor, upscale_factor: usize) -> Result<Tensor> {
    const OP: &str = "pixel_shuffle";
    let here = Location::caller();
    let r = factor(OP, "upscale_factor", upscale_factor).map_err(|e| e.at(here))?;
    let (lead, [channels, height, width]) = planes(OP, input).map_err(|e| e.at(here))?;
    let square = r.saturating_mul(r);
    if channels % square != 0 {
        let expected = format!("channels (the third axis from the end) that {square} divides");
        return Err(Error::shape(OP, expected, input.shape()).at(here));
    }
    let split = joined(&lead, &[channels / square, r, r, height, width]);
    let whole = joined(
        &lead,
        &[
            channels / square,
            height.saturating_mul(r),
            width.saturating_mul(r),
        ],
    );
    let order = joined(&axes(&lead), &[0, 3, 1, 4, 2].map(|i| lead.len() + i));
    moved(input, &split, &order, &whole)
}

/// The inverse of [`pixel_shuffle`]: from `[.., channels, height * r, width * r]` to
/// `[.., channels * r², height, width]`, where `r` is `downscale_factor`.
///
/// # Errors
/// [`Error::ShapeMismatch`] for fewer than three axes, or a height or width that `r` does not
/// divide; [`Error::Argument`] for a factor of 0.
#[track_caller]
pub fn pixel_unshuffle(input: &Tensor, downscale_factor: usize) -> Result<Tensor> {
    const OP: &str = "pixel_unshuffle";
    let here = Location::caller();
    let r = factor(OP, "downscale_factor", downscale_factor).map_err(|e| e.at(here))?;
    let (lead, [channels, height, width]) = planes(OP, input).map_err(|e| e.at(here))?;
    if height % r != 0 || width % r != 0 {
        let expected = format!("a height and width that {r} divides");
        return Err(Error::shape(OP, expected, input.shape()).at(here));
    }
    let split = joined(&lead, &[channels, height / r, r, width / r, r]);
    let whole = joined(
        &lead,
        &[
            channels.saturating_mul(r.saturating_mul(r)),
            height / r,
            width / r,
        ],
    );
    let order = joined(&axes(&lead), &[0, 2, 4, 1, 3].map(|i| lead.len() + i));
    moved(input, &split, &order, &whole)
}

fn factor(op: &'static str, argument: &'static str, factor: usize) -> Result<usize> {
    match factor {
        1..LIMIT => Ok(factor),
        _ => Err(Error::argument(
            op,
            argument,
            "at least 1 and within an axis",
            factor,
        )),
    }
}

/// The axes before the last three, and those.
fn planes(op: &'static str, input: &Tensor) -> Result<(Dims, [usize; 3])> {
    match input.dims() {
        [lead @ .., channels, height, width] => Ok((lead.into(), [*channels, *height, *width])),
        _ => Err(Error::shape(
            op,
            "an input of shape [.., channels, height, width]",
            input.shape(),
        )),
    }
}

fn axes(lead: &[usize]) -> Dims {
    (0..lead.len()).collect()
}

fn joined(lead: &[usize], rest: &[usize]) -> Dims {
    lead.iter().chain(rest).copied().collect()
}

#[track_caller]
fn moved(input: &Tensor, split: &[usize], order: &[usize], whole: &[usize]) -> Result<Tensor> {
    let order: Vec<i64> = order.iter().map(|&i| i as i64).collect();
    input
        .reshape(split)?
        .permute(order.as_slice())?
        .reshape(whole)
}
