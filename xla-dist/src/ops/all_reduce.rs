//! `all_reduce`: every rank gets the combination of all ranks' tensors.

use super::separate::separate;
use super::{ReplicaGroups, reduce_across};
use crate::group::{self, ProcessGroup};
use xla_core::{DType, Error, Result};
use xla_lazy::stablehlo::{Func, Reduction, Value};
use xla_lazy::{
    Derivative, Gradients, InputType, Number, Operator, Saves, Tensor, Ty, Vjp, no_grad,
    record_collective,
};

/// How an [`all_reduce`] combines.
///
/// On `bool` tensors `Sum` and `Max` mean *or*, `Product` and `Min` mean *and*.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// The sum. Integers wrap.
    Sum,
    /// The sum divided by the number of ranks; float dtypes only.
    Mean,
    /// The product. Integers wrap.
    Product,
    /// The least value.
    Min,
    /// The greatest value.
    Max,
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

    fn reduction(self, dtype: DType) -> Reduction {
        match (self, dtype) {
            (ReduceOp::Sum | ReduceOp::Mean | ReduceOp::Max, DType::Bool) => Reduction::Or,
            (ReduceOp::Product | ReduceOp::Min, DType::Bool) => Reduction::And,
            (ReduceOp::Sum | ReduceOp::Mean, _) => Reduction::Sum,
            (ReduceOp::Product, _) => Reduction::Product,
            (ReduceOp::Min, _) => Reduction::Min,
            (ReduceOp::Max, _) => Reduction::Max,
        }
    }

    /// Whether this combination exists for the dtype.
    fn check(self, dtype: DType) -> Result<()> {
        if self == ReduceOp::Mean && !dtype.is_float() {
            return Err(Error::dtype(
                "all_reduce",
                "a float dtype for ReduceOp::Mean",
                dtype,
            ));
        }
        Ok(())
    }
}

/// A [`ReduceOp`] with a factor for the result; made by [`ReduceOp::scale`] or from the operation
/// alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AllReduceOptions {
    op: ReduceOp,
    scale: Option<Number>,
}

impl From<ReduceOp> for AllReduceOptions {
    fn from(op: ReduceOp) -> Self {
        AllReduceOptions { op, scale: None }
    }
}

/// `Sum` and `Mean`: linear, so the derivative needs no values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AllReduce {
    op: ReduceOp,
    groups: ReplicaGroups,
}

impl Operator for AllReduce {
    const NAME: &'static str = "all_reduce";

    // Every rank's result depends on this rank's input, so this rank's gradient is the sum (or
    // mean) of all ranks' gradients.
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            vjp.only(all_reduce_in(
                &*group::current(Self::NAME)?,
                vjp.grad(),
                op.op,
            ))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        infer(self.op, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        Ok(lower(f, self.op, inputs[0], &self.groups, out))
    }
}

/// `Product`, `Min` and `Max`: the derivative reads input and output.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AllReduceNonlinear {
    op: ReduceOp,
    groups: ReplicaGroups,
}

impl Operator for AllReduceNonlinear {
    const NAME: &'static str = "all_reduce";

    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        rule: AllReduceNonlinear::derivative,
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        infer(self.op, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        Ok(lower(f, self.op, inputs[0], &self.groups, out))
    }
}

impl AllReduceNonlinear {
    /// The gradient of a minimum or maximum goes to the ranks that attain it, in equal parts.
    fn derivative(&self, vjp: &Vjp<'_>) -> Result<Gradients> {
        if self.op == ReduceOp::Product {
            return Err(Error::Autograd {
                op: Self::NAME,
                reason: "the product across ranks has no derivative rule".into(),
                advice: "for positive values use exp of the all_reduce Sum of log",
                at: xla_core::Site::NONE,
            });
        }
        let group = group::current(Self::NAME)?;
        let attains = vjp.input(0)?.eq(vjp.output()?)?.to_dtype(vjp.dtype(0))?;
        let ranks = all_reduce_in(&group, &attains, ReduceOp::Sum)?;
        let total = all_reduce_in(&group, vjp.grad(), ReduceOp::Sum)?;
        vjp.only(total.mul(&attains)?.div(&ranks))
    }
}

fn infer(op: ReduceOp, inputs: &[InputType]) -> Result<Ty> {
    let ty = inputs[0].tensor("all_reduce")?;
    op.check(ty.dtype())?;
    Ok(ty)
}

fn lower(f: &mut Func, op: ReduceOp, x: Value, groups: &ReplicaGroups, out: Ty) -> Value {
    let reduction = op.reduction(x.dtype());
    // A 16-bit sum is rounded once, at the end, rather than once a rank; on CPUs it is also the
    // faster way.
    let narrow = matches!(x.dtype(), DType::F16 | DType::BF16);
    let rounds = matches!(reduction, Reduction::Sum | Reduction::Product);
    let wide = if narrow && rounds {
        f.convert(x, DType::F32)
    } else {
        x
    };
    let mut y = reduce_across(f, reduction, wide, groups);
    if op == ReduceOp::Mean {
        let count = f.constant(y.dtype(), y.shape(), groups.size() as f64);
        y = f.binary("divide", y, count);
    }
    f.convert(y, out.dtype())
}

