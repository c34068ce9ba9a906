//! `all_reduce`: every member gets the combination of all members' tensors.

use super::{AllReduceOptions, ReduceOp, ReplicaGroups, all_gather, lowering};
use crate::group::{Members, ProcessGroup, fresh};
use std::panic::Location;
use xla_core::{DType, Result};
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{
    Derivative, Gradients, InputType, Operator, Saves, Tensor, Ty, Vjp, no_grad, recorded_by,
};

const NAME: &str = "all_reduce";

/// `Sum` and `Mean`: linear, so the derivative needs no values.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AllReduce {
    op: ReduceOp,
    groups: ReplicaGroups,
}

impl Operator for AllReduce {
    const NAME: &'static str = NAME;

    // Every rank's result depends on this rank's input, so this rank's gradient is the sum (or
    // mean) of all ranks' gradients.
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| vjp.only(record(&Members::of(vjp, &op.groups)?, vjp.grad(), op.op)),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        infer(self.op, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        lower(f, self.op, inputs[0], &self.groups)
    }
}

/// `Min` and `Max`: the derivative reads input and output. And `And` and `Or`, which no gradient
/// passes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AllReduceExtreme {
    op: ReduceOp,
    groups: ReplicaGroups,
}

impl Operator for AllReduceExtreme {
    const NAME: &'static str = NAME;

    // The gradient goes to the ranks that attain the extreme, in equal parts.
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        rule: |op, vjp| {
            let members = Members::of(vjp, &op.groups)?;
            let attains = vjp.input(0)?.eq(vjp.output()?)?.to_dtype(vjp.dtype(0))?;
            let ranks = record(&members, &attains, ReduceOp::Sum)?;
            let total = record(&members, vjp.grad(), ReduceOp::Sum)?;
            vjp.only(total.mul(&attains)?.div(&ranks))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        infer(self.op, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        lower(f, self.op, inputs[0], &self.groups)
    }
}

/// `Product`. The second operand is the member's position, which the derivative needs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AllReduceProduct {
    groups: ReplicaGroups,
}

impl Operator for AllReduceProduct {
    const NAME: &'static str = NAME;

    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(0),
        rule: AllReduceProduct::derivative,
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        infer(ReduceOp::Product, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        lower(f, ReduceOp::Product, inputs[0], &self.groups)
    }
}

impl AllReduceProduct {
    /// The product of the others' values, computed as such: also right where a value is zero.
    fn derivative(&self, vjp: &Vjp<'_>) -> Result<Gradients> {
        let members = Members::of(vjp, &self.groups)?;
        let (x, size) = (vjp.input(0)?, self.groups.size());
        let all = all_gather::record(&members, &x.unsqueeze(0)?, 0)?;
        let mut column = vec![1; all.rank()];
        column[0] = size;
        let places = Tensor::arange(0, size, 1, (DType::I64, x.device()))?;
        let own = members.with_position(|position| places.eq(position))?;
        let own = own.reshape(column)?;
        let others = all.masked_fill(&own, 1)?.prod(0, false)?;
        vjp.only(record(&members, vjp.grad(), ReduceOp::Sum)?.mul(&others))
    }
}

fn infer(op: ReduceOp, inputs: &[InputType]) -> Result<Ty> {
    let ty = inputs[0].tensor(NAME)?;
    op.check(NAME, ty.dtype())?;
    Ok(ty)
}

fn lower(f: &mut Func, op: ReduceOp, x: Value, groups: &ReplicaGroups) -> Result<Value> {
    op.lower(f, x, groups.size(), |f, reduction, x| {
        lowering::all_reduce(f, reduction, x, groups)
    })
}

/// Records the collective, without a factor.
pub(super) fn record(members: &Members, tensor: &Tensor, op: ReduceOp) -> Result<Tensor> {
    let groups = members.groups.clone();
    match op {
        ReduceOp::Sum | ReduceOp::Mean => {
            members.record(AllReduce { op, groups }, &[tensor.into()])
        }
        ReduceOp::Product => members.with_position(|position| {
            members.record(AllReduceProduct { groups }, &[tensor.into(), position])
        }),
        ReduceOp::Min | ReduceOp::Max | ReduceOp::And | ReduceOp::Or => {
            let op = AllReduceExtreme { op, groups };
            members.record(op, &[tensor.into()])
        }
    }
}

impl ProcessGroup {
    /// The combination of all members' tensors, the same on every member. The argument is not
    /// changed: PyTorch's in-place form is [`ProcessGroup::all_reduce_`].
    ///
    /// It is an operator like any other: recorded now, executed at the next sync together with what
    /// was recorded around it, and differentiable. The gradient of a sum is the sum of all ranks'
    /// gradients; a mean's the mean; a product's the same times the others' values; a minimum's or
    /// maximum's goes to the ranks that attain it, in equal parts. Every rank must record the same
    /// collectives in the same order, with tensors of one shape and dtype.
    ///
    /// With one rank no collective is recorded; the factor of [`ReduceOp::scale`] still applies.
    ///
    /// # Errors
    /// [`Error::Argument`] when this rank is not in the group; [`Error::DTypeMismatch`] for the mean
    /// of integers, and for *and* and *or* of floats; [`Error::DeviceMismatch`] for a tensor that is
    /// not on the replica's device. What the other ranks do wrong shows when the collective is
    /// executed: [`Error::Divergence`], [`Error::ReplicaFailed`], [`Error::ReplicaLeft`] or
    /// [`Error::Deadline`].
    ///
    /// [`Error::Argument`]: xla_core::Error::Argument
    /// [`Error::DTypeMismatch`]: xla_core::Error::DTypeMismatch
    /// [`Error::DeviceMismatch`]: xla_core::Error::DeviceMismatch
    /// [`Error::Divergence`]: xla_core::Error::Divergence
    /// [`Error::ReplicaFailed`]: xla_core::Error::ReplicaFailed
    /// [`Error::ReplicaLeft`]: xla_core::Error::ReplicaLeft
    /// [`Error::Deadline`]: xla_core::Error::Deadline
    #[track_caller]
    pub fn all_reduce(
        &self,
        tensor: &Tensor,
        options: impl Into<AllReduceOptions>,
    ) -> Result<Tensor> {
        let options = options.into();
        recorded_by(Location::caller(), || self.reduced(tensor, options))
    }

    /// [`ProcessGroup::all_reduce`] whose caller says the line.
    pub(super) fn reduced(&self, tensor: &Tensor, options: AllReduceOptions) -> Result<Tensor> {
        options.scaled(match self.members(NAME, [tensor])? {
            Some(members) => record(members, tensor, options.op)?,
            None => {
                options.op.check(NAME, tensor.dtype())?;
                fresh(tensor)?
            }
        })
    }

    /// Replaces a tensor's value with the combination of all members' values, and returns the same
    /// handle. Not differentiable: for gradients through a collective use
    /// [`ProcessGroup::all_reduce`].
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`].
    #[track_caller]
    pub fn all_reduce_(
        &self,
        tensor: &Tensor,
        options: impl Into<AllReduceOptions>,
    ) -> Result<Tensor> {
        let options = options.into();
        recorded_by(Location::caller(), || {
            no_grad(|| tensor.copy_(&self.reduced(tensor, options)?))
        })
    }
}
