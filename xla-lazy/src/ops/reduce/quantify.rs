//! How many elements are not 0: all, any, a number.

use super::reduced;
use crate::Tensor;
use crate::op::{Derivative, InputType, Operator};
use crate::ops::only;
use crate::stablehlo::{Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use xla_core::{DType, Dims, IntoAxes, Result};

/// Whether all, or any, elements are not 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Quantify<const ALL: bool> {
    axes: Dims,
    keepdim: bool,
}

impl<const ALL: bool> Operator for Quantify<ALL> {
    const NAME: &'static str = if ALL { "all" } else { "any" };
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        // PyTorch's first dtype of truth values answers in kind.
        let dtype = match input.dtype() {
            DType::U8 => DType::U8,
            _ => DType::Bool,
        };
        Ok(ty(dtype, &reduced(input.shape(), &self.axes, self.keepdim)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], DType::Bool);
        let reduction = if ALL { Reduction::And } else { Reduction::Or };
        let value = f.reduce(reduction, x, &self.axes);
        let value = f.convert(value, out.dtype());
        Ok(f.reshape(value, out.shape()))
    }
}

impl Tensor {
    /// Whether all elements over these axes (`()` for all) are not 0; `bool`, but
    /// `u8` of `u8`.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn all(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("all", dims)?;
        record_op(Quantify::<true> { axes, keepdim }, &[self.into()])
    }

    /// Whether any element over these axes (`()` for all) is not 0; `bool`, but `u8`
    /// of `u8`.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn any(&self, dims: impl IntoAxes, keepdim: bool) -> Result<Tensor> {
        let axes = self.axes("any", dims)?;
        record_op(Quantify::<false> { axes, keepdim }, &[self.into()])
    }

    /// How many elements over these axes (`()` for all) are not 0; `i64`. A NaN is not 0.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn count_nonzero(&self, dims: impl IntoAxes) -> Result<Tensor> {
        let axes = self.axes("count_nonzero", dims)?;
        self.to_dtype(DType::Bool)?.sum(axes.as_slice(), false)
    }
}
