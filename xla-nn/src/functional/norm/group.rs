//! Normalised over groups of channels.

use super::standardize::{Over, Standardize};
use super::{affine, by_channel, channels, parameters};
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::{Tensor, record_op};

/// Normalised over each of `num_groups` groups of channels and all axes behind the channels
/// ([Wu & He 2018](https://arxiv.org/abs/1803.08494)).
///
/// The input is `[batch, channels, ..]`; `weight` and `bias` are `[channels]`. Half precision is
/// computed in `f32`.
///
/// # Errors
/// [`Error::Argument`] when the groups do not divide the channels; otherwise as
/// [`layer_norm`](super::layer_norm).
#[track_caller]
pub fn group_norm(
    input: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    const OP: &str = "group_norm";
    let at = Location::caller();
    let channels = channels(OP, input).map_err(|e| e.at(at))?;
    if num_groups == 0 || !channels.is_multiple_of(num_groups) {
        let expected = format!("a divisor of the {channels} channels");
        return Err(Error::argument(OP, "num_groups", expected, num_groups).at(at));
    }
    let given = [("a weight", weight), ("a bias", bias)];
    parameters(OP, &[channels], given).map_err(|e| e.at(at))?;
    by_group(input, num_groups, weight, bias, eps)
}

#[track_caller]
pub(super) fn by_group(
    input: &Tensor,
    num_groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    let rank = input.rank();
    let mut dims: Vec<usize> = input.dims().to_vec();
    dims.splice(1..2, [num_groups, input.dims()[1] / num_groups.max(1)]);
    let groups = input.reshape(dims.as_slice())?;
    let over = Over::new(2..groups.rank(), eps, true);
    let y = record_op(Standardize(over), &[(&groups).into()])?.reshape(input.shape())?;
    let weight = weight.map(|w| by_channel(w, rank)).transpose()?;
    let bias = bias.map(|b| by_channel(b, rank)).transpose()?;
    affine(input, y, weight.as_ref(), bias.as_ref())
}
