//! Norms of vectors.

use super::{accumulator, floating, not_empty, reduced, with_axes};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::stablehlo::{Compare, Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{Dims, Error, IntoAxes, Result};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Norm {
    /// The bits of an `f64`.
    p: u64,
    axes: Dims,
    keepdim: bool,
}

impl Norm {
    fn p(&self) -> f64 {
        f64::from_bits(self.p)
    }
}

impl Operator for Norm {
    const NAME: &'static str = "norm";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        rule: |op, vjp| {
            let (x, p) = (vjp.input(0)?, op.p());
            let grad = with_axes(vjp, vjp.grad(), &op.axes)?;
            let norm = with_axes(vjp, vjp.output()?, &op.axes)?;
            let gradient = if p == 0.0 {
                vjp.zeros(0)?
            } else if p == 1.0 {
                x.sign()?.mul(&grad)?
            } else if p == 2.0 {
                norm.eq(0)?.select_from(0, &x.div(&norm)?)?.mul(&grad)?
            } else if p.is_infinite() {
                let size = x.abs()?;
                let hit = size.eq(&norm)?.logical_or(&x.isnan()?)?;
                let hits = hit.sum(op.axes.as_slice(), true)?.to_dtype(x.dtype())?;
                let share = hit.to_dtype(x.dtype())?.mul(&grad.div(&hits)?)?;
                x.sign()?.mul(&share)?
            } else if p < 1.0 {
                // The slope at 0 is infinite; PyTorch takes 0.
                let steep = x.eq(0)?.select_from(0, &x.abs()?.pow(p - 1.0)?)?;
                let scale = grad.mul(&norm.pow(1.0 - p)?)?;
                x.sign()?.mul(&steep)?.mul(&scale)?
            } else {
                let scale = grad.div(&norm.pow(p - 1.0)?)?;
                let scale = norm.eq(0)?.select_from(0, &scale)?;
                x.sign()?.mul(&x.abs()?.pow(p - 1.0)?)?.mul(&scale)?
            };
            vjp.only(Ok(gradient))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = floating(Self::NAME, inputs)?;
        if self.p() < 0.0 || self.p().is_infinite() {
            not_empty(Self::NAME, input.shape(), &self.axes)?;
        }
        let shape = reduced(input.shape(), &self.axes, self.keepdim);
        Ok(ty(input.dtype(), &shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (x, p) = (inputs[0], self.p());
        let x = f.convert(x, accumulator(x.dtype()));
        let dtype = x.dtype();
        let norm = if p.is_infinite() {
            let size = f.unary("abs", x);
            let reduction = if p > 0.0 {
                Reduction::Max
            } else {
                Reduction::Min
            };
            f.reduce(reduction, size, &self.axes)
        } else if p == 0.0 {
            let zero = f.constant(dtype, x.shape(), 0.0);
            let other = f.compare(Compare::Ne, x, zero);
            let one = f.convert(other, dtype);
            f.reduce(Reduction::Sum, one, &self.axes)
        } else if p == 1.0 {
            let size = f.unary("abs", x);
            f.reduce(Reduction::Sum, size, &self.axes)
        } else if p == 2.0 {
            let square = f.binary("multiply", x, x);
            let sum = f.reduce(Reduction::Sum, square, &self.axes);
            f.unary("sqrt", sum)
        } else {
            let size = f.unary("abs", x);
            let exponent = f.constant(dtype, x.shape(), p);
            let power = f.binary("power", size, exponent);
            let sum = f.reduce(Reduction::Sum, power, &self.axes);
            let exponent = f.constant(dtype, sum.shape(), 1.0 / p);
            f.binary("power", sum, exponent)
        };
        let norm = f.convert(norm, out.dtype());
        Ok(f.reshape(norm, out.shape()))
    }
}

impl Tensor {
    /// The `p`-norm of the elements over these axes (`()` for all), `(sum |x|^p)^(1/p)`:
    /// `torch.linalg.vector_norm`. `f64::INFINITY` and `f64::NEG_INFINITY` give the largest and
    /// the smallest absolute value, 0 the number of elements that are not 0. Half precision is
    /// accumulated in `f32`.
    ///
    /// Where the derivative does not exist it is PyTorch's: 0 at the origin, shared evenly between
    /// equal largest elements.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::DTypeMismatch`] for a dtype that is not floating-point;
    /// [`Error::ShapeMismatch`] when there are no elements and `p` is negative or infinite;
    /// [`Error::Argument`] for a NaN.
    #[track_caller]
    pub fn norm(&self, p: impl Into<f64>, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("norm", dims)?;
        let p = p.into();
        if p.is_nan() {
            return Err(Error::argument("norm", "p", "a number", p).at(Location::caller()));
        }
        // -0 and 0 are one norm.
        let p = (p + 0.0).to_bits();
        record_op(Norm { p, axes, keepdim }, &[self.into()])
    }
}
