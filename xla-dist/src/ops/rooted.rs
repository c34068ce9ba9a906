//! Collectives with one rank that the others send to or receive from: `reduce`, `gather`, `scatter`.
//!
//! Every member records the same operators and has results of the same types: zeros where PyTorch
//! gives none. So all run one program, and all can run the backward pass.

use super::{AllReduceOptions, all_gather, all_reduce, all_to_all, list, lowering};
use crate::group::{Members, ProcessGroup, fresh};
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, record_op, recorded_by};

/// The tensor on the member at a position, zeros on all others. The second operand is a member's own
/// position.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OnMember {
    member: u32,
}

impl Operator for OnMember {
    const NAME: &'static str = "on_member";

    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| {
            let own = record_op(op.clone(), &[vjp.grad().into(), vjp.operand(1)?])?;
            Ok([Some(own), None].into_iter().collect())
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let x = inputs[0];
        let zero = f.constant_int(x.dtype(), x.shape(), 0);
        let this = lowering::is_position(f, inputs[1], self.member);
        Ok(f.select(this, x, zero))
    }
}

/// `tensor` on the member at a position, zeros on all others.
pub(super) fn on_member(members: &Members, tensor: &Tensor, member: u32) -> Result<Tensor> {
    members.with_position(|position| record_op(OnMember { member }, &[tensor.into(), position]))
}

impl ProcessGroup {
    /// The combination of all members' tensors on the global rank `destination`; zeros on the
    /// others.
    ///
    /// The gradient of the destination's result flows to all members, as in
    /// [`ProcessGroup::all_reduce`]; what the others compute from their zeros counts for nothing.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; [`Error::Argument`] for a destination that is not in the
    /// group.
    #[track_caller]
    pub fn reduce(
        &self,
        tensor: &Tensor,
        destination: usize,
        options: impl Into<AllReduceOptions>,
    ) -> Result<Tensor> {
        let options = options.into();
        recorded_by(Location::caller(), || {
            let members = self.members("reduce", [tensor])?;
            let root = self.position_of("reduce", "destination", destination)? as u32;
            options.op.check("reduce", tensor.dtype())?;
            options.scaled(match members {
                Some(members) => on_member(
                    members,
                    &all_reduce::record(members, tensor, options.op)?,
                    root,
                )?,
                None => fresh(tensor)?,
            })
        })
    }

    /// All members' tensors, in the order of their ranks, on the global rank `destination`; as many
    /// tensors of zeros on the others. The parts are views of one tensor.
    ///
    /// The gradient of the destination's results flows to the members; what the others compute
    /// counts for nothing.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather`]; [`Error::Argument`] for a destination that is not in the
    /// group.
    #[track_caller]
    pub fn gather(&self, tensor: &Tensor, destination: usize) -> Result<Vec<Tensor>> {
        recorded_by(Location::caller(), || {
            let members = self.members("gather", [tensor])?;
            let root = self.position_of("gather", "destination", destination)? as u32;
            let Some(members) = members else {
                return Ok(vec![fresh(tensor)?]);
            };
            let all = all_gather::record(members, &tensor.unsqueeze(0)?, 0)?;
            on_member(members, &all, root)?.unbind(0)
        })
    }

    /// The n-th of the tensors that the global rank `source` passes, on the n-th rank. The others
    /// pass `None` for the list. `tensor` says the shape and dtype of what is received, its value
    /// does not matter.
    ///
    /// As source and receivers record different operators before it, what is pending is executed
    /// first.
    ///
    /// The gradient of every member's result flows to the source's tensors. For a backward pass
    /// through it, `tensor` must require a gradient on the receivers (it gets zeros), so that all
    /// ranks run one.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`], any dtype being fit; [`Error::Argument`] for a source that is
    /// not in the group, for a list on another rank or none on this one, or one of another length;
    /// [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] for tensors of another type than
    /// `tensor`'s. And what executing returns.
    #[track_caller]
    pub fn scatter(
        &self,
        tensor: &Tensor,
        list: Option<&[&Tensor]>,
        source: usize,
    ) -> Result<Tensor> {
        const OP: &str = "scatter";
        recorded_by(Location::caller(), || {
            self.check_replicas(OP, "index what all have by axis_index")?;
            let members = self.members(OP, list.into_iter().flatten().copied().chain([tensor]))?;
            let root = self.position_of(OP, "source", source)?;
            let all = match (list, self.rank() == source) {
                (Some(list), true) => {
                    let all = list::stacked(OP, list, self.size())?;
                    if list[0].dtype() != tensor.dtype() {
                        let expected = format!("{} as of the tensor", tensor.dtype());
                        return Err(Error::dtype(OP, expected, list[0].dtype()));
                    }
                    if list[0].shape() != tensor.shape() {
                        let expected = format!("{} as of the tensor", tensor.shape());
                        return Err(Error::shape(OP, expected, list[0].shape()));
                    }
                    all
                }
                (None, false) => {
                    let mut dims = vec![self.size()];
                    dims.extend_from_slice(tensor.dims());
                    tensor.unsqueeze(0)?.expand(dims)?.copy()?
                }
                (list, is_source) => {
                    let word = |given| if given { "a list" } else { "None" };
                    let expected = format!("{} on rank {}", word(is_source), self.rank());
                    return Err(Error::argument(OP, "list", expected, word(list.is_some())));
                }
            };
            let Some(members) = members else {
                return all.select(0, 0);
            };
            // So that all members record the same from here on.
            xla_lazy::sync()?;
            all_to_all::record(members, &all, 0, 0, false)?.select(0, root as i64)
        })
    }
}
