//! Softmax and its relatives.

use super::float_of;
use super::reduce::{accumulator, reduced, with_axes};
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::stablehlo::{Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::{Tensor, Vjp};
use xla_core::{DType, Dims, IntoAxes, Result};

/// `x` less its maximum along the axis, its exponential, and the sum of that.
fn shifted(f: &mut Func, x: Value, axis: usize) -> (Value, Value, Value) {
    let highest = f.reduce(Reduction::Max, x, &[axis]);
    let highest = spread(f, highest, x, &[axis]);
    let shifted = f.binary("subtract", x, highest);
    let exponential = f.unary("exponential", shifted);
    let sum = f.reduce(Reduction::Sum, exponential, &[axis]);
    (shifted, exponential, sum)
}

/// A reduced value, repeated along the axes that were reduced.
fn spread(f: &mut Func, reduced: Value, like: Value, axes: &[usize]) -> Value {
    let others: Dims = (0..like.shape().rank())
        .filter(|i| !axes.contains(i))
        .collect();
    f.broadcast_in_dim(reduced, like.shape(), &others)
}

/// Gradient and output of a rule in the dtype it computes in: half precision in `f32`, rounded once
/// at the end.
fn widened(vjp: &Vjp<'_>) -> Result<(Tensor, Tensor)> {
    let dtype = accumulator(vjp.output_type().dtype());
    Ok((vjp.grad().to_dtype(dtype)?, vjp.output()?.to_dtype(dtype)?))
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Softmax {
    axis: usize,
}

impl Operator for Softmax {
    const NAME: &'static str = "softmax";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::OUTPUT,
        rule: |op, vjp| {
            let (grad, y) = widened(vjp)?;
            let weighted = grad.mul(&y)?;
            let total = weighted.sum(op.axis, true)?;
            vjp.only(weighted.sub(&y.mul(&total)?)?.to_dtype(vjp.dtype(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        float_of(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], accumulator(out.dtype()));
        let (_, exponential, sum) = shifted(f, x, self.axis);
        let sum = spread(f, sum, x, &[self.axis]);
        let value = f.binary("divide", exponential, sum);
        Ok(f.convert(value, out.dtype()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LogSoftmax {
    axis: usize,
}

impl Operator for LogSoftmax {
    const NAME: &'static str = "log_softmax";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::OUTPUT,
        rule: |op, vjp| {
            let (grad, y) = widened(vjp)?;
            let total = grad.sum(op.axis, true)?;
            let gradient = grad.sub(&y.exp()?.mul(&total)?)?;
            vjp.only(gradient.to_dtype(vjp.dtype(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        float_of(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], accumulator(out.dtype()));
        let (shifted, _, sum) = shifted(f, x, self.axis);
        let log = f.unary("log", sum);
        let log = spread(f, log, x, &[self.axis]);
        let value = f.binary("subtract", shifted, log);
        Ok(f.convert(value, out.dtype()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LogSumExp {
    axes: Dims,
    keepdim: bool,
}

impl Operator for LogSumExp {
    const NAME: &'static str = "logsumexp";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        rule: |op, vjp| {
            let (grad, y) = widened(vjp)?;
            let grad = with_axes(vjp, &grad, &op.axes)?;
            let share = vjp.input(0)?.sub(&with_axes(vjp, &y, &op.axes)?)?.exp()?;
            vjp.only(share.mul(&grad)?.to_dtype(vjp.dtype(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = float_of(Self::NAME, inputs)?;
        let shape = reduced(input.shape(), &self.axes, self.keepdim);
        Ok(ty(input.dtype(), &shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], accumulator(out.dtype()));
        let highest = f.reduce(Reduction::Max, x, &self.axes);
        // An infinite maximum would be subtracted from itself.
        let mask = ty(DType::Bool, highest.shape());
        let finite = f.call(
            format_args!("stablehlo.is_finite {highest}"),
            &[highest],
            mask,
        );
        let zero = f.constant(x.dtype(), highest.shape(), 0.0);
        let highest = f.select(finite, highest, zero);
        let wide = spread(f, highest, x, &self.axes);
        let shifted = f.binary("subtract", x, wide);
        let exponential = f.unary("exponential", shifted);
        let sum = f.reduce(Reduction::Sum, exponential, &self.axes);
        let log = f.unary("log", sum);
        let value = f.binary("add", log, highest);
        let value = f.convert(value, out.dtype());
        Ok(f.reshape(value, out.shape()))
    }
}

impl Tensor {
    /// `exp(x)` along an axis, divided by its sum. Safe for large values; half precision is computed
    /// in `f32`. PyTorch's `dtype` argument is [`Tensor::to_dtype`] before.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn softmax(&self, dim: i64) -> Result<Tensor> {
        match self.axis_or_scalar("softmax", dim)? {
            None => self.reshape([1])?.softmax(0)?.reshape(()),
            Some(axis) => record_op(Softmax { axis }, &[self.into()]),
        }
    }

    /// The logarithm of [`Tensor::softmax`], exact where that underflows.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn log_softmax(&self, dim: i64) -> Result<Tensor> {
        match self.axis_or_scalar("log_softmax", dim)? {
            None => self.reshape([1])?.log_softmax(0)?.reshape(()),
            Some(axis) => record_op(LogSoftmax { axis }, &[self.into()]),
        }
    }

    /// `log(sum(exp(x)))` over these axes (`()` for all), exact where the exponentials overflow or
    /// underflow; -inf where there are no elements. Integers become `f32`.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn logsumexp(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("logsumexp", dims)?;
        record_op(LogSumExp { axes, keepdim }, &[self.into()])
    }
}