/// Records the collective in a group, without a factor.
#[track_caller]
pub(crate) fn all_reduce_in(group: &ProcessGroup, tensor: &Tensor, op: ReduceOp) -> Result<Tensor> {
    let Some(gang) = group.gang_for("all_reduce", tensor)? else {
        op.check(tensor.dtype())?;
        return group::fresh(tensor);
    };
    let groups = ReplicaGroups::all(group.size());
    let operands = [tensor.into()];
    match op {
        ReduceOp::Sum | ReduceOp::Mean => {
            record_collective(gang, AllReduce { op, groups }, &operands)
        }
        ReduceOp::Product | ReduceOp::Min | ReduceOp::Max => {
            record_collective(gang, AllReduceNonlinear { op, groups }, &operands)
        }
    }
}

/// The combination of all ranks' tensors, the same on every rank. The argument is not changed:
/// PyTorch's in-place form is [`all_reduce_`].
///
/// It is an operator like any other: recorded now, executed at the next sync together with what
/// was recorded around it, and differentiable (the gradient of a sum is the sum of all ranks'
/// gradients; a mean's the mean; a minimum's or maximum's goes to the ranks that attain it). Every
/// rank must record the same collectives in the same order, with tensors of one shape and dtype.
///
/// With one rank no collective is recorded; the factor of [`ReduceOp::scale`] still applies.
///
/// # Errors
/// [`Error::ProcessGroup`] without a process group; [`Error::DTypeMismatch`] for the mean of
/// integers; [`Error::DeviceMismatch`] for a tensor that is not on the replica's device. What the
/// other ranks do wrong shows when the collective is executed: [`Error::Divergence`],
/// [`Error::ReplicaFailed`], [`Error::ReplicaLeft`] or [`Error::Deadline`].
#[track_caller]
pub fn all_reduce(tensor: &Tensor, options: impl Into<AllReduceOptions>) -> Result<Tensor> {
    let options = options.into();
    let reduced = all_reduce_in(&*group::current("all_reduce")?, tensor, options.op)?;
    scaled(reduced, options.scale)
}

/// Replaces a tensor's value with the combination of all ranks' values, and returns the same
/// handle. Not differentiable: for gradients through a collective use [`all_reduce`].
///
/// # Errors
/// As [`all_reduce`].
#[track_caller]
pub fn all_reduce_(tensor: &Tensor, options: impl Into<AllReduceOptions>) -> Result<Tensor> {
    let options = options.into();
    let group = group::current("all_reduce_")?;
    no_grad(|| {
        let reduced = all_reduce_in(&group, tensor, options.op)?;
        tensor.copy_(&scaled(reduced, options.scale)?)
    })
}

/// [`all_reduce`] of many tensors by one collective for each dtype among them, in the order given.
///
/// The results are views of one flat tensor a dtype: writing to one in place does not copy the
/// others.
///
/// # Errors
/// As [`all_reduce`].
#[track_caller]
pub fn all_reduce_many(
    tensors: &[&Tensor],
    options: impl Into<AllReduceOptions>,
) -> Result<Vec<Tensor>> {
    let options = options.into();
    let group = group::current("all_reduce_many")?;
    let mut results: Vec<Option<Tensor>> = vec![None; tensors.len()];
    for dtype in DType::ALL {
        let members: Vec<usize> = (0..tensors.len())
            .filter(|i| tensors[*i].dtype() == dtype)
            .collect();
        let [first, rest @ ..] = members.as_slice() else {
            continue;
        };
        if rest.is_empty() {
            let reduced = all_reduce_in(&group, tensors[*first], options.op)?;
            results[*first] = Some(scaled(reduced, options.scale)?);
            continue;
        }
        let flat = members
            .iter()
            .map(|i| separate(&tensors[*i].reshape([-1_i64])?))
            .collect::<Result<Vec<Tensor>>>()?;
        let bucket = Tensor::cat(&flat.iter().collect::<Vec<_>>(), 0)?;
        let bucket = scaled(all_reduce_in(&group, &bucket, options.op)?, options.scale)?;
        let mut start = 0;
        for i in members {
            let part = bucket.narrow(0, start, tensors[i].numel())?;
            start += tensors[i].numel() as i64;
            results[i] = Some(part.reshape(tensors[i].shape())?);
        }
    }
    Ok(results.into_iter().flatten().collect())
}

#[track_caller]
fn scaled(tensor: Tensor, factor: Option<Number>) -> Result<Tensor> {
    match factor {
        Some(factor) => tensor.mul(factor)?.to_dtype(tensor.dtype()),
        None => Ok(tensor),
    }
}
