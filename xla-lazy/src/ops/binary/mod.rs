//! Elementwise operators of two or three operands, with broadcasting and promotion.

mod arithmetic;
mod bitwise;
mod clamp;
mod combined;
mod compare;
mod divide;
mod pick;
mod power;
mod select;

pub use clamp::NanToNum;
pub use divide::RoundingMode;

use super::broadcast;
use super::unary::{wide, with_constant};
use crate::op::{Derivative, InputType, Number, OpEntry, Operand, Operator, Saves, promote};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::{record, record_op};
use crate::ty::{Ty, ty};
use crate::{Gradients, Tensor, Vjp};
use xla_core::{DType, Error, Result};

/// One elementwise operator of two operands:
/// `Type method: output dtype rule, |f, a, b| lowering, derivative;`.
macro_rules! binary {
    ($(
        $(#[$doc:meta])*
        $op:ident $method:ident: $dtype:path, $lower:expr, $derivative:expr;
    )*) => {$(
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        struct $op;

        impl Operator for $op {
            const NAME: &'static str = stringify!($method);
            const DERIVATIVE: Derivative<Self> = $derivative;

            #[inline]
            fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
                infer(Self::NAME, inputs, $dtype)
            }

            fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
                let lower: fn(&mut Func, Value, Value) -> Value = $lower;
                let dtype = compute_dtype(inputs, out.dtype());
                let operands = f.align(inputs, dtype, out.shape())?;
                let result = lower(f, operands[0], operands[1]);
                Ok(f.convert(result, out.dtype()))
            }
        }

        impl Tensor {
            $(#[$doc])*
            ///
            /// Operands broadcast and promote each other; a number never promotes within its
            /// category.
            ///
            /// # Errors
            /// [`xla_core::Error::Broadcast`], or [`xla_core::Error::DTypeMismatch`] where the
            /// operator has no meaning for the dtypes.
            #[track_caller]
            #[inline]
            pub fn $method<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
                static ENTRY: OpEntry = OpEntry::of(&$op);
                record(&ENTRY, &[self.into(), other.into()])
            }
        }
    )*};
}
use binary;

/// Which dtype an operator gives, from its operands and the dtype they promote to.
type Rule = fn(&'static str, &[InputType], DType) -> Result<DType>;

/// The output of an operator whose operands broadcast and promote each other.
#[inline]
fn infer(op: &'static str, inputs: &[InputType], rule: Rule) -> Result<Ty> {
    if let Some(same) = same_type(inputs)
        && rule(op, inputs, same.dtype())? == same.dtype()
    {
        return Ok(same);
    }
    let dtype = rule(op, inputs, promote(inputs))?;
    Ok(ty(dtype, &broadcast(op, inputs)?))
}

/// The type of all tensor operands if it is one, and no number would promote it: the common case,
/// which needs no look-up.
#[inline]
fn same_type(inputs: &[InputType]) -> Option<Ty> {
    match inputs {
        [InputType::Tensor(a), InputType::Tensor(b)] if std::ptr::eq(*a, *b) => Some(a),
        [InputType::Tensor(a), InputType::Number(c)]
        | [InputType::Number(c), InputType::Tensor(a)]
            if *c <= a.dtype().category() =>
        {
            Some(a)
        }
        _ => None,
    }
}

/// Half-precision tensors meet a number in `f32` and are rounded once, after the operation.
fn compute_dtype(inputs: &[Value], out: DType) -> DType {
    if inputs.iter().any(|v| v.dtype() == DType::F32) {
        wide(out)
    } else {
        out
    }
}

/// `lower` of operands in `f32` where they are in half precision, rounded once.
fn widened(f: &mut Func, a: Value, b: Value, lower: fn(&mut Func, Value, Value) -> Value) -> Value {
    let (narrow, dtype) = (a.dtype(), wide(a.dtype()));
    let (a, b) = (f.convert(a, dtype), f.convert(b, dtype));
    let result = lower(f, a, b);
    f.convert(result, narrow)
}

fn any(_: &'static str, _: &[InputType], dtype: DType) -> Result<DType> {
    Ok(dtype)
}

fn number(op: &'static str, _: &[InputType], dtype: DType) -> Result<DType> {
    match dtype {
        DType::Bool => Err(Error::dtype(
            op,
            "an integer or floating-point dtype",
            dtype,
        )),
        _ => Ok(dtype),
    }
}

/// Integers compute in `f32`.
fn float(_: &'static str, _: &[InputType], dtype: DType) -> Result<DType> {
    Ok(if dtype.is_float() { dtype } else { DType::F32 })
}

/// Integers are refused.
fn floating(op: &'static str, _: &[InputType], dtype: DType) -> Result<DType> {
    match dtype.is_float() {
        true => Ok(dtype),
        false => Err(Error::dtype(op, "a floating-point dtype", dtype)),
    }
}

/// Gradients for both operands, each reduced to its operand's shape and dtype.
fn both(
    vjp: &Vjp<'_>,
    left: impl FnOnce() -> Result<Tensor>,
    right: impl FnOnce() -> Result<Tensor>,
) -> Result<Gradients> {
    let left = if vjp.needs(0) {
        Some(vjp.reduce(0, &left()?)?)
    } else {
        None
    };
    let right = if vjp.needs(1) {
        Some(vjp.reduce(1, &right()?)?)
    } else {
        None
    };
    Ok(smallvec::smallvec![left, right])
}

/// A number or tensor operand of a rule, as a tensor to compute with: truth values become numbers.
fn tensor_of(vjp: &Vjp<'_>, index: usize) -> Result<Tensor> {
    match vjp.operand(index)? {
        Operand::Tensor(tensor) if tensor.dtype() == DType::Bool => {
            tensor.to_dtype(vjp.output_type().dtype())
        }
        Operand::Tensor(tensor) => Ok(tensor.clone()),
        Operand::Number(number) => {
            let options = (vjp.output_type().dtype(), vjp.grad().device());
            Tensor::full((), number, options)
        }
    }
}
