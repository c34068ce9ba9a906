//! Elementwise operators of two or three operands, with broadcasting and promotion.

use super::broadcast;
use crate::op::{Derivative, InputType, OpEntry, Operand, Operator, Saves, promote};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::record;
use crate::ty::{Ty, ty};
use crate::{Gradients, Tensor, Vjp};
use xla_core::{DType, Error, Result, Shape};

/// One elementwise operator of two operands:
/// `Type method: output dtype rule, "stablehlo mnemonic", derivative;`.
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
                same_type(inputs).filter(|t| $dtype(Self::NAME, t.dtype()).is_ok_and(|d| d == t.dtype()))
                    .map_or_else(|| {
                        let dtype = $dtype(Self::NAME, promote(inputs))?;
                        Ok(ty(dtype, &broadcast(Self::NAME, inputs)?))
                    }, Ok)
            }

            fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
                let lower: fn(&mut Func, Value, Value) -> Value = $lower;
                let wide = compute_dtype(inputs, out.dtype());
                let operands = f.align(inputs, wide, out.shape())?;
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
            /// [`xla_core::Error::Broadcast`], or the dtype's where the operator has no meaning
            /// for it.
            #[track_caller]
            #[inline]
            pub fn $method<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
                static ENTRY: OpEntry = OpEntry::of(&$op);
                record(&ENTRY, &[self.into(), other.into()])
            }
        }
    )*};
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
    let half = out == DType::F16 || out == DType::BF16;
    if half && inputs.iter().any(|v| v.dtype() == DType::F32) {
        DType::F32
    } else {
        out
    }
}

fn any(_: &'static str, dtype: DType) -> Result<DType> {
    Ok(dtype)
}

fn number(op: &'static str, dtype: DType) -> Result<DType> {
    match dtype {
        DType::Bool => Err(Error::dtype(
            op,
            "an integer or floating-point dtype",
            dtype,
        )),
        _ => Ok(dtype),
    }
}

