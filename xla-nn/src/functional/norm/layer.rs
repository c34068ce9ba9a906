//! Normalised over the last axes.

use super::standardize::{Over, Standardize};
use super::{affine, parameters};
use crate::functional::{accumulator, floating};
use std::panic::Location;
use xla_core::{DType, Error, IntoShape, Result, Shape};
use xla_lazy::{Tensor, record_op};

/// The axes that `normalized_shape` names, which must be the input's last.
fn trailing(
    op: &'static str,
    input: &Tensor,
    normalized: &Shape,
) -> Result<std::ops::Range<usize>> {
    floating(op, "an input", input)?;
    if normalized.rank() == 0 {
        let expected = "at least one axis";
        return Err(Error::argument(
            op,
            "normalized_shape",
            expected,
            normalized,
        ));
    }
    match input.rank().checked_sub(normalized.rank()) {
        Some(first) if input.dims()[first..] == *normalized.dims() => Ok(first..input.rank()),
        _ => {
            let expected = format!("an input whose last axes are normalized_shape {normalized}");
            Err(Error::shape(op, expected, input.shape()))
        }
    }
}

/// Normalised over the last axes, which `normalized_shape` names: `(x - mean) / sqrt(variance +
/// eps) * weight + bias`, with the biased variance ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)).
///
/// `weight` and `bias` have the shape `normalized_shape`. Half precision is computed in `f32`.
///
/// # Errors
/// [`Error::ShapeMismatch`] when the input does not end in `normalized_shape` or a parameter has
/// another shape; [`Error::DTypeMismatch`] for dtypes that are not floating-point.
#[track_caller]
pub fn layer_norm(
    input: &Tensor,
    normalized_shape: impl IntoShape,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Result<Tensor> {
    const OP: &str = "layer_norm";
    let at = Location::caller();
    let normalized = normalized_shape.into_shape(OP).map_err(|e| e.at(at))?;
    let axes = trailing(OP, input, &normalized).map_err(|e| e.at(at))?;
    let given = [("a weight", weight), ("a bias", bias)];
    parameters(OP, normalized.dims(), given).map_err(|e| e.at(at))?;
    let y = record_op(Standardize(Over::new(axes, eps, true)), &[input.into()])?;
    affine(input, y, weight, bias)
}

/// Divided by the root mean square over the last axes, which `normalized_shape` names:
/// `x / sqrt(mean(x²) + eps) * weight` ([Zhang & Sennrich 2019](https://arxiv.org/abs/1910.07467)).
///
/// Without an `eps` it is the least `e` with `1 + e > 1` in the dtype computed in, which is `f32` for
/// half precision.
///
/// # Errors
/// As [`layer_norm`].
#[track_caller]
pub fn rms_norm(
    input: &Tensor,
    normalized_shape: impl IntoShape,
    weight: Option<&Tensor>,
    eps: Option<f64>,
) -> Result<Tensor> {
    const OP: &str = "rms_norm";
    let at = Location::caller();
    let normalized = normalized_shape.into_shape(OP).map_err(|e| e.at(at))?;
    let axes = trailing(OP, input, &normalized).map_err(|e| e.at(at))?;
    parameters(OP, normalized.dims(), [("a weight", weight)]).map_err(|e| e.at(at))?;
    let eps = eps.unwrap_or(match accumulator(input.dtype()) {
        DType::F64 => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    });
    let y = record_op(Standardize(Over::new(axes, eps, false)), &[input.into()])?;
    affine(input, y, weight, None)
}
