//! Softmax and its relatives along one axis.

use super::float_of;
use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::stablehlo::{Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::Ty;
use std::panic::Location;
use xla_core::{Dims, Result};

/// `x` less its maximum along the axis, and the sum of its exponentials, both of `x`'s shape.
fn shifted(f: &mut Func, x: Value, axis: usize) -> (Value, Value, Value) {
    let others: Dims = (0..x.shape().rank()).filter(|&i| i != axis).collect();
    let highest = f.reduce(Reduction::Max, x, &[axis]);
    let highest = f.broadcast_in_dim(highest, x.shape(), &others);
    let shifted = f.binary("subtract", x, highest);
    let exponential = f.unary("exponential", shifted);
    let sum = f.reduce(Reduction::Sum, exponential, &[axis]);
    (shifted, exponential, sum)
}

fn spread(f: &mut Func, reduced: Value, like: Value, axis: usize) -> Value {
    let others: Dims = (0..like.shape().rank()).filter(|&i| i != axis).collect();
    f.broadcast_in_dim(reduced, like.shape(), &others)
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
            let y = vjp.output()?;
            let weighted = vjp.grad().mul(y)?;
            let total = weighted.sum(op.axis, true)?;
            vjp.only(weighted.sub(&y.mul(&total)?)?.to_dtype(vjp.dtype(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        float_of(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], out.dtype());
        let (_, exponential, sum) = shifted(f, x, self.axis);
        let sum = spread(f, sum, x, self.axis);
        Ok(f.binary("divide", exponential, sum))
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
            let total = vjp.grad().sum(op.axis, true)?;
            let gradient = vjp.grad().sub(&vjp.output()?.exp()?.mul(&total)?)?;
            vjp.only(gradient.to_dtype(vjp.dtype(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        float_of(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], out.dtype());
        let (shifted, _, sum) = shifted(f, x, self.axis);
        let log = f.unary("log", sum);
        let log = spread(f, log, x, self.axis);
        Ok(f.binary("subtract", shifted, log))
    }
}

impl Tensor {
    /// `exp(x)` along an axis, divided by its sum. Safe for large values.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn softmax(&self, dim: i64) -> Result<Tensor> {
        let here = Location::caller();
        if self.rank() == 0 {
            return self.reshape([1])?.softmax(dim)?.reshape(());
        }
        let axis = self.shape().axis("softmax", dim).map_err(|e| e.at(here))?;
        record_op(Softmax { axis }, &[self.into()])
    }

    /// The logarithm of [`Tensor::softmax`], exact where that underflows.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn log_softmax(&self, dim: i64) -> Result<Tensor> {
        let here = Location::caller();
        if self.rank() == 0 {
            return self.reshape([1])?.log_softmax(dim)?.reshape(());
        }
        let axis = self
            .shape()
            .axis("log_softmax", dim)
            .map_err(|e| e.at(here))?;
        record_op(LogSoftmax { axis }, &[self.into()])
    }
}
