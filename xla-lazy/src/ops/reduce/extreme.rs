//! Largest and smallest elements and where they are.

use super::{not_empty, reduced, with_axes};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::ops::{numeric, only};
use crate::stablehlo::{Compare, Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{DType, Dims, IntoAxes, Result, Shape};

/// Largest or smallest element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Extreme<const MAX: bool> {
    axes: Dims,
    keepdim: bool,
}

impl<const MAX: bool> Operator for Extreme<MAX> {
    const NAME: &'static str = if MAX { "amax" } else { "amin" };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        // Shared evenly among equal elements; NaN where there are none, as a NaN equals nothing.
        rule: |op, vjp| {
            let best = with_axes(vjp, vjp.output()?, &op.axes)?;
            let grad = with_axes(vjp, vjp.grad(), &op.axes)?;
            let hit = vjp.input(0)?.eq(&best)?;
            let hits = hit.sum(op.axes.as_slice(), true)?.to_dtype(vjp.dtype(0))?;
            let share = grad.div(&hits)?;
            vjp.only(hit.select_from(&share, &share.mul(0)?))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        not_empty(Self::NAME, input.shape(), &self.axes)?;
        Ok(ty(
            input.dtype(),
            &reduced(input.shape(), &self.axes, self.keepdim),
        ))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let reduction = if MAX { Reduction::Max } else { Reduction::Min };
        let best = f.reduce(reduction, inputs[0], &self.axes);
        Ok(f.reshape(best, out.shape()))
    }
}

/// Position of the largest or smallest element along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ArgExtreme<const MAX: bool> {
    axis: usize,
    keepdim: bool,
}

impl<const MAX: bool> Operator for ArgExtreme<MAX> {
    const NAME: &'static str = if MAX { "argmax" } else { "argmin" };
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = numeric(Self::NAME, inputs)?;
        not_empty(Self::NAME, input.shape(), &[self.axis])?;
        Ok(ty(
            DType::I64,
            &reduced(input.shape(), &[self.axis], self.keepdim),
        ))
    }

    /// The first position that holds the extreme; a NaN is the extreme.
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = inputs[0];
        let axes = [self.axis];
        let reduction = if MAX { Reduction::Max } else { Reduction::Min };
        let best = f.reduce(reduction, x, &axes);
        let others: Dims = (0..x.shape().rank()).filter(|&i| i != self.axis).collect();
        let best = f.broadcast_in_dim(best, x.shape(), &others);
        let mut hit = f.compare(Compare::Eq, x, best);
        if x.dtype().is_float() {
            let nan = f.compare(Compare::Ne, x, x);
            hit = f.binary("or", hit, nan);
        }
        let position = f.iota(DType::I64, x.shape(), self.axis);
        let beyond = f.constant_int(DType::I64, x.shape(), i64::MAX);
        let candidate = f.select(hit, position, beyond);
        let first = f.reduce(Reduction::Min, candidate, &axes);
        Ok(f.reshape(first, out.shape()))
    }
}

/// The largest or smallest element along an axis; the second operand is its position, to which the
/// gradient goes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ExtremeAlong<const MAX: bool> {
    axis: usize,
    keepdim: bool,
}

impl<const MAX: bool> Operator for ExtremeAlong<MAX> {
    const NAME: &'static str = if MAX { "max" } else { "min" };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| {
            let length = vjp.shape(0)[op.axis] as i64;
            let mut along: Dims = Dims::from_elem(1, vjp.shape(0).rank());
            along[op.axis] = length as usize;
            let options = (DType::I64, vjp.grad().device());
            let positions = Tensor::arange(0, length, 1, options)?.reshape(Shape::from(along))?;
            let hit = positions.eq(&with_axes(vjp, vjp.input(1)?, &[op.axis])?)?;
            let gradient = hit.select_from(&with_axes(vjp, vjp.grad(), &[op.axis])?, 0)?;
            Ok(smallvec::smallvec![Some(gradient), None])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = inputs[0].tensor(Self::NAME)?;
        let shape = reduced(input.shape(), &[self.axis], self.keepdim);
        Ok(ty(input.dtype(), &shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let reduction = if MAX { Reduction::Max } else { Reduction::Min };
        let best = f.reduce(reduction, inputs[0], &[self.axis]);
        Ok(f.reshape(best, out.shape()))
    }
}

impl Tensor {
    /// The largest element over these axes (`()` for all); NaN where there is one. Equal elements
    /// share the gradient evenly.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`]; [`xla_core::Error::ShapeMismatch`] when there are no elements.
    #[track_caller]
    pub fn amax(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("amax", dims)?;
        record_op(Extreme::<true> { axes, keepdim }, &[self.into()])
    }

