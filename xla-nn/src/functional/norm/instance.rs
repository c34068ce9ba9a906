//! Normalised per channel, each member of the batch by itself.

use super::batch::{BatchNormOptions, batch_norm, update_statistics};
use super::group::by_group;
use super::{channels, parameters};
use std::panic::Location;
use xla_core::{Dims, Error, Result};
use xla_lazy::Tensor;

/// How [`instance_norm`] normalises; PyTorch's defaults.
#[derive(Debug, Clone, Copy)]
pub struct InstanceNormOptions<'a> {
    /// Multiplies each channel, `[channels]`.
    pub weight: Option<&'a Tensor>,
    /// Added to each channel, `[channels]`.
    pub bias: Option<&'a Tensor>,
    /// Whether the input's own statistics are used, and enter the running ones.
    pub use_input_stats: bool,
    /// The weight of the input's statistics in the running ones. It is data of the program.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
}

impl Default for InstanceNormOptions<'_> {
    fn default() -> Self {
        InstanceNormOptions {
            weight: None,
            bias: None,
            use_input_stats: true,
            momentum: 0.1,
            eps: 1e-5,
        }
    }
}

/// Normalised per channel of each member of the batch, over all axes behind the channels
/// ([Ulyanov et al. 2016](https://arxiv.org/abs/1607.08022)).
///
/// As [`batch_norm`] otherwise; the running statistics take the mean of the members' statistics.
///
/// # Errors
/// As [`batch_norm`].
#[track_caller]
pub fn instance_norm(
    input: &Tensor,
    running_mean: Option<&Tensor>,
    running_var: Option<&Tensor>,
    options: InstanceNormOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "instance_norm";
    let at = Location::caller();
    let channels = channels(OP, input).map_err(|e| e.at(at))?;
    if !options.use_input_stats {
        let options = BatchNormOptions {
            weight: options.weight,
            bias: options.bias,
            training: false,
            momentum: options.momentum,
            eps: options.eps,
        };
        return batch_norm(input, running_mean, running_var, options);
    }
    let given = [
        ("a running_mean", running_mean),
        ("a running_var", running_var),
        ("a weight", options.weight),
        ("a bias", options.bias),
    ];
    parameters(OP, &[channels], given).map_err(|e| e.at(at))?;
    let values = input.dims()[2..]
        .iter()
        .fold(1usize, |n, &d| n.saturating_mul(d));
    if values == 1 {
        let expected = "more than one value behind the channels";
        return Err(Error::shape(OP, expected, input.shape()).at(at));
    }
    let axes: Dims = (2..input.rank()).collect();
    let running = [running_mean, running_var];
    update_statistics(input, &axes, running, options.momentum)?;
    by_group(input, channels, options.weight, options.bias, options.eps)
}
