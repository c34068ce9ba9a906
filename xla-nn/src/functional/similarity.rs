//! Angles and distances between vectors, and vectors of length 1.

use std::panic::Location;
use xla_core::{DType, IntoAxes, Result};
use xla_lazy::Tensor;

/// Each vector along an axis, divided by its length or `eps`, whichever is larger. As in PyTorch the
/// gradient does not see the limit.
#[track_caller]
fn unit(x: &Tensor, dim: i64, eps: f64) -> Result<Tensor> {
    let length = x.norm(2, dim, true)?;
    let lift = length.maximum(eps)?.sub(&length)?.detach()?;
    x.div(&length.add(&lift)?)
}

/// The cosine of the angles between the vectors along an axis of `x1` and `x2`, which broadcast; the
/// axis is one of the common shape and vanishes. A length below `eps` (1e-8 by default in PyTorch)
/// counts as `eps`. Integers become `f32`.
///
/// # Errors
/// [`xla_core::Error::Axis`], [`xla_core::Error::Broadcast`].
///
/// ```no_run
/// use xla_lazy::Tensor;
/// use xla_nn::functional::cosine_similarity;
/// let x = Tensor::from_slice(&[1.0f32, 0.0, 1.0, 1.0], [2, 2], ())?;
/// let y = Tensor::from_slice(&[2.0f32, 0.0], [2], ())?;
/// assert_eq!(cosine_similarity(&x, &y, 1, 1e-8)?.dims(), [2]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[track_caller]
pub fn cosine_similarity(x1: &Tensor, x2: &Tensor, dim: i64, eps: f64) -> Result<Tensor> {
    const OP: &str = "cosine_similarity";
    let here = Location::caller();
    let shape = x1
        .shape()
        .broadcast(OP, x2.shape())
        .map_err(|e| e.at(here))?;
    if shape.rank() > 0 {
        shape.axis(OP, dim).map_err(|e| e.at(here))?;
    }
    let dtype = match x1.dtype().promote(x2.dtype()) {
        dtype if dtype.is_float() => dtype,
        _ => DType::F32,
    };
    let a = unit(&x1.to_dtype(dtype)?.expand(&shape)?, dim, eps)?;
    let b = unit(&x2.to_dtype(dtype)?.expand(&shape)?, dim, eps)?;
    a.mul(&b)?.sum(dim, false)
}

/// Each vector along these axes, divided by its `p`-norm or `eps`, whichever is larger. PyTorch's
/// defaults are a `p` of 2, axis 1 and an `eps` of 1e-12.
///
/// # Errors
/// As [`Tensor::norm`].
///
/// ```no_run
/// use xla_lazy::Tensor;
/// use xla_nn::functional::normalize;
/// let x = Tensor::from_slice(&[3.0f32, 4.0], [1, 2], ())?;
/// assert_eq!(normalize(&x, 2, 1, 1e-12)?.to_vec::<f32>()?, [0.6, 0.8]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[track_caller]
pub fn normalize(x: &Tensor, p: impl Into<f64>, dims: impl IntoAxes, eps: f64) -> Result<Tensor> {
    x.div(&x.norm(p, dims, true)?.maximum(eps)?)
}

/// The distance of vectors along the last axis, `‖x1 - x2 + eps‖`; both broadcast.
///
/// # Errors
/// [`xla_core::Error::Broadcast`]; otherwise as [`Tensor::norm`].
#[track_caller]
pub fn pairwise_distance(
    x1: &Tensor,
    x2: &Tensor,
    p: impl Into<f64>,
    eps: f64,
    keepdim: bool,
) -> Result<Tensor> {
    x1.sub(x2)?.add(eps)?.norm(p, -1, keepdim)
}
