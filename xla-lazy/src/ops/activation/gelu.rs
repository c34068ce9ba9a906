//! The Gaussian error linear unit.

use super::*;
use crate::trace::record_op;
use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

/// How [`Tensor::gelu`] is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum GeluApproximation {
    /// By the error function.
    #[default]
    None,
    /// By the hyperbolic tangent of a polynomial.
    Tanh,
}

/// The weight of the cube in the approximation's polynomial.
const CUBE: f64 = 0.044_715;

/// `sqrt(2 / π)`.
const SLOPE: f64 = FRAC_2_SQRT_PI * FRAC_1_SQRT_2;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Gelu {
    approximate: GeluApproximation,
}

impl Operator for Gelu {
    const NAME: &'static str = "gelu";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |op, vjp| {
            let x = vjp.input(0)?;
            let slope = match op.approximate {
                GeluApproximation::None => slope(x),
                GeluApproximation::Tanh => approximate_slope(x),
            };
            finish(vjp, vjp.grad().mul(&slope?))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        floating(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        Ok(widened(
            f,
            inputs[0],
            out,
            match self.approximate {
                GeluApproximation::None => |f, x| {
                    let scaled = with_constant(f, "multiply", x, FRAC_1_SQRT_2);
                    let erf = f.chlo_unary("erf", scaled);
                    gated(f, x, erf)
                },
                GeluApproximation::Tanh => |f, x| {
                    let square = f.binary("multiply", x, x);
                    let cube = with_constant(f, "multiply", square, CUBE);
                    let factor = with_constant(f, "add", cube, 1.0);
                    let polynomial = f.binary("multiply", x, factor);
                    let scaled = with_constant(f, "multiply", polynomial, SLOPE);
                    let tanh = f.unary("tanh", scaled);
                    gated(f, x, tanh)
                },
            },
        ))
    }
}

/// `x * (1 + gate) / 2`.
fn gated(f: &mut Func, x: Value, gate: Value) -> Value {
    let half = with_constant(f, "multiply", x, 0.5);
    let gate = with_constant(f, "add", gate, 1.0);
    f.binary("multiply", half, gate)
}

/// The normal distribution's cumulative function plus `x` times its density.
fn slope(x: &Tensor) -> Result<Tensor> {
    let cumulative = x.mul(FRAC_1_SQRT_2)?.erf()?.add(1)?.mul(0.5)?;
    let density = x.square()?.mul(-0.5)?.exp()?.mul(0.5 * SLOPE)?;
    cumulative.add(&x.mul(&density)?)
}

fn approximate_slope(x: &Tensor) -> Result<Tensor> {
    let square = x.square()?;
    let tanh = square.mul(CUBE)?.add(1)?.mul(x)?.mul(SLOPE)?.tanh()?;
    let steepness = square.mul(3.0 * CUBE)?.add(1)?.mul(SLOPE)?;
    let bend = tanh.square()?.rsub(1)?.mul(&steepness)?.mul(x)?;
    tanh.add(1)?.add(&bend)?.mul(0.5)
}

impl Tensor {
    /// `x` times the probability that a standard normal variable is below it
    /// ([Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415)).
    ///
    /// # Errors
    /// [`xla_core::Error::DTypeMismatch`] for integers and `bool`.
    #[track_caller]
    pub fn gelu(&self, approximate: GeluApproximation) -> Result<Tensor> {
        record_op(Gelu { approximate }, &[self.into()])
    }
}