    /// The smallest element over these axes; as [`Tensor::amax`].
    ///
    /// # Errors
    /// As [`Tensor::amax`].
    #[track_caller]
    pub fn amin(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("amin", dims)?;
        record_op(Extreme::<false> { axes, keepdim }, &[self.into()])
    }

    /// The position of the largest element along an axis, or in the flattened tensor for `None`:
    /// the first of equal ones; a NaN counts as largest. `i64`.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`], [`xla_core::Error::ShapeMismatch`] when there are no elements, and
    /// [`xla_core::Error::DTypeMismatch`] for `bool`.
    #[track_caller]
    pub fn argmax(&self, dim: Option<i64>, keepdim: bool) -> Result<Tensor> {
        self.arg_extreme::<true>(dim, keepdim)
    }

    /// The position of the smallest element; as [`Tensor::argmax`].
    ///
    /// # Errors
    /// As [`Tensor::argmax`].
    #[track_caller]
    pub fn argmin(&self, dim: Option<i64>, keepdim: bool) -> Result<Tensor> {
        self.arg_extreme::<false>(dim, keepdim)
    }

    #[track_caller]
    fn arg_extreme<const MAX: bool>(&self, dim: Option<i64>, keepdim: bool) -> Result<Tensor> {
        let here = Location::caller();
        let op = ArgExtreme::<MAX>::NAME;
        match dim {
            // A scalar answers to the axes of a vector.
            Some(_) if self.rank() == 0 => self.reshape([1])?.arg_extreme::<MAX>(dim, false),
            Some(dim) => {
                let axis = self.shape().axis(op, dim).map_err(|e| e.at(here))?;
                record_op(ArgExtreme::<MAX> { axis, keepdim }, &[self.into()])
            }
            None => {
                let flat = self.reshape([-1])?;
                let found = record_op(
                    ArgExtreme::<MAX> {
                        axis: 0,
                        keepdim: false,
                    },
                    &[(&flat).into()],
                )?;
                if keepdim {
                    found.reshape(vec![1usize; self.rank()].as_slice())
                } else {
                    Ok(found)
                }
            }
        }
    }

    /// The largest element along an axis and its position, the first of equal ones; a NaN counts as
    /// largest. The gradient goes to that position; [`Tensor::amax`] shares it between equal ones
    /// and takes several axes, or `()` for PyTorch's `max` of the whole tensor.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`]; [`xla_core::Error::ShapeMismatch`] when there are no elements.
    #[track_caller]
    pub fn max(&self, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
        self.extreme_along::<true>(dim, keepdim)
    }

    /// The smallest element along an axis and its position; as [`Tensor::max`].
    ///
    /// # Errors
    /// As [`Tensor::max`].
    #[track_caller]
    pub fn min(&self, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
        self.extreme_along::<false>(dim, keepdim)
    }

    #[track_caller]
    fn extreme_along<const MAX: bool>(&self, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
        let here = Location::caller();
        let op = ExtremeAlong::<MAX>::NAME;
        let Some(axis) = self.axis_or_scalar(op, dim)? else {
            let index = Tensor::zeros((), (DType::I64, self.device()))?;
            return Ok((self.copy()?, index));
        };
        not_empty(op, self.shape(), &[axis]).map_err(|e| e.at(here))?;
        let numbers = match self.dtype() {
            DType::Bool => self.to_dtype(DType::U8)?,
            _ => self.clone(),
        };
        let indices = record_op(ArgExtreme::<MAX> { axis, keepdim }, &[(&numbers).into()])?;
        let values = record_op(
            ExtremeAlong::<MAX> { axis, keepdim },
            &[self.into(), (&indices).into()],
        )?;
        Ok((values, indices))
    }

    /// The smallest and the largest element along an axis, or of all for `None`: PyTorch's `aminmax`.
    /// Equal elements share the gradient evenly.
    ///
    /// # Errors
    /// As [`Tensor::amax`].
    #[track_caller]
    pub fn aminmax(&self, dim: Option<i64>, keepdim: bool) -> Result<(Tensor, Tensor)> {
        match dim {
            Some(dim) => Ok((self.amin(dim, keepdim)?, self.amax(dim, keepdim)?)),
            None => Ok((self.amin((), keepdim)?, self.amax((), keepdim)?)),
        }
    }
}
