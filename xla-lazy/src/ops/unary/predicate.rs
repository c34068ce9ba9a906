//! Questions about each element, and bits.

use super::*;
use crate::stablehlo::Compare;
use xla_core::Error;

/// The operand's type, which must be of integers or `bool`.
fn integral(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    let input = only(op, inputs)?;
    match input.dtype().is_float() {
        true => Err(Error::dtype(op, "an integer dtype or bool", input.dtype())),
        false => Ok(input),
    }
}

/// A question about floats, which integers all answer alike.
fn of_float(f: &mut Func, x: Value, otherwise: bool, ask: fn(&mut Func, Value) -> Value) -> Value {
    if x.dtype().is_float() {
        ask(f, x)
    } else {
        f.constant(DType::Bool, x.shape(), f64::from(otherwise))
    }
}

/// Whether each element equals a constant.
fn equals(f: &mut Func, x: Value, constant: f64) -> Value {
    let constant = f.constant(x.dtype(), x.shape(), constant);
    f.compare(Compare::Eq, x, constant)
}

/// Whether the sign bit of each element is set, that of -0 and of NaN included.
pub(in crate::ops) fn sign_bit(f: &mut Func, x: Value) -> Value {
    let integer = match x.dtype() {
        DType::F16 | DType::BF16 => DType::I16,
        DType::F32 => DType::I32,
        DType::F64 => DType::I64,
        other => other,
    };
    let bits = if x.dtype() == integer {
        x
    } else {
        let out = crate::ty::ty(integer, x.shape());
        f.call(format_args!("stablehlo.bitcast_convert {x}"), &[x], out)
    };
    let zero = f.constant_int(integer, x.shape(), 0);
    f.compare(Compare::Lt, bits, zero)
}

unary! {
    /// Whether each element is NaN.
    IsNan isnan: boolean,
    |f, x, _| f.compare(Compare::Ne, x, x),
    Derivative::NotDifferentiable;

    /// Whether each element is infinite.
    IsInf isinf: boolean,
    |f, x, _| of_float(f, x, false, |f, x| {
        let size = f.unary("abs", x);
        equals(f, size, f64::INFINITY)
    }),
    Derivative::NotDifferentiable;

    /// Whether each element is `inf`.
    IsPosInf isposinf: boolean,
    |f, x, _| of_float(f, x, false, |f, x| equals(f, x, f64::INFINITY)),
    Derivative::NotDifferentiable;

    /// Whether each element is `-inf`.
    IsNegInf isneginf: boolean,
    |f, x, _| of_float(f, x, false, |f, x| equals(f, x, f64::NEG_INFINITY)),
    Derivative::NotDifferentiable;

    /// Whether each element is neither infinite nor NaN.
    IsFinite isfinite: boolean,
    |f, x, out| match x.dtype().is_float() {
        true => f.call(format_args!("stablehlo.is_finite {x}"), &[x], out),
        false => f.constant(DType::Bool, x.shape(), 1.0),
    },
    Derivative::NotDifferentiable;

    /// Whether the sign bit of each element is set: negative, -0 or a NaN with a sign.
    SignBit signbit: boolean,
    |f, x, _| sign_bit(f, x),
    Derivative::NotDifferentiable;

    /// Whether each element is 0 (or false).
    LogicalNot logical_not: boolean,
    |f, x, _| equals(f, x, 0.0),
    Derivative::NotDifferentiable;

    /// The complement of each bit; the opposite of a `bool`.
    BitwiseNot bitwise_not: integral,
    |f, x, _| f.unary("not", x),
    Derivative::NotDifferentiable;
}
