//! Gated units, and units with a learned slope.

use super::floating;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::Tensor;
use xla_lazy::autocast::lower;

/// The gated linear unit: the first half of the input along `dim` times the sigmoid of the second
/// ([Dauphin et al. 2016](https://arxiv.org/abs/1612.08083)).
///
/// # Errors
/// [`Error::Axis`]; [`Error::ShapeMismatch`] when the axis cannot be halved;
/// [`Error::DTypeMismatch`] for an input that is not floating-point.
#[track_caller]
pub fn glu(input: &Tensor, dim: i64) -> Result<Tensor> {
    const OP: &str = "glu";
    let at = Location::caller();
    floating(OP, "an input", input).map_err(|e| e.at(at))?;
    let axis = input.shape().axis(OP, dim).map_err(|e| e.at(at))?;
    match input.dims().get(axis) {
        Some(size) if size.is_multiple_of(2) => {
            let half = size / 2;
            let gate = input.narrow(dim, half as i64, half)?.sigmoid()?;
            input.narrow(dim, 0, half)?.mul(&gate)
        }
        _ => {
            let expected = format!("an even length on axis {axis}");
            Err(Error::shape(OP, expected, input.shape()).at(at))
        }
    }
}

/// `x` where it is positive, else `weight` times it
/// ([He et al. 2015](https://arxiv.org/abs/1502.01852)). The weight is one number, or one for each
/// channel: the input's second axis.
///
/// # Errors
/// [`Error::ShapeMismatch`] for another number of weights, with both; [`Error::DTypeMismatch`] for an
/// input that is not floating-point or a weight of another dtype.
#[track_caller]
pub fn prelu(input: &Tensor, weight: &Tensor) -> Result<Tensor> {
    const OP: &str = "prelu";
    let at = Location::caller();
    let (input, weight) = (&*lower(input)?, &*lower(weight)?);
    floating(OP, "an input", input).map_err(|e| e.at(at))?;
    if weight.dtype() != input.dtype() {
        return Err(Error::dtype(OP, input.dtype().name(), weight.dtype()).at(at));
    }
    let channels = input.dims().get(1).copied().unwrap_or(1);
    if weight.rank() > 1 || ![1, channels].contains(&weight.numel()) {
        let expected = format!("a weight of shape [1] or [{channels}]");
        return Err(Error::shape(OP, expected, weight.shape()).at(at));
    }
    let weight = if input.rank() < 2 {
        weight.reshape(())?
    } else {
        let mut dims = vec![1; input.rank() - 1];
        dims[0] = weight.numel();
        weight.reshape(&dims[..])?
    };
    input.gt(0)?.select_from(input, &input.mul(&weight)?)
}
