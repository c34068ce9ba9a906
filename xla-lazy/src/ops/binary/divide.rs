//! Quotients and remainders.
//!
//! An integer divided by 0 has no value in mathematics, and PyTorch stops there. A program on a
//! device cannot: the quotient is -1 and the remainder is the dividend.

use super::*;
use crate::ops::unary::{sign_bit, truncated};

/// How a quotient is rounded: PyTorch's `rounding_mode`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RoundingMode {
    /// Towards 0, as integers are divided in C and Rust.
    Trunc,
    /// Towards negative infinity, as in Python's `//`.
    Floor,
}

/// Whether there is a remainder whose sign is not the divisor's.
fn is_off(f: &mut Func, remainder: Value, b: Value) -> Value {
    let zero = f.constant(b.dtype(), b.shape(), 0.0);
    let some = f.compare(Compare::Ne, remainder, zero);
    let below = f.compare(Compare::Lt, remainder, zero);
    let divisor_below = f.compare(Compare::Lt, b, zero);
    let differs = f.compare(Compare::Ne, below, divisor_below);
    f.binary("and", some, differs)
}

/// `a` modulo `b`, with the sign of `b`.
fn modulo(f: &mut Func, a: Value, b: Value) -> Value {
    let remainder = f.binary("remainder", a, b);
    let off = is_off(f, remainder, b);
    let moved = f.binary("add", remainder, b);
    f.select(off, moved, remainder)
}

/// The quotient rounded down.
fn floor_quotient(f: &mut Func, a: Value, b: Value) -> Value {
    let quotient = f.binary("divide", a, b);
    let remainder = f.binary("remainder", a, b);
    let off = is_off(f, remainder, b);
    let zero = f.constant(b.dtype(), b.shape(), 0.0);
    let by_zero = f.compare(Compare::Eq, b, zero);
    if !a.dtype().is_float() {
        let below = with_constant(f, "subtract", quotient, 1.0);
        let floor = f.select(off, below, quotient);
        return f.select(by_zero, quotient, floor);
    }
    // A rounded quotient may reach the next whole number; without the remainder it is whole.
    let multiple = f.binary("subtract", a, remainder);
    let whole = f.binary("divide", multiple, b);
    let below = with_constant(f, "subtract", whole, 1.0);
    let floor = f.select(off, below, whole);
    let floor = f.unary("round_nearest_even", floor);
    let nothing = f.compare(Compare::Eq, floor, zero);
    let negative = sign_bit(f, quotient);
    let minus_zero = f.unary("negate", zero);
    let signed_zero = f.select(negative, minus_zero, zero);
    let floor = f.select(nothing, signed_zero, floor);
    f.select(by_zero, quotient, floor)
}

binary! {
    /// `x / other`; integers divide as `f32`.
    Div div: float,
    |f, a, b| f.binary("divide", a, b),
    Derivative::Rule { saves: Saves::CROSSWISE.and_input(1), rule: |_, vjp| {
        both(
            vjp,
            || vjp.grad().div(vjp.operand(1)?),
            || {
                let b = tensor_of(vjp, 1)?;
                vjp.grad().mul(vjp.operand(0)?)?.div(&b.mul(&b)?)?.neg()
            },
        )
    } };

    /// What is left of `x` after `other` was taken away as often as it fits, with the sign of `x`:
    /// C's `fmod` and Rust's `%`. NaN for a divisor of 0; for integers, `x`.
    Fmod fmod: number,
    |f, a, b| widened(f, a, b, |f, a, b| f.binary("remainder", a, b)),
    Derivative::Rule { saves: Saves::INPUTS, rule: |_, vjp| {
        remainder_gradients(vjp, RoundingMode::Trunc)
    } };

    /// `x` modulo `other`, with the sign of `other`: Python's `%`. NaN for a divisor of 0; for
    /// integers, `x`.
    Remainder remainder: number,
    |f, a, b| widened(f, a, b, modulo),
    Derivative::Rule { saves: Saves::INPUTS, rule: |_, vjp| {
        remainder_gradients(vjp, RoundingMode::Floor)
    } };
}

fn remainder_gradients(vjp: &Vjp<'_>, mode: RoundingMode) -> Result<Gradients> {
    both(
        vjp,
        || Ok(vjp.grad().clone()),
        || {
            let times = tensor_of(vjp, 0)?.div_rounded(vjp.operand(1)?, mode)?;
            vjp.grad().mul(&times)?.neg()
        },
    )
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DivRounded {
    mode: RoundingMode,
}

impl Operator for DivRounded {
    const NAME: &'static str = "div";
    const DERIVATIVE: Derivative<Self> = Derivative::Zero;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        infer(Self::NAME, inputs, number)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let operands = f.align(inputs, wide(out.dtype()), out.shape())?;
        let quotient = match self.mode {
            RoundingMode::Floor => floor_quotient(f, operands[0], operands[1]),
            RoundingMode::Trunc => {
                let quotient = f.binary("divide", operands[0], operands[1]);
                truncated(f, quotient)
            }
        };
        Ok(f.convert(quotient, out.dtype()))
    }
}

impl Tensor {
    /// `x / other` rounded to a whole number: PyTorch's `div(other, rounding_mode=…)`. Integers stay
    /// integers; one divided by 0 is -1. The gradient is 0.
    ///
    /// # Errors
    /// [`Error::Broadcast`]; [`Error::DTypeMismatch`] for `bool`.
    #[track_caller]
    pub fn div_rounded<'a>(
        &self,
        other: impl Into<Operand<'a>>,
        rounding_mode: RoundingMode,
    ) -> Result<Tensor> {
        let op = DivRounded {
            mode: rounding_mode,
        };
        record_op(op, &[self.into(), other.into()])
    }

    /// [`Tensor::div_rounded`] down: Python's `//`.
    ///
    /// # Errors
    /// As [`Tensor::div_rounded`].
    #[track_caller]
    pub fn floor_divide<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
        self.div_rounded(other, RoundingMode::Floor)
    }

    /// `number / x`.
    ///
    /// # Errors
    /// As [`Tensor::div`].
    #[track_caller]
    pub fn rdiv(&self, number: impl Into<Number>) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Div);
        record(&ENTRY, &[Operand::Number(number.into()), self.into()])
    }
}
