//! Normalised per channel, over the batch.

use super::standardize::{Over, Standardize};
use super::{affine, by_channel, channels, parameters};
use crate::functional::accumulator;
use std::panic::Location;
use xla_core::{Dims, Error, Result};
use xla_lazy::{Tensor, no_grad, record_op};

/// How [`batch_norm`] normalises; PyTorch's defaults.
#[derive(Debug, Clone, Copy)]
pub struct BatchNormOptions<'a> {
    /// Multiplies each channel, `[channels]`.
    pub weight: Option<&'a Tensor>,
    /// Added to each channel, `[channels]`.
    pub bias: Option<&'a Tensor>,
    /// Whether the batch's own statistics are used, and enter the running ones.
    pub training: bool,
    /// The weight of the batch's statistics in the running ones. It is data of the program.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
}

impl Default for BatchNormOptions<'_> {
    fn default() -> Self {
        BatchNormOptions {
            weight: None,
            bias: None,
            training: false,
            momentum: 0.1,
            eps: 1e-5,
        }
    }
}

/// Normalised per channel over the batch and all axes behind the channels
/// ([Ioffe & Szegedy 2015](https://arxiv.org/abs/1502.03167)).
///
/// The input is `[batch, channels, ..]`, the other tensors are `[channels]`. In training the
/// batch's mean and biased variance normalise, and the running mean and variance, if given, are
/// updated in place: `running = (1 - momentum) * running + momentum * batch`, with the unbiased
/// variance. Otherwise the running statistics normalise. Half precision is computed in `f32`.
///
/// # Errors
/// [`Error::ShapeMismatch`] for other shapes, and in training for a batch with one value a
/// channel; [`Error::Argument`] without running statistics outside training;
/// [`Error::DTypeMismatch`] for dtypes that are not floating-point.
#[track_caller]
pub fn batch_norm(
    input: &Tensor,
    running_mean: Option<&Tensor>,
    running_var: Option<&Tensor>,
    options: BatchNormOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "batch_norm";
    let at = Location::caller();
    let checked = || {
        let channels = channels(OP, input)?;
        let given = [
            ("a running_mean", running_mean),
            ("a running_var", running_var),
            ("a weight", options.weight),
            ("a bias", options.bias),
        ];
        parameters(OP, &[channels], given)
    };
    checked().map_err(|e| e.at(at))?;
    let rank = input.rank();
    let weight = options.weight.map(|w| by_channel(w, rank)).transpose()?;
    let bias = options.bias.map(|b| by_channel(b, rank)).transpose()?;
    if options.training {
        let values = input.numel() / input.dims()[1].max(1);
        if values == 1 && input.numel() > 0 {
            let expected = "more than one value per channel in training";
            return Err(Error::shape(OP, expected, input.shape()).at(at));
        }
        let axes: Dims = (0..rank).filter(|&i| i != 1).collect();
        let running = [running_mean, running_var];
        update_statistics(input, &axes, running, options.momentum)?;
        let over = Over::new(axes, options.eps, true);
        let y = record_op(Standardize(over), &[input.into()])?;
        return affine(input, y, weight.as_ref(), bias.as_ref());
    }
    let (Some(mean), Some(variance)) = (running_mean, running_var) else {
        let expected = "both outside training";
        let got = "none";
        return Err(Error::argument(OP, "running_mean, running_var", expected, got).at(at));
    };
    let wide = accumulator(input.dtype());
    let scale = variance.to_dtype(wide)?.add(options.eps)?.rsqrt()?;
    let y = input
        .to_dtype(wide)?
        .sub(&by_channel(mean, rank)?)?
        .mul(&by_channel(&scale, rank)?)?;
    affine(input, y, weight.as_ref(), bias.as_ref())
}

/// Mixes the mean and the unbiased variance over these axes, averaged over the batch where it is
/// not among them, into the running statistics.
#[track_caller]
pub(super) fn update_statistics(
    input: &Tensor,
    axes: &[usize],
    running: [Option<&Tensor>; 2],
    momentum: f64,
) -> Result<()> {
    if running.iter().all(Option::is_none) {
        return Ok(());
    }
    let at = Location::caller();
    let count: usize = axes
        .iter()
        .map(|&a| input.dims()[a])
        .fold(1, usize::saturating_mul);
    let mix = |running: Option<&Tensor>, batch: Tensor| -> Result<()> {
        let Some(running) = running else {
            return Ok(());
        };
        let batch = match axes.contains(&0) {
            true => batch,
            false => batch.mean(0, true)?,
        };
        let batch = batch.reshape(running.shape())?;
        running
            .mul_(1.0 - momentum)?
            .add_scaled_(&batch, momentum)?;
        Ok(())
    };
    no_grad(|| {
        let x = input.detach()?.to_dtype(accumulator(input.dtype()))?;
        let mean = x.mean(axes, true)?;
        let biased = x.sub(&mean)?.square()?.mean(axes, true)?;
        let unbiased = biased.mul(count as f64 / (count as f64 - 1.0))?;
        mix(running[0], mean)?;
        mix(running[1], unbiased)
    })
    .map_err(|e| e.at(at))
}