fn float(_: &'static str, dtype: DType) -> Result<DType> {
    Ok(if dtype.is_float() { dtype } else { DType::F32 })
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

/// A number or tensor operand of a rule, as a tensor to call methods on.
fn tensor_of(vjp: &Vjp<'_>, index: usize) -> Result<Tensor> {
    match vjp.operand(index)? {
        Operand::Tensor(tensor) => Ok(tensor.clone()),
        Operand::Number(number) => {
            let options = (vjp.output_type().dtype(), vjp.grad().device());
            Tensor::full((), number, options)
        }
    }
}

/// The derivative of `maximum` and `minimum`: to the operand taken, halved where they are equal.
fn extremum(
    vjp: &Vjp<'_>,
    first_wins: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Gradients> {
    let (a, b) = (tensor_of(vjp, 0)?, tensor_of(vjp, 1)?);
    let share = |x: &Tensor, y: &Tensor| {
        let wins = first_wins(x, y)?.to_dtype(vjp.output_type().dtype())?;
        let ties = x.eq(y)?.to_dtype(vjp.output_type().dtype())?.mul(0.5)?;
        vjp.grad().mul(&wins.add(&ties)?)
    };
    both(vjp, || share(&a, &b), || share(&b, &a))
}

binary! {
    /// `x + other`; logical or for `bool`.
    Add add: any,
    |f, a, b| if a.dtype() == DType::Bool { f.binary("or", a, b) } else { f.binary("add", a, b) },
    Derivative::Rule { saves: Saves::NONE, rule: |_, vjp| {
        both(vjp, || Ok(vjp.grad().clone()), || Ok(vjp.grad().clone()))
    } };

    /// `x - other`.
    Sub sub: number,
    |f, a, b| f.binary("subtract", a, b),
    Derivative::Rule { saves: Saves::NONE, rule: |_, vjp| {
        both(vjp, || Ok(vjp.grad().clone()), || vjp.grad().neg())
    } };

    /// `x * other`; logical and for `bool`.
    Mul mul: any,
    |f, a, b| if a.dtype() == DType::Bool { f.binary("and", a, b) } else { f.binary("multiply", a, b) },
    Derivative::Rule { saves: Saves::CROSSWISE, rule: |_, vjp| {
        both(vjp, || vjp.grad().mul(vjp.operand(1)?), || vjp.grad().mul(vjp.operand(0)?))
    } };

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

    /// `x` to the power `other`.
    Pow pow: number,
    |f, a, b| f.binary("power", a, b),
    Derivative::Rule { saves: Saves::INPUTS.and_output(), rule: |_, vjp| {
        both(
            vjp,
            || {
                let (a, b) = (tensor_of(vjp, 0)?, tensor_of(vjp, 1)?);
                // x^0 is constant, also where x^-1 would be infinite.
                let slope = b.mul(&a.pow(&b.sub(1)?)?)?;
                vjp.grad().mul(&b.eq(0)?.logical_not()?.select_from(&slope, 0)?)
            },
            || {
                let a = tensor_of(vjp, 0)?;
                // The limit of x^y log x at x = 0 is 0 for y > 0.
                let scaled = vjp.output()?.mul(&a.log()?)?;
                vjp.grad().mul(&a.ne(0)?.select_from(&scaled, 0)?)
            },
        )
    } };

    /// The larger of `x` and `other`; NaN where either is.
    Maximum maximum: any,
    |f, a, b| f.binary("maximum", a, b),
    Derivative::Rule { saves: Saves::INPUTS, rule: |_, vjp| extremum(vjp, |x, y| x.gt(y)) };

    /// The smaller of `x` and `other`; NaN where either is.
    Minimum minimum: any,
    |f, a, b| f.binary("minimum", a, b),
    Derivative::Rule { saves: Saves::INPUTS, rule: |_, vjp| extremum(vjp, |x, y| x.lt(y)) };
}

/// One operator from two operands to `bool`, computed in their common dtype.
macro_rules! predicate {
    ($($(#[$doc:meta])* $op:ident $method:ident: $lower:expr;)*) => {$(
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        struct $op;

        impl Operator for $op {
            const NAME: &'static str = stringify!($method);
            const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

            fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
                Ok(ty(DType::Bool, &broadcast(Self::NAME, inputs)?))
            }

            fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
                let lower: fn(&mut Func, Value, Value) -> Value = $lower;
                let types: Vec<InputType> = inputs.iter().map(|v| InputType::Tensor(v.ty())).collect();
                let operands = f.align(inputs, promote(&types), out.shape())?;
                Ok(lower(f, operands[0], operands[1]))
            }
        }

        impl Tensor {
            $(#[$doc])*
            ///
            /// # Errors
            /// [`xla_core::Error::Broadcast`].
            #[track_caller]
            pub fn $method<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
                static ENTRY: OpEntry = OpEntry::of(&$op);
                record(&ENTRY, &[self.into(), other.into()])
            }
        }
    )*};
}

fn logical(f: &mut Func, mnemonic: &str, a: Value, b: Value) -> Value {
    let (a, b) = (f.convert(a, DType::Bool), f.convert(b, DType::Bool));
    f.binary(mnemonic, a, b)
}

predicate! {
    /// `x == other`, as `bool`; false for NaN.
    Eq_ eq: |f, a, b| f.compare(Compare::Eq, a, b);
    /// `x != other`, as `bool`; true for NaN.
    Ne ne: |f, a, b| f.compare(Compare::Ne, a, b);
    /// `x < other`, as `bool`.
    Lt lt: |f, a, b| f.compare(Compare::Lt, a, b);
    /// `x <= other`, as `bool`.
    Le le: |f, a, b| f.compare(Compare::Le, a, b);
    /// `x > other`, as `bool`.
    Gt gt: |f, a, b| f.compare(Compare::Gt, a, b);
    /// `x >= other`, as `bool`.
    Ge ge: |f, a, b| f.compare(Compare::Ge, a, b);
    /// Whether both are not 0.
    LogicalAnd logical_and: |f, a, b| logical(f, "and", a, b);
    /// Whether either is not 0.
    LogicalOr logical_or: |f, a, b| logical(f, "or", a, b);
    /// Whether exactly one is not 0.
    LogicalXor logical_xor: |f, a, b| logical(f, "xor", a, b);
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Where;

impl Operator for Where {
    const NAME: &'static str = "where";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(0),
        rule: |_, vjp| {
            let condition = vjp.input(0)?;
            let part = |index: usize, mask: Result<Tensor>| -> Result<Option<Tensor>> {
                if !vjp.needs(index) {
                    return Ok(None);
                }
                vjp.reduce(index, &mask?.select_from(vjp.grad(), 0)?)
                    .map(Some)
            };
            Ok(smallvec::smallvec![
                None,
                part(1, Ok(condition.clone()))?,
                part(2, condition.logical_not())?
            ])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let condition = inputs[0].tensor(Self::NAME)?;
        if condition.dtype() != DType::Bool {
            return Err(Error::dtype(
                Self::NAME,
                "a bool condition",
                condition.dtype(),
            ));
        }
        let shape: Shape = broadcast(Self::NAME, inputs)?;
        Ok(ty(promote(&inputs[1..]), &shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let condition = f.broadcast_to(inputs[0], out.shape())?;
        let branches = f.align(&inputs[1..], out.dtype(), out.shape())?;
        Ok(f.select(condition, branches[0], branches[1]))
    }
}

impl Tensor {
    /// `on_true` where this `bool` tensor is true, else `on_false`: PyTorch's
    /// `torch.where(condition, on_true, on_false)`. All three broadcast.
    ///
    /// # Errors
    /// [`xla_core::Error::DTypeMismatch`] when this tensor is not `bool`,
    /// [`xla_core::Error::Broadcast`].
    #[track_caller]
    pub fn select_from<'a>(
        &self,
        on_true: impl Into<Operand<'a>>,
        on_false: impl Into<Operand<'a>>,
    ) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Where);
        record(&ENTRY, &[self.into(), on_true.into(), on_false.into()])
    }

    /// This tensor where `condition` (`bool`) is true, else `other`: PyTorch's
    /// `x.where(condition, other)`.
    ///
    /// # Errors
    /// As [`Tensor::select_from`].
    #[track_caller]
    pub fn where_<'a>(
        &'a self,
        condition: &Tensor,
        other: impl Into<Operand<'a>>,
    ) -> Result<Tensor> {
        condition.select_from(self, other)
    }

    /// The elements limited to `min..=max`; either may be absent. A NaN stays NaN.
    ///
    /// # Errors
    /// [`xla_core::Error::Argument`] when both are absent.
    #[track_caller]
    pub fn clamp(
        &self,
        min: Option<impl Into<crate::Number>>,
        max: Option<impl Into<crate::Number>>,
    ) -> Result<Tensor> {
        let (min, max) = (min.map(Into::into), max.map(Into::into));
        if min.is_none() && max.is_none() {
            return Err(
                Error::argument("clamp", "min, max", "at least one of them", "neither")
                    .at(std::panic::Location::caller()),
            );
        }
        let mut x = self.clone();
        if let Some(min) = min {
            x = x.maximum(min)?;
        }
        if let Some(max) = max {
            x = x.minimum(max)?;
        }
        Ok(x)
    }
}

impl Tensor {
    /// `number - x`.
    ///
    /// # Errors
    /// As [`Tensor::sub`].
    #[track_caller]
    pub fn rsub(&self, number: impl Into<crate::Number>) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Sub);
        record(&ENTRY, &[Operand::Number(number.into()), self.into()])
    }

    /// `number / x`.
    ///
    /// # Errors
    /// As [`Tensor::div`].
    #[track_caller]
    pub fn rdiv(&self, number: impl Into<crate::Number>) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Div);
        record(&ENTRY, &[Operand::Number(number.into()), self.into()])
    }
}
