//! Bits of integers; `bool` counts as an integer of one bit.

use super::*;

fn integral(op: &'static str, _: &[InputType], dtype: DType) -> Result<DType> {
    match dtype.is_float() {
        true => Err(Error::dtype(op, "integer dtypes or bool", dtype)),
        false => Ok(dtype),
    }
}

fn integer(op: &'static str, _: &[InputType], dtype: DType) -> Result<DType> {
    match dtype.is_integer() {
        true => Ok(dtype),
        false => Err(Error::dtype(op, "integer dtypes", dtype)),
    }
}

binary! {
    /// The bits that are set in both.
    BitwiseAnd bitwise_and: integral, |f, a, b| f.binary("and", a, b), Derivative::NotDifferentiable;

    /// The bits that are set in either.
    BitwiseOr bitwise_or: integral, |f, a, b| f.binary("or", a, b), Derivative::NotDifferentiable;

    /// The bits that are set in one of both.
    BitwiseXor bitwise_xor: integral, |f, a, b| f.binary("xor", a, b), Derivative::NotDifferentiable;

    /// The bits moved up by `other` places: `x * 2^other`, without the bits that leave. 0 when
    /// `other` is negative or no less than the number of bits.
    ShiftLeft bitwise_left_shift: integer,
    |f, a, b| f.binary("shift_left", a, b),
    Derivative::NotDifferentiable;

    /// The bits moved down by `other` places: `x / 2^other`, rounded down. 0, or -1 for a negative
    /// `x`, when `other` is negative or no less than the number of bits.
    ShiftRight bitwise_right_shift: integer,
    |f, a, b| {
        let mnemonic = match a.dtype().is_signed() {
            true => "shift_right_arithmetic",
            false => "shift_right_logical",
        };
        f.binary(mnemonic, a, b)
    },
    Derivative::NotDifferentiable;
}
