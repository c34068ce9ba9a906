//! Gated units.

use super::floating;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::Tensor;

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
