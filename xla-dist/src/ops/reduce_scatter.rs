//! `reduce_scatter`: every member gets its part of the combination of all members' tensors.

use super::{AllReduceOptions, ReduceOp, ReplicaGroups, all_gather, all_to_all, list, lowering};
use crate::group::{Members, ProcessGroup, fresh};
use std::panic::Location;
use xla_core::{DType, Error, Result, Shape};
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, recorded_by, ty};

const NAME: &str = "reduce_scatter";

/// `Sum` and `Mean` of the members' tensors, of which each member keeps its part along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ReduceScatter {
    op: ReduceOp,
    axis: usize,
    groups: ReplicaGroups,
}

impl Operator for ReduceScatter {
    const NAME: &'static str = NAME;

    // Part j of this rank's input is in rank j's result: so the gradient is all ranks', gathered.
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let members = Members::of(vjp, &op.groups)?;
            let all = all_gather::record(&members, vjp.grad(), op.axis)?;
            vjp.only(match op.op {
                ReduceOp::Mean => all.div(op.groups.size()),
                _ => Ok(all),
            })
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(NAME)?;
        self.op.check(NAME, x.dtype())?;
        let len = part_of(NAME, x.shape(), self.axis, self.groups.size())?;
        Ok(ty(
            x.dtype(),
            &lowering::with_axis(x.shape(), self.axis, len),
        ))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let groups = &self.groups;
        self.op
            .lower(f, inputs[0], groups.size(), |f, reduction, x| {
                lowering::reduce_scatter(f, reduction, x, self.axis, groups)
            })
    }
}

/// The length of each of `size` equal parts of an axis.
pub(super) fn part_of(op: &'static str, shape: &Shape, axis: usize, size: usize) -> Result<usize> {
    match shape[axis] % size {
        0 => Ok(shape[axis] / size),
        _ => {
            let expected = format!("a multiple of {size}, the group's size, along axis {axis}");
            Err(Error::shape(op, expected, shape))
        }
    }
}

/// Records the collective, without a factor.
pub(super) fn record(
    members: &Members,
    tensor: &Tensor,
    axis: usize,
    op: ReduceOp,
) -> Result<Tensor> {
    if matches!(op, ReduceOp::Sum | ReduceOp::Mean) {
        let groups = members.groups.clone();
        let op = ReduceScatter { op, axis, groups };
        return members.record(op, &[tensor.into()]);
    }
    // Each part goes where it is combined: as much is sent, and the derivative follows.
    op.check(NAME, tensor.dtype())?;
    let size = members.groups.size();
    let len = part_of(NAME, tensor.shape(), axis, size)?;
    let parts = all_to_all::record(members, tensor, axis, axis, false)?;
    let mut dims = tensor.dims().to_vec();
    dims.splice(axis..=axis, [size, len]);
    combined(&parts.reshape(dims)?, axis as i64, op)
}

/// A tensor combined along an axis, which vanishes.
fn combined(tensor: &Tensor, axis: i64, op: ReduceOp) -> Result<Tensor> {
    match (op, tensor.dtype()) {
        (ReduceOp::Product | ReduceOp::Min | ReduceOp::And, DType::Bool) => tensor.all(axis, false),
        (_, DType::Bool) => tensor.any(axis, false),
        (ReduceOp::Min, _) => tensor.amin(axis, false),
        (ReduceOp::Max, _) => tensor.amax(axis, false),
        (ReduceOp::Product, dtype) => tensor.prod(axis, false)?.to_dtype(dtype),
        (ReduceOp::Sum | ReduceOp::Mean, dtype) => tensor.sum(axis, false)?.to_dtype(dtype),
        (ReduceOp::And | ReduceOp::Or, _) => {
            let mut parts = tensor.unbind(axis)?.into_iter();
            let first = parts.next().map_or_else(|| tensor.copy(), Ok)?;
            parts.try_fold(first, |all, part| match op {
                ReduceOp::And => all.bitwise_and(&part),
                _ => all.bitwise_or(&part),
            })
        }
    }
}

impl ProcessGroup {
    /// The combination of all members' tensors, of which each member gets its part: the axis `dim`
    /// is cut into as many equal parts as the group has members, the n-th for the n-th rank.
    ///
    /// The derivative is [`ProcessGroup::all_gather_into_tensor`] of the gradients, where the
    /// combination is a sum or mean.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; [`Error::Axis`] for an axis that the tensor does not have,
    /// [`Error::ShapeMismatch`] for one whose length is no multiple of the group's size.
    #[track_caller]
    pub fn reduce_scatter_tensor(
        &self,
        tensor: &Tensor,
        dim: i64,
        options: impl Into<AllReduceOptions>,
    ) -> Result<Tensor> {
        let options = options.into();
        recorded_by(Location::caller(), || self.scattered(tensor, dim, options))
    }

    /// The combination of the tensors that all members pass for this one: the n-th of a member's
    /// tensors is for the n-th rank.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; [`Error::Argument`] unless there is one tensor for each
    /// member, [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] unless all are of one type.
    #[track_caller]
    pub fn reduce_scatter(
        &self,
        tensors: &[&Tensor],
        options: impl Into<AllReduceOptions>,
    ) -> Result<Tensor> {
        let options = options.into();
        recorded_by(Location::caller(), || {
            self.members(NAME, tensors.iter().copied())?;
            let all = list::stacked(NAME, tensors, self.size())?;
            self.scattered(&all, 0, options)?.squeeze(0)
        })
    }

    /// [`ProcessGroup::reduce_scatter_tensor`] whose caller says the line.
    pub(super) fn scattered(
        &self,
        tensor: &Tensor,
        dim: i64,
        options: AllReduceOptions,
    ) -> Result<Tensor> {
        let members = self.members(NAME, [tensor])?;
        let axis = tensor.shape().axis(NAME, dim)?;
        options.scaled(match members {
            Some(members) => record(members, tensor, axis, options.op)?,
            None => {
                options.op.check(NAME, tensor.dtype())?;
                fresh(tensor)?
            }
        })
    }
}
