//! Sums and means.

use super::{accumulator, count, floating, reduced, summed, with_axes};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::ops::only;
use crate::stablehlo::{Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{Category, Dims, Error, IntoAxes, Result, Shape};

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
        let dtype = summed(input.dtype());
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

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Mean {
    axes: Dims,
    keepdim: bool,
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
        let input = floating(Self::NAME, inputs)?;
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

impl Tensor {
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

    /// The sum over these axes (`()` for all) of the elements that are not NaN; as [`Tensor::sum`].
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn nansum(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("nansum", dims)?;
        if !self.dtype().is_float() {
            return self.sum(axes.as_slice(), keepdim);
        }
        self.isnan()?
            .select_from(0, self)?
            .sum(axes.as_slice(), keepdim)
    }

    /// The mean over these axes (`()` for all) of the elements that are not NaN; NaN where there
    /// are none.
    ///
    /// # Errors
    /// As [`Tensor::mean`].
    #[track_caller]
    pub fn nanmean(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("nanmean", dims)?;
        if !self.dtype().is_float() {
            let error = Error::dtype("nanmean", "a floating-point dtype", self.dtype());
            return Err(error.at(Location::caller()));
        }
        let count = self
            .isnan()?
            .logical_not()?
            .sum(axes.as_slice(), keepdim)?
            .to_dtype(self.dtype())?;
        self.nansum(axes.as_slice(), keepdim)?.div(&count)
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
