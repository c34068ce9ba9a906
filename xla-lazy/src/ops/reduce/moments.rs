//! Variance and standard deviation.

use super::{accumulator, count, floating, reduced, with_axes};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::stablehlo::{Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use xla_core::{Dims, IntoAxes, Result, Shape};

/// The variance, or its root, in two passes: the mean, then the squared distances from it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Moment<const ROOT: bool> {
    axes: Dims,
    /// The bits of an `f64`.
    correction: u64,
    keepdim: bool,
}

impl<const ROOT: bool> Moment<ROOT> {
    /// The number of elements less the correction.
    fn freedom(&self, shape: &Shape) -> f64 {
        count(shape, &self.axes) as f64 - f64::from_bits(self.correction)
    }
}

impl<const ROOT: bool> Operator for Moment<ROOT> {
    const NAME: &'static str = if ROOT { "std" } else { "var" };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: if ROOT {
            Saves::INPUTS.and_output()
        } else {
            Saves::INPUTS
        },
        rule: |op, vjp| {
            let x = vjp.input(0)?;
            let mut grad = with_axes(vjp, vjp.grad(), &op.axes)?;
            if ROOT {
                // The root's slope is infinite at 0, where PyTorch takes 0.
                let std = with_axes(vjp, vjp.output()?, &op.axes)?;
                grad = std.eq(0)?.select_from(0, &grad.div(&std.mul(2)?)?)?;
            }
            let centered = x.sub(&x.mean(op.axes.as_slice(), true)?)?;
            let freedom = op.freedom(&vjp.shape(0));
            vjp.only(centered.mul(&grad)?.mul(2.0 / freedom))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = floating(Self::NAME, inputs)?;
        let shape = reduced(input.shape(), &self.axes, self.keepdim);
        Ok(ty(input.dtype(), &shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], accumulator(out.dtype()));
        let others: Dims = (0..x.shape().rank())
            .filter(|i| !self.axes.contains(i))
            .collect();
        let sum = f.reduce(Reduction::Sum, x, &self.axes);
        let n = count(x.shape(), &self.axes) as f64;
        let n = f.constant(sum.dtype(), sum.shape(), n);
        let mean = f.binary("divide", sum, n);
        let mean = f.broadcast_in_dim(mean, x.shape(), &others);
        let centered = f.binary("subtract", x, mean);
        let square = f.binary("multiply", centered, centered);
        let sum = f.reduce(Reduction::Sum, square, &self.axes);
        let freedom = self.freedom(x.shape()).max(0.0);
        let freedom = f.constant(sum.dtype(), sum.shape(), freedom);
        let mut value = f.binary("divide", sum, freedom);
        if ROOT {
            value = f.unary("sqrt", value);
        }
        let value = f.convert(value, out.dtype());
        Ok(f.reshape(value, out.shape()))
    }
}

impl Tensor {
    /// The variance over these axes (`()` for all): the squared distances from the mean, summed and
    /// divided by the number of elements less `correction`. 1, PyTorch's default, gives the
    /// unbiased estimate of a sample's origin; 0 the variance of the elements themselves. Without
    /// enough elements it is NaN or infinite.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`]; [`xla_core::Error::DTypeMismatch`] for a dtype that is not
    /// floating-point.
    #[track_caller]
    pub fn var(
        &self,
        dims: impl IntoAxes,
        correction: impl Into<f64>,
        keepdim: bool,
    ) -> Result<Tensor> {
        self.moment::<false>(dims, correction.into(), keepdim)
    }

    /// The standard deviation: the root of [`Tensor::var`]. Its gradient is 0 where it is 0.
    ///
    /// # Errors
    /// As [`Tensor::var`].
    #[track_caller]
    pub fn std(
        &self,
        dims: impl IntoAxes,
        correction: impl Into<f64>,
        keepdim: bool,
    ) -> Result<Tensor> {
        self.moment::<true>(dims, correction.into(), keepdim)
    }

    /// [`Tensor::var`] and [`Tensor::mean`].
    ///
    /// # Errors
    /// As [`Tensor::var`].
    #[track_caller]
    pub fn var_mean(
        &self,
        dims: impl IntoAxes,
        correction: impl Into<f64>,
        keepdim: bool,
    ) -> Result<(Tensor, Tensor)> {
        let axes = self.axes("var_mean", dims)?;
        let var = self.var(axes.as_slice(), correction, keepdim)?;
        Ok((var, self.mean(axes.as_slice(), keepdim)?))
    }

    /// [`Tensor::std`] and [`Tensor::mean`].
    ///
    /// # Errors
    /// As [`Tensor::var`].
    #[track_caller]
    pub fn std_mean(
        &self,
        dims: impl IntoAxes,
        correction: impl Into<f64>,
        keepdim: bool,
    ) -> Result<(Tensor, Tensor)> {
        let axes = self.axes("std_mean", dims)?;
        let std = self.std(axes.as_slice(), correction, keepdim)?;
        Ok((std, self.mean(axes.as_slice(), keepdim)?))
    }

    #[track_caller]
    fn moment<const ROOT: bool>(
        &self,
        dims: impl IntoAxes,
        correction: f64,
        keepdim: bool,
    ) -> Result<Tensor> {
        let axes = self.axes(Moment::<ROOT>::NAME, dims)?;
        let correction = correction.to_bits();
        let op = Moment::<ROOT> {
            axes,
            correction,
            keepdim,
        };
        record_op(op, &[self.into()])
    }
}
