//! Reductions over axes.

use super::{numeric, only};
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::stablehlo::{Compare, Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::{Tensor, Vjp};
use std::panic::Location;
use xla_core::{Category, DType, Dims, Error, IntoAxes, Result, Shape};

/// The shape with these axes at length 1.
fn kept(shape: &Shape, axes: &[usize]) -> Shape {
    let dims: Dims = shape
        .iter()
        .enumerate()
        .map(|(i, &d)| if axes.contains(&i) { 1 } else { d })
        .collect();
    Shape::from(dims)
}

/// The shape after a reduction.
fn reduced(shape: &Shape, axes: &[usize], keepdim: bool) -> Shape {
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
fn with_axes(vjp: &Vjp<'_>, value: &Tensor, axes: &[usize]) -> Result<Tensor> {
    value.reshape(kept(&vjp.shape(0), axes))
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sum {
    axes: Dims,
    keepdim: bool,
}

impl Operator for Sum {
    const NAME: &'static str = "sum";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let spread = with_axes(vjp, vjp.grad(), &op.axes)?.expand(vjp.shape(0))?;
            vjp.only(spread.to_dtype(vjp.dtype(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        let dtype = if input.dtype().is_float() {
            input.dtype()
        } else {
            DType::I64
        };
        Ok(ty(dtype, &reduced(input.shape(), &self.axes, self.keepdim)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let wide = accumulator(out.dtype());
        let x = f.convert(inputs[0], wide);
        let sum = f.reduce(Reduction::Sum, x, &self.axes);
        let sum = f.convert(sum, out.dtype());
        Ok(f.reshape(sum, out.shape()))
    }
}

/// Half precision is summed in `f32`, as PyTorch does.
fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Mean {
    axes: Dims,
    keepdim: bool,
}

fn count(shape: &Shape, axes: &[usize]) -> usize {
    axes.iter().map(|&a| shape[a]).product()
}

impl Operator for Mean {
    const NAME: &'static str = "mean";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let n = count(&vjp.shape(0), &op.axes);
            let share = with_axes(vjp, vjp.grad(), &op.axes)?.div(n as f64)?;
            vjp.only(share.expand(vjp.shape(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        if !input.dtype().is_float() {
            return Err(Error::dtype(
                Self::NAME,
                "a floating-point dtype",
                input.dtype(),
            ));
        }
        Ok(ty(
            input.dtype(),
            &reduced(input.shape(), &self.axes, self.keepdim),
        ))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], accumulator(out.dtype()));
        let sum = f.reduce(Reduction::Sum, x, &self.axes);
        let n = count(x.shape(), &self.axes) as f64;
        let n = f.constant(sum.dtype(), sum.shape(), n);
        let mean = f.binary("divide", sum, n);
        let mean = f.convert(mean, out.dtype());
        Ok(f.reshape(mean, out.shape()))
    }
}

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
        // Shared evenly among equal elements.
        rule: |op, vjp| {
            let best = with_axes(vjp, vjp.output()?, &op.axes)?;
            let grad = with_axes(vjp, vjp.grad(), &op.axes)?;
            let hit = vjp.input(0)?.eq(&best)?.to_dtype(vjp.dtype(0))?;
            let hits = hit.sum(op.axes.as_slice(), true)?;
            vjp.only(hit.mul(&grad.div(&hits)?))
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

fn not_empty(op: &'static str, shape: &Shape, axes: &[usize]) -> Result<()> {
    match axes.iter().find(|&&a| shape[a] == 0) {
        Some(axis) => Err(Error::shape(
            op,
            format!("at least one element on axis {axis}"),
            shape,
        )),
        None => Ok(()),
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

/// Whether all, or any, elements are not 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Quantify<const ALL: bool> {
    axes: Dims,
    keepdim: bool,
}

impl<const ALL: bool> Operator for Quantify<ALL> {
    const NAME: &'static str = if ALL { "all" } else { "any" };
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let shape = only(Self::NAME, inputs)?.shape();
        Ok(ty(DType::Bool, &reduced(shape, &self.axes, self.keepdim)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], DType::Bool);
        let reduction = if ALL { Reduction::And } else { Reduction::Or };
        let value = f.reduce(reduction, x, &self.axes);
        Ok(f.reshape(value, out.shape()))
    }
}

impl Tensor {
    #[track_caller]
    fn axes(&self, op: &'static str, dims: impl IntoAxes) -> Result<Dims> {
        let here = Location::caller();
        dims.into_axes()
            .resolve(op, self.rank())
            .map_err(|e| e.at(here))
    }

    /// The sum over these axes (`()` for all). Integers and `bool` sum as `i64`; half precision is
    /// accumulated in `f32`.
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn sum(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("sum", dims)?;
        record_op(Sum { axes, keepdim }, &[self.into()])
    }

    /// The mean over these axes (`()` for all); NaN where there are no elements.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::DTypeMismatch`] for a dtype that is not floating-point.
    #[track_caller]
    pub fn mean(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("mean", dims)?;
        record_op(Mean { axes, keepdim }, &[self.into()])
    }

    /// The largest element over these axes (`()` for all); NaN where there is one. Equal elements
    /// share the gradient evenly.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::ShapeMismatch`] when there are no elements.
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
    /// [`Error::Axis`], [`Error::ShapeMismatch`] when there are no elements, and
    /// [`Error::DTypeMismatch`] for `bool`.
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

    /// Whether all elements over these axes are not 0.
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn all(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("all", dims)?;
        record_op(Quantify::<true> { axes, keepdim }, &[self.into()])
    }

    /// Whether any element over these axes is not 0.
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn any(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("any", dims)?;
        record_op(Quantify::<false> { axes, keepdim }, &[self.into()])
    }

    /// Summed over axes until it has `shape`, from which it broadcasts: the transpose of
    /// broadcasting.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when `shape` does not broadcast to this tensor's.
    #[track_caller]
    pub fn sum_to_size(&self, shape: &Shape) -> Result<Tensor> {
        if shape == self.shape() {
            return Ok(self.clone());
        }
        if !shape.expands_to(self.shape()) {
            let expected = format!("a shape that {shape} broadcasts to");
            return Err(Error::shape("sum_to_size", expected, self.shape()).at(Location::caller()));
        }
        let added = self.rank() - shape.rank();
        let axes: Dims = (0..self.rank())
            .filter(|&i| i < added || (shape[i - added] == 1 && self.dims()[i] != 1))
            .collect();
        let summed = self.sum(axes.as_slice(), true)?;
        let summed = if self.dtype().category() == Category::Float {
            summed
        } else {
            summed.to_dtype(self.dtype())?
        };
        summed.reshape(shape)
    }
}
