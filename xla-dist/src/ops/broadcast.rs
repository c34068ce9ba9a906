//! `broadcast`: every member gets one member's tensor.

use super::{ReduceOp, ReplicaGroups, all_reduce, lowering, rooted};
use crate::group::{Members, ProcessGroup, fresh};
use std::panic::Location;
use xla_core::Result;
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, no_grad, recorded_by};

/// The tensor of the member at a position, on all members. The second operand is a member's own
/// position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Broadcast {
    source: u32,
    groups: ReplicaGroups,
}

impl Operator for Broadcast {
    const NAME: &'static str = "broadcast";

    // All results depend on the source's input and on no other.
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let members = Members::of(vjp, &op.groups)?;
            let total = all_reduce::record(&members, vjp.grad(), ReduceOp::Sum)?;
            let own = rooted::on_member(&members, &total, op.source)?;
            Ok([Some(own), None].into_iter().collect())
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        lowering::broadcast(f, inputs[0], inputs[1], self.source, &self.groups)
    }
}

impl ProcessGroup {
    /// The tensor that the global rank `source` passed, on every member, bit for bit. All members
    /// pass a tensor of the same shape and dtype; what the others hold does not matter.
    ///
    /// The gradient of all ranks' results flows to the source's tensor; the others' get zeros.
    ///
    /// # Errors
    /// [`Error::Argument`](xla_core::Error::Argument) for a source that is not in the group;
    /// otherwise as [`ProcessGroup::all_reduce`], any dtype being fit.
    #[track_caller]
    pub fn broadcast(&self, tensor: &Tensor, source: usize) -> Result<Tensor> {
        recorded_by(Location::caller(), || self.received(tensor, source))
    }

    /// [`ProcessGroup::broadcast`] whose caller says the line.
    pub(super) fn received(&self, tensor: &Tensor, source: usize) -> Result<Tensor> {
        let members = self.members(Broadcast::NAME, [tensor])?;
        let source = self.position_of(Broadcast::NAME, "source", source)? as u32;
        let Some(members) = members else {
            return fresh(tensor);
        };
        let groups = members.groups.clone();
        members.with_position(|position| {
            members.record(Broadcast { source, groups }, &[tensor.into(), position])
        })
    }

    /// Replaces a tensor's value with the value that the global rank `source` has, and returns the
    /// same handle. Not differentiable: for gradients use [`ProcessGroup::broadcast`].
    ///
    /// # Errors
    /// As [`ProcessGroup::broadcast`].
    #[track_caller]
    pub fn broadcast_(&self, tensor: &Tensor, source: usize) -> Result<Tensor> {
        recorded_by(Location::caller(), || {
            no_grad(|| tensor.copy_(&self.received(tensor, source)?))
        })
    }
}
