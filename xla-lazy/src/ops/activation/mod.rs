//! Activations of neural networks: those made of lines, and smooth ones.

mod gelu;
mod linear_units;
mod piecewise;
mod smooth;

pub use gelu::GeluApproximation;

use super::unary::{finish, from_input, widened, with_constant};
use super::{floating, numeric};
use crate::op::{Derivative, InputType, OpEntry, Operand, Operator, Saves};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::record;
use crate::ty::Ty;
use crate::{Number, Tensor, Vjp};
use std::panic::Location;
use xla_core::Result;

/// An operator of one tensor and some numbers, which are data:
/// `Type method(numbers): shape rule, |f, x, numbers| lowering, |x, g, numbers| derivative;`.
macro_rules! with_numbers {
    ($(
        $(#[$doc:meta])*
        $op:ident $method:ident($($number:ident),+) $(if $check:path)?: $infer:path,
        $lower:expr,
        $rule:expr;
    )*) => {$(
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        struct $op;

        impl Operator for $op {
            const NAME: &'static str = stringify!($method);
            const DERIVATIVE: Derivative<Self> = Derivative::Rule {
                saves: Saves::INPUTS,
                rule: |_, vjp: &Vjp<'_>| {
                    let rule: $crate::ops::activation::Rule = $rule;
                    let numbers = (1..vjp.len()).map(|i| vjp.operand(i)).collect::<Result<Vec<_>>>()?;
                    finish(vjp, rule(vjp.grad(), vjp.input(0)?, &numbers))
                },
            };

            fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
                $infer(Self::NAME, &inputs[..1])
            }

            fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
                let lower: fn(&mut Func, Value, &[Value]) -> Value = $lower;
                let wide = $crate::ops::unary::wide(out.dtype());
                let operands = f.align(inputs, wide, out.shape())?;
                let y = lower(f, operands[0], &operands[1..]);
                Ok(f.convert(y, out.dtype()))
            }
        }

        impl Tensor {
            $(#[$doc])*
            ///
            /// # Errors
            /// [`xla_core::Error::DTypeMismatch`] where the operator has no meaning for the dtype.
            #[track_caller]
            pub fn $method(&self, $($number: impl Into<Number>),+) -> Result<Tensor> {
                static ENTRY: OpEntry = OpEntry::of(&$op);
                $(let $number = $number.into();)+
                let checks: &[$crate::ops::activation::Check] = &[$($check)?];
                for check in checks {
                    check($op::NAME, &[$($number),+], Location::caller())?;
                }
                record(&ENTRY, &[self.into(), $(Operand::Number($number)),+])
            }
        }
    )*};
}
use with_numbers;

/// An error for numbers that an operator cannot take, at the caller's line.
type Check = fn(&'static str, &[Number], &'static Location<'static>) -> Result<()>;

/// A derivative from the output's gradient, the input and the numbers.
type Rule = fn(&Tensor, &Tensor, &[Operand<'_>]) -> Result<Tensor>;

/// `x` compared with a constant.
fn compared(f: &mut Func, direction: Compare, x: Value, constant: f64) -> Value {
    let constant = f.constant(x.dtype(), x.shape(), constant);
    f.compare(direction, x, constant)
}
