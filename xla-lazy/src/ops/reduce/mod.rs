//! Reductions over axes.
//!
//! Where a method takes axes, `()` and an empty list both mean all of them, as in PyTorch. PyTorch's
//! `dtype` argument is [`Tensor::to_dtype`] before the reduction, `x.to_dtype(d)?.sum(1, false)`; for an
//! integer dtype narrower than `i64`, also after it.

mod extreme;
mod moments;
mod norm;
mod product;
mod quantify;
mod sum;

use crate::op::InputType;
use crate::ty::Ty;
use crate::{Tensor, Vjp};
use std::panic::Location;
use xla_core::{Axes, DType, Dims, Error, IntoAxes, Result, Shape};

/// The shape with these axes at length 1.
pub(super) fn kept(shape: &Shape, axes: &[usize]) -> Shape {
    let dims: Dims = shape
        .iter()
        .enumerate()
        .map(|(i, &d)| if axes.contains(&i) { 1 } else { d })
        .collect();
    Shape::from(dims)
}

/// The shape after a reduction.
pub(super) fn reduced(shape: &Shape, axes: &[usize], keepdim: bool) -> Shape {
    if keepdim {
        return kept(shape, axes);
    }
    let dims: Dims = shape
        .iter()
        .enumerate()
        .filter(|(i, _)| !axes.contains(i))
        .map(|(_, &d)| d)
        .collect();
    Shape::from(dims)
}

/// A value of the output's shape, given axes of length 1 for those reduced.
pub(super) fn with_axes(vjp: &Vjp<'_>, value: &Tensor, axes: &[usize]) -> Result<Tensor> {
    value.reshape(kept(&vjp.shape(0), axes))
}

/// Half precision is accumulated in `f32`, as PyTorch does.
pub(super) fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// The dtype of a sum or product: integers and `bool` in `i64`.
pub(super) fn summed(dtype: DType) -> DType {
    if dtype.is_float() { dtype } else { DType::I64 }
}

/// How many elements a reduction over these axes combines; no more than there are numbers where the
/// lengths of an empty tensor multiply to more.
fn count(shape: &Shape, axes: &[usize]) -> usize {
    axes.iter()
        .fold(1, |count: usize, &axis| count.saturating_mul(shape[axis]))
}

pub(super) fn not_empty(op: &'static str, shape: &Shape, axes: &[usize]) -> Result<()> {
    match axes.iter().find(|&&a| shape[a] == 0) {
        Some(axis) => Err(Error::shape(
            op,
            format!("at least one element on axis {axis}"),
            shape,
        )),
        None => Ok(()),
    }
}

/// The one operand's type, which must be floating-point.
pub(super) fn floating(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    let input = super::only(op, inputs)?;
    if input.dtype().is_float() {
        Ok(input)
    } else {
        Err(Error::dtype(op, "a floating-point dtype", input.dtype()))
    }
}

impl Tensor {
    #[track_caller]
    pub(super) fn axes(&self, op: &'static str, dims: impl IntoAxes) -> Result<Dims> {
        let here = Location::caller();
        let axes = match dims.into_axes() {
            Axes::List(list) if list.is_empty() => Axes::All,
            axes => axes,
        };
        axes.resolve(op, self.rank()).map_err(|e| e.at(here))
    }

    /// The axis that `dim` names; `None` for a scalar, which answers to `0` and `-1`.
    #[track_caller]
    pub(super) fn axis_or_scalar(&self, op: &'static str, dim: i64) -> Result<Option<usize>> {
        let axes = self.axes(op, dim)?;
        Ok(axes.first().copied())
    }
}
