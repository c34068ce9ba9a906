//! Normalisation: centred and scaled to unit variance over some axes, then an affine map.

mod batch;
mod group;
mod instance;
mod layer;
mod standardize;

pub use batch::{BatchNormOptions, batch_norm};
pub use group::group_norm;
pub use instance::{InstanceNormOptions, instance_norm};
pub use layer::{layer_norm, rms_norm};

use super::floating;
use xla_core::{Error, Result};
use xla_lazy::Tensor;

/// Normalised, multiplied and added to in the accumulator's dtype, then rounded once.
#[track_caller]
fn affine(
    input: &Tensor,
    normalised: Tensor,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let mut y = normalised;
    if let Some(weight) = weight {
        y = y.mul(weight)?;
    }
    if let Some(bias) = bias {
        y = y.add(bias)?;
    }
    y.to_dtype(input.dtype())
}

/// An error unless each given tensor has this shape and a floating-point dtype.
fn parameters<const N: usize>(
    op: &'static str,
    shape: &[usize],
    given: [(&'static str, Option<&Tensor>); N],
) -> Result<()> {
    for (name, tensor) in given {
        let Some(tensor) = tensor else { continue };
        floating(op, name, tensor)?;
        if tensor.dims() != shape {
            let expected = format!("{name} of shape {shape:?}");
            return Err(Error::shape(op, expected, tensor.shape()));
        }
    }
    Ok(())
}

/// The number of channels, on axis 1.
fn channels(op: &'static str, input: &Tensor) -> Result<usize> {
    floating(op, "an input", input)?;
    match *input.dims() {
        [_, channels, ..] => Ok(channels),
        _ => {
            let expected = "an input of shape [batch, channels, ..]";
            Err(Error::shape(op, expected, input.shape()))
        }
    }
}

/// A value per channel, to broadcast with an input of this rank.
#[track_caller]
fn by_channel(values: &Tensor, rank: usize) -> Result<Tensor> {
    let mut dims = vec![1; rank];
    dims[1] = values.numel();
    values.reshape(dims.as_slice())
}
