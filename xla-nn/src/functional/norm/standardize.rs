//! The operators of normalisation, and their derivatives.

use crate::functional::accumulator;
use xla_core::{Dims, Result, Shape};
use xla_lazy::stablehlo::{Func, Reduction, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, Vjp, record_op, ty};

/// Over which axes, and how, elements are normalised.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Over {
    axes: Dims,
    /// The bits of what is added to the mean square.
    eps: u64,
    /// Whether the mean is subtracted.
    centred: bool,
}

impl Over {
    pub(super) fn new(axes: impl IntoIterator<Item = usize>, eps: f64, centred: bool) -> Self {
        Over {
            axes: axes.into_iter().collect(),
            eps: eps.to_bits(),
            centred,
        }
    }

    /// The mean over the axes, which vanish.
    fn mean(&self, f: &mut Func, x: Value) -> Value {
        let sum = f.reduce(Reduction::Sum, x, &self.axes);
        let count: usize = self
            .axes
            .iter()
            .map(|&a| x.shape()[a])
            .fold(1, usize::saturating_mul);
        let count = f.constant(sum.dtype(), sum.shape(), count as f64);
        f.binary("divide", sum, count)
    }

    fn spread(&self, f: &mut Func, reduced: Value, shape: &Shape) -> Value {
        let kept: Dims = (0..shape.rank())
            .filter(|i| !self.axes.contains(i))
            .collect();
        f.broadcast_in_dim(reduced, shape, &kept)
    }

    /// `x` as its accumulator, less its mean if that is asked for, and `1 / sqrt(mean square + eps)`.
    fn moments(&self, f: &mut Func, x: Value) -> (Value, Value) {
        let mut x = f.convert(x, accumulator(x.dtype()));
        if self.centred {
            let mean = self.mean(f, x);
            let mean = self.spread(f, mean, x.shape());
            x = f.binary("subtract", x, mean);
        }
        let square = f.binary("multiply", x, x);
        let variance = self.mean(f, square);
        let eps = f.constant(variance.dtype(), variance.shape(), f64::from_bits(self.eps));
        let variance = f.binary("add", variance, eps);
        (x, f.unary("rsqrt", variance))
    }

    /// The gradient less what lies along the directions that normalisation removes: the
    /// normalised values `y` and, where the mean is subtracted, the constants.
    fn project(&self, gradient: &Tensor, y: &Tensor) -> Result<Tensor> {
        let axes = self.axes.as_slice();
        let along = gradient.mul(y)?.mean(axes, true)?;
        let rest = gradient.sub(&y.mul(&along)?)?;
        match self.centred {
            true => rest.sub(&gradient.mean(axes, true)?),
            false => Ok(rest),
        }
    }
}

/// The type that values of this one are normalised in.
fn wide(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    let x = inputs[0].tensor(op)?;
    Ok(ty(accumulator(x.dtype()), x.shape()))
}

/// `(x - mean) / sqrt(variance + eps)`, in the accumulator's dtype.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Standardize(pub(super) Over);

impl Operator for Standardize {
    const NAME: &'static str = "standardize";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        rule: |op, vjp: &Vjp<'_>| {
            let scale = record_op(InverseDeviation(op.0.clone()), &[vjp.operand(0)?])?;
            let gradient = op.0.project(vjp.grad(), vjp.output()?)?.mul(&scale)?;
            vjp.only(gradient.to_dtype(vjp.dtype(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        wide(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let (x, scale) = self.0.moments(f, inputs[0]);
        let scale = self.0.spread(f, scale, x.shape());
        Ok(f.binary("multiply", x, scale))
    }
}

/// `1 / sqrt(variance + eps)`, with the axes kept at length 1. It repeats what [`Standardize`]
/// computes: in one program the two are the same operations.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct InverseDeviation(Over);

impl Operator for InverseDeviation {
    const NAME: &'static str = "inverse_deviation";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        // The derivative of (mean square)^(-1/2) is -r^3 x / n, and r x is the normalised value.
        rule: |op, vjp: &Vjp<'_>| {
            let count: usize =
                op.0.axes
                    .iter()
                    .map(|&a| vjp.shape(0)[a])
                    .fold(1, usize::saturating_mul);
            let scale = vjp.output()?;
            let slope = vjp.grad().mul(&scale.square()?)?.div(-(count as f64))?;
            let y = record_op(Standardize(op.0.clone()), &[vjp.operand(0)?])?;
            vjp.only(y.mul(&slope)?.to_dtype(vjp.dtype(0)))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = wide(Self::NAME, inputs)?;
        Ok(ty(x.dtype(), &self.kept(x.shape())))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (_, scale) = self.0.moments(f, inputs[0]);
        Ok(f.reshape(scale, out.shape()))
    }
}

impl InverseDeviation {
    fn kept(&self, shape: &Shape) -> Shape {
        let mut dims: Dims = shape.dims().into();
        for &axis in &self.0.axes {
            dims[axis] = 1;
        }
        Shape::from(dims)
    }
}
