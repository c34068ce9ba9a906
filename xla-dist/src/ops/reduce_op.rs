//! How collectives combine.

use xla_core::{DType, Error, Result};
use xla_lazy::stablehlo::{Func, Reduction, Value};
use xla_lazy::{Number, Tensor};

/// How a reducing collective combines the members' tensors.
///
/// On `bool` tensors `Sum` and `Max` mean *or*, `Product` and `Min` mean *and*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum. Integers wrap.
    Sum,
    /// The sum divided by the number of ranks; float dtypes only. PyTorch's `AVG`.
    Mean,
    /// The product. Integers wrap.
    Product,
    /// The least value.
    Min,
    /// The greatest value.
    Max,
    /// Bitwise *and*, of integers and `bool`. PyTorch's `BAND`.
    And,
    /// Bitwise *or*, of integers and `bool`. PyTorch's `BOR`.
    Or,
}

impl ReduceOp {
    /// The same, with the result multiplied by `factor`. The factor is data: a new one compiles
    /// nothing.
    ///
    /// ```
    /// use xla_dist::{AllReduceOptions, ReduceOp};
    /// let half_the_sum: AllReduceOptions = ReduceOp::Sum.scale(0.5);
    /// # let _ = half_the_sum;
    /// ```
    pub fn scale(self, factor: impl Into<Number>) -> AllReduceOptions {
        AllReduceOptions {
            op: self,
            scale: Some(factor.into()),
        }
    }

    pub(super) fn reduction(self, dtype: DType) -> Reduction {
        match (self, dtype) {
            (ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Max | ReduceOp::Or, DType::Bool) => {
                Reduction::Or
            }
            (ReduceOp::Product | ReduceOp::Min | ReduceOp::And, DType::Bool) => Reduction::And,
            (ReduceOp::Sum | ReduceOp::Mean, _) => Reduction::Sum,
            (ReduceOp::Product, _) => Reduction::Product,
            (ReduceOp::Min, _) => Reduction::Min,
            (ReduceOp::Max, _) => Reduction::Max,
            (ReduceOp::And, _) => Reduction::And,
            (ReduceOp::Or, _) => Reduction::Or,
        }
    }

    /// Whether this combination exists for the dtype.
    pub(super) fn check(self, op: &'static str, dtype: DType) -> Result<()> {
        let expected = match self {
            ReduceOp::Mean if !dtype.is_float() => "a float dtype for ReduceOp::Mean",
            ReduceOp::And | ReduceOp::Or if dtype.is_float() => {
                "an integer dtype or bool for ReduceOp::And and ReduceOp::Or"
            }
            _ => return Ok(()),
        };
        Err(Error::dtype(op, expected, dtype))
    }

    /// Lowers a reduction by `across`, which is given how and what to combine. Half precision is
    /// combined in `f32`: a sum is then rounded once, at the end, rather than once a rank, and on
    /// CPUs it is the faster way.
    pub(super) fn lower(
        self,
        f: &mut Func,
        x: Value,
        size: usize,
        across: impl FnOnce(&mut Func, Reduction, Value) -> Result<Value>,
    ) -> Result<Value> {
        let wide = match x.dtype() {
            DType::F16 | DType::BF16 => f.convert(x, DType::F32),
            _ => x,
        };
        let mut y = across(f, self.reduction(x.dtype()), wide)?;
        if self == ReduceOp::Mean {
            let count = f.constant(y.dtype(), y.shape(), size as f64);
            y = f.binary("divide", y, count);
        }
        Ok(f.convert(y, x.dtype()))
    }
}

/// A [`ReduceOp`] with a factor for the result; made by [`ReduceOp::scale`] or from the operation
/// alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllReduceOptions {
    pub(super) op: ReduceOp,
    scale: Option<Number>,
}

impl AllReduceOptions {
    /// The result times the factor, in the result's dtype.
    pub(super) fn scaled(self, tensor: Tensor) -> Result<Tensor> {
        match self.scale {
            Some(factor) => tensor.mul(factor)?.to_dtype(tensor.dtype()),
            None => Ok(tensor),
        }
    }
}

impl From<ReduceOp> for AllReduceOptions {
    fn from(op: ReduceOp) -> Self {
        AllReduceOptions { op, scale: None }
    }
}
