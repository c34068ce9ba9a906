//! `all_gather`: every member gets all members' tensors.

use super::{ReduceOp, ReplicaGroups, lowering, reduce_scatter};
use crate::group::{Members, ProcessGroup, fresh};
use std::panic::Location;
use xla_core::Result;
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, recorded_by, ty};

/// The members' tensors, one after the other along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AllGather {
    axis: usize,
    groups: ReplicaGroups,
}

impl Operator for AllGather {
    const NAME: &'static str = "all_gather";

    // Each rank's result holds this rank's input: its gradient is the sum of those parts of all
    // ranks' gradients.
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let members = Members::of(vjp, &op.groups)?;
            let part = reduce_scatter::record(&members, vjp.grad(), op.axis, ReduceOp::Sum);
            vjp.only(part)
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let len = x.shape()[self.axis].saturating_mul(self.groups.size());
        Ok(ty(
            x.dtype(),
            &lowering::with_axis(x.shape(), self.axis, len),
        ))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        lowering::all_gather(f, inputs[0], self.axis, &self.groups)
    }
}

/// Records the collective; the axis exists.
pub(super) fn record(members: &Members, tensor: &Tensor, axis: usize) -> Result<Tensor> {
    let groups = members.groups.clone();
    members.record(AllGather { axis, groups }, &[tensor.into()])
}

impl ProcessGroup {
    /// All members' tensors, in the order of their ranks. The parts are views of one tensor.
    ///
    /// The gradient of a member's tensor is the sum of what all members' results say of it. All
    /// pass tensors of one shape and dtype.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`], any dtype being fit.
    #[track_caller]
    pub fn all_gather(&self, tensor: &Tensor) -> Result<Vec<Tensor>> {
        recorded_by(Location::caller(), || {
            match self.members(AllGather::NAME, [tensor])? {
                Some(members) => record(members, &tensor.unsqueeze(0)?, 0)?.unbind(0),
                None => Ok(vec![fresh(tensor)?]),
            }
        })
    }

    /// All members' tensors in one: one after the other along `dim`, which becomes as many times
    /// longer as the group has members.
    ///
    /// The inverse, and the derivative, is the sum of [`ProcessGroup::reduce_scatter_tensor`].
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather`]; [`Error::Axis`](xla_core::Error::Axis) for an axis that the tensor does not have (a
    /// tensor without axes has none to be gathered along: use [`ProcessGroup::all_gather`]).
    #[track_caller]
    pub fn all_gather_into_tensor(&self, tensor: &Tensor, dim: i64) -> Result<Tensor> {
        recorded_by(Location::caller(), || {
            let members = self.members(AllGather::NAME, [tensor])?;
            let axis = tensor.shape().axis(AllGather::NAME, dim)?;
            match members {
                Some(members) => record(members, tensor, axis),
                None => fresh(tensor),
            }
        })
    }
}
