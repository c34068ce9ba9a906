//! Rounding to whole numbers.

use super::*;
use crate::stablehlo::Compare;
use crate::trace::record_op;
use std::panic::Location;
use xla_core::Error;

/// Rounding leaves integers as they are.
fn rounded(f: &mut Func, x: Value, mnemonic: &str) -> Value {
    if x.dtype().is_float() {
        f.unary(mnemonic, x)
    } else {
        x
    }
}

/// `x` without its fraction.
pub(in crate::ops) fn truncated(f: &mut Func, x: Value) -> Value {
    if !x.dtype().is_float() {
        return x;
    }
    let zero = f.constant(x.dtype(), x.shape(), 0.0);
    let negative = f.compare(Compare::Lt, x, zero);
    let (up, down) = (f.unary("ceil", x), f.unary("floor", x));
    f.select(negative, up, down)
}

unary! {
    /// The largest whole number at most `x`.
    Floor floor: numeric,
    |f, x, _| rounded(f, x, "floor"),
    Derivative::Zero;

    /// The smallest whole number at least `x`.
    Ceil ceil: numeric,
    |f, x, _| rounded(f, x, "ceil"),
    Derivative::Zero;

    /// The nearest whole number, halves to even.
    Round round: numeric,
    |f, x, _| rounded(f, x, "round_nearest_even"),
    Derivative::Zero;

    /// The whole number next to `x` towards 0.
    Trunc trunc: numeric,
    |f, x, _| truncated(f, x),
    Derivative::Zero;

    /// The fraction, `x - trunc(x)`, which has the sign of `x`; NaN for infinities.
    Frac frac: floating,
    |f, x, _| {
        let whole = truncated(f, x);
        f.binary("subtract", x, whole)
    },
    Derivative::Rule { saves: Saves::NONE, rule: |_, vjp| vjp.only(Ok(vjp.grad().clone())) };
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RoundTo {
    decimals: i32,
}

impl Operator for RoundTo {
    const NAME: &'static str = "round";
    const DERIVATIVE: Derivative<Self> = Derivative::Zero;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        floating(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], wide(out.dtype()));
        let (to, back) = match self.decimals < 0 {
            true => ("divide", "multiply"),
            false => ("multiply", "divide"),
        };
        let scale = 10f64.powi(self.decimals.saturating_abs());
        let scaled = with_constant(f, to, x, scale);
        let whole = f.unary("round_nearest_even", scaled);
        let y = with_constant(f, back, whole, scale);
        Ok(f.convert(y, out.dtype()))
    }
}

impl Tensor {
    /// Rounded to so many decimal places, halves to even: PyTorch's `round(decimals=…)`. Negative
    /// ones round to tens, hundreds and so on.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for integers, unless `decimals` is 0, and for `bool`.
    #[track_caller]
    pub fn round_to(&self, decimals: i32) -> Result<Tensor> {
        let at = Location::caller();
        match decimals {
            0 => self.round(),
            _ if !self.dtype().is_float() => {
                Err(Error::dtype("round", "a floating-point dtype", self.dtype()).at(at))
            }
            _ => record_op(RoundTo { decimals }, &[self.into()]),
        }
    }
}
