//! Elementwise operators of one tensor, one file a kind of function.

mod arithmetic;
mod exponential;
mod predicate;
mod rounding;
mod special;
mod trigonometric;

pub(super) use predicate::sign_bit;
pub(super) use rounding::truncated;

use super::{boolean, float_of, floating, numeric, only};
use crate::op::{Derivative, InputType, OpEntry, Operator, Saves};
use crate::stablehlo::{Func, Value};
use crate::trace::record;
use crate::ty::Ty;
use crate::{Gradients, Tensor, Vjp};
use xla_core::{DType, Result};

/// One elementwise operator of one operand:
/// `Type method: shape rule, |f, x, out| lowering, derivative;`.
macro_rules! unary {
    ($(
        $(#[$doc:meta])*
        $op:ident $method:ident: $infer:expr,
        $lower:expr,
        $derivative:expr;
    )*) => {$(
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        struct $op;

        impl Operator for $op {
            const NAME: &'static str = stringify!($method);
            const DERIVATIVE: Derivative<Self> = $derivative;

            fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
                $infer(Self::NAME, inputs)
            }

            fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
                let lower: fn(&mut Func, Value, Ty) -> Value = $lower;
                Ok(lower(f, inputs[0], out))
            }
        }

        impl Tensor {
            $(#[$doc])*
            ///
            /// # Errors
            /// [`xla_core::Error::DTypeMismatch`] where the operator has no meaning for the dtype.
            #[track_caller]
            #[inline]
            pub fn $method(&self) -> Result<Tensor> {
                static ENTRY: OpEntry = OpEntry::of(&$op);
                record(&ENTRY, &[self.into()])
            }
        }
    )*};
}
pub(super) use unary;

/// A function of real numbers, `Type method: |f, x| lowering, derivative;`: integers become `f32`,
/// and half precision is computed in `f32` and rounded once.
macro_rules! real {
    ($(
        $(#[$doc:meta])*
        $op:ident $method:ident: $lower:expr, $derivative:expr;
    )*) => {
        $crate::ops::unary::unary! {$(
            $(#[$doc])*
            ///
            /// Integers become `f32`.
            $op $method: $crate::ops::float_of,
            |f, x, out| $crate::ops::unary::widened(f, x, out, $lower),
            $derivative;
        )*}
    };
}
pub(super) use real;

/// A rule that reads the output `y`: from `(gradient, y)`.
macro_rules! from_output {
    ($rule:expr) => {
        Derivative::Rule {
            saves: Saves::OUTPUT,
            rule: |_, vjp: &Vjp<'_>| {
                let rule: fn(&Tensor, &Tensor) -> Result<Tensor> = $rule;
                $crate::ops::unary::finish(vjp, rule(vjp.grad(), vjp.output()?))
            },
        }
    };
}
use from_output;

/// A rule that reads the input `x`: from `(gradient, x)`.
macro_rules! from_input {
    ($rule:expr) => {
        Derivative::Rule {
            saves: Saves::INPUTS,
            rule: |_, vjp: &Vjp<'_>| {
                let rule: fn(&Tensor, &Tensor) -> Result<Tensor> = $rule;
                $crate::ops::unary::finish(vjp, rule(vjp.grad(), vjp.input(0)?))
            },
        }
    };
}
pub(super) use from_input;

/// The gradient in the input's dtype.
pub(super) fn finish(vjp: &Vjp<'_>, gradient: Result<Tensor>) -> Result<Gradients> {
    vjp.only(gradient?.to_dtype(vjp.dtype(0)))
}

/// The dtype that a function of several operations is computed in: half precision would lose to
/// rounding at each.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        _ => dtype,
    }
}

/// `lower` of `x` in the output's dtype or, where that is half precision, in `f32`.
pub(super) fn widened(
    f: &mut Func,
    x: Value,
    out: Ty,
    lower: fn(&mut Func, Value) -> Value,
) -> Value {
    let x = f.convert(x, wide(out.dtype()));
    let y = lower(f, x);
    f.convert(y, out.dtype())
}

/// `a` and a constant, combined.
pub(super) fn with_constant(f: &mut Func, mnemonic: &str, a: Value, constant: f64) -> Value {
    let constant = f.constant(a.dtype(), a.shape(), constant);
    f.binary(mnemonic, a, constant)
}
