//! Casts, copies and the end of gradients.

use super::only;
use crate::Tensor;
use crate::compiled;
use crate::op::{Derivative, InputType, Number, OpEntry, Operator, Saves};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::{record, record_op};
use crate::ty::{Ty, ty};
use crate::view::{Strides, ViewRule};
use xla_core::{DType, Result, Shape};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Cast {
    dtype: DType,
}

impl Operator for Cast {
    const NAME: &'static str = "to_dtype";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |_, vjp| vjp.only(vjp.grad().to_dtype(vjp.dtype(0))),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        Ok(ty(self.dtype, only(Self::NAME, inputs)?.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        Ok(match inputs[0].dtype().is_float() {
            true => from_float(f, inputs[0], out.dtype()),
            false => f.convert(inputs[0], out.dtype()),
        })
    }
}

/// Floats to small and to unsigned integers go by way of `i64`, so that -1 becomes 255 and 300
/// becomes 44 in a `u8`, as in PyTorch; the device's own conversion would stop at the limits.
fn from_float(f: &mut Func, x: Value, dtype: DType) -> Value {
    match dtype {
        DType::U8 | DType::I8 | DType::U16 | DType::I16 | DType::U32 => {
            let whole = f.convert(x, DType::I64);
            f.convert(whole, dtype)
        }
        DType::U64 => {
            let zero = f.constant(x.dtype(), x.shape(), 0.0);
            let negative = f.compare(Compare::Lt, x, zero);
            let whole = f.convert(x, DType::I64);
            let (below, above) = (f.convert(whole, dtype), f.convert(x, dtype));
            f.select(negative, below, above)
        }
        dtype => f.convert(x, dtype),
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Copy;

/// The same value as a node of its own.
pub(crate) static COPY: OpEntry = OpEntry::of(&Copy);

impl Operator for Copy {
    const NAME: &'static str = "clone";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |_, vjp| vjp.only(Ok(vjp.grad().clone())),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        only(Self::NAME, inputs)
    }

    fn lower(&self, _: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(inputs[0])
    }
}

/// The new value of a tensor that was changed in place and keeps the history of its old one, the
/// second operand: with gradients that flow on to it as they are, or as zeros.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Changed<const RECORDED: bool>;

/// A change while gradients were not recorded.
pub(crate) static CHANGED_UNRECORDED: OpEntry = OpEntry::of(&Changed::<false>);

/// A recorded change to a value that no gradient flows to.
pub(crate) static OVERWRITTEN: OpEntry = OpEntry::of(&Changed::<true>);

impl<const RECORDED: bool> Operator for Changed<RECORDED> {
    const NAME: &'static str = if RECORDED { "overwrite" } else { "change" };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |_, vjp| {
            let old = match RECORDED {
                true => vjp.zeros(1)?,
                false => vjp.grad().clone(),
            };
            Ok(smallvec::smallvec![None, Some(old)])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, _: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(inputs[0])
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Detach;

impl Operator for Detach {
    const NAME: &'static str = "detach";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        only(Self::NAME, inputs)
    }

    fn lower(&self, _: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(inputs[0])
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Some(self)
    }
}

impl ViewRule for Detach {
    fn write(&self, _: &Tensor, value: &Tensor, _: &[Number]) -> Result<Tensor> {
        Ok(value.clone())
    }

    fn shows_all(&self) -> bool {
        true
    }

    fn strides(&self, _: &Shape, strides: &[i64], _: &Shape) -> Option<Strides> {
        Some(strides.into())
    }
}

impl Tensor {
    /// The tensor with its elements converted: floats to integers truncate, anything to `bool` is
    /// whether it is not 0. A handle on this tensor when it has the dtype already.
    ///
    /// What an integer dtype cannot hold is taken modulo its size, as in PyTorch, where it fits 64
    /// bits (32 for `i32`); beyond that it is the nearest number of `i64` or `i32`. NaN becomes 0.
    ///
    /// # Errors
    /// The error of this tensor's own program, if that failed.
    #[track_caller]
    pub fn to_dtype(&self, dtype: DType) -> Result<Tensor> {
        if dtype == self.dtype() {
            return Ok(self.clone());
        }
        let whole = self.shows_every_element() || !compiled::is_active();
        let range = self
            .index_range_unnoted()
            // Of a part of an argument the next call would not know it.
            .filter(|_| whole)
            .filter(|(low, high)| fits(*low, *high, dtype));
        let cast = record_op(Cast { dtype }, &[self.into()])?;
        if range.is_some() {
            let argument = self.storage.lock().argument;
            let mut contents = cast.storage.lock();
            contents.range = range;
            contents.argument = argument;
        }
        Ok(cast)
    }

    /// A tensor of its own with the same value: PyTorch's `clone`. Gradients flow through it.
    ///
    /// # Errors
    /// The error of this tensor's own program, if that failed.
    #[track_caller]
    pub fn copy(&self) -> Result<Tensor> {
        record(&COPY, &[self.into()])
    }

    /// The same value, through which no gradient flows. It shares the storage: an in-place change
    /// of one is seen in the other.
    ///
    /// # Errors
    /// None today; the result is for what a later version may check.
    #[track_caller]
    pub fn detach(&self) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Detach);
        self.view_op(&ENTRY)
    }
}

/// Whether a cast keeps all values of this range.
pub(super) fn fits(low: i64, high: i64, dtype: DType) -> bool {
    dtype.is_integer() && {
        let bits = 8 * dtype.size() as u32 - u32::from(dtype.is_signed());
        let top = if bits >= 63 {
            i64::MAX
        } else {
            (1 << bits) - 1
        };
        let bottom = match (dtype.is_signed(), bits) {
            (false, _) => 0,
            (true, 63) => i64::MIN,
            (true, bits) => -(1 << bits),
        };
        low >= bottom && high <= top
    }
}
