//! Comparisons and truth values.

use super::*;

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
