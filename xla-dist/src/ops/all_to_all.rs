//! `all_to_all`: every member sends each member a part of its own tensor.

use super::{ReplicaGroups, list, lowering, reduce_scatter::part_of, uneven};
use crate::group::{Members, ProcessGroup, fresh};
use std::panic::Location;
use xla_core::Result;
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, recorded_by, ty};

/// Part `j` along one axis goes to member `j`; what came from member `i` is part `i` along another.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AllToAll {
    split: usize,
    concat: usize,
    groups: ReplicaGroups,
    /// Whether it is executed in a program of its own, because what the members record around it
    /// differs. Its derivative then is, too.
    alone: bool,
}

impl Operator for AllToAll {
    const NAME: &'static str = "all_to_all";

    // Each part is in one result, so the gradients go back the way the parts came.
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let members = Members::of(vjp, &op.groups)?;
            vjp.only(record(&members, vjp.grad(), op.concat, op.split, op.alone))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let size = self.groups.size();
        let len = part_of(Self::NAME, x.shape(), self.split, size)?;
        let parted = lowering::with_axis(x.shape(), self.split, len);
        let len = parted[self.concat].saturating_mul(size);
        Ok(ty(
            x.dtype(),
            &lowering::with_axis(&parted, self.concat, len),
        ))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let (split, concat) = (self.split, self.concat);
        lowering::all_to_all(f, inputs[0], split, concat, &self.groups)
    }
}

/// Records the collective; the axes exist. `alone`: in a program of its own.
pub(super) fn record(
    members: &Members,
    tensor: &Tensor,
    split: usize,
    concat: usize,
    alone: bool,
) -> Result<Tensor> {
    let op = AllToAll {
        split,
        concat,
        groups: members.groups.clone(),
        alone,
    };
    if !alone {
        return members.record(op, &[tensor.into()]);
    }
    xla_lazy::sync()?;
    let exchanged = members.record(op, &[tensor.into()])?;
    xla_lazy::sync()?;
    Ok(exchanged)
}

/// The lengths of what the members send each other, for an all-to-all of unequal parts.
///
/// With none of them given, the parts are equal. Give them on all ranks or on none.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllToAllOptions {
    /// How much of the first axis goes to each member; equal parts if `None`.
    pub input_split_sizes: Option<Vec<usize>>,
    /// How much of the first axis comes from each member; whatever they send if `None`.
    pub output_split_sizes: Option<Vec<usize>>,
    /// Both for all members: row `i` says how much member `i` sends to each. The same on every rank.
    /// With it the members need not ask each other, which takes a collective that is executed and
    /// waited for.
    pub all_split_sizes: Option<Vec<Vec<usize>>>,
}

impl AllToAllOptions {
    fn is_even(&self) -> bool {
        *self == AllToAllOptions::default()
    }
}

impl ProcessGroup {
    /// The n-th of a member's tensors goes to the n-th rank, and the n-th of the results came from
    /// the n-th rank.
    ///
    /// All tensors are of one shape and dtype, on all ranks; with `options` that give sizes, they
    /// differ in the length of the first axis, as in [`ProcessGroup::all_to_all_single`].
    ///
    /// # Errors
    /// As [`ProcessGroup::all_to_all_single`]; [`Error::Argument`] unless there is one tensor for
    /// each member, [`Error::ShapeMismatch`] and [`Error::DTypeMismatch`] unless all are of one type.
    ///
    /// [`Error::Argument`]: xla_core::Error::Argument
    /// [`Error::ShapeMismatch`]: xla_core::Error::ShapeMismatch
    /// [`Error::DTypeMismatch`]: xla_core::Error::DTypeMismatch
    #[track_caller]
    pub fn all_to_all(
        &self,
        tensors: &[&Tensor],
        options: &AllToAllOptions,
    ) -> Result<Vec<Tensor>> {
        recorded_by(Location::caller(), || {
            let members = self.members(AllToAll::NAME, tensors.iter().copied())?;
            if !options.is_even() {
                return uneven::list(self, members, tensors, options);
            }
            let all = list::stacked(AllToAll::NAME, tensors, self.size())?;
            match members {
                Some(members) => record(members, &all, 0, 0, false)?.unbind(0),
                None => all.unbind(0),
            }
        })
    }

    /// The first axis is cut into parts, the n-th of which goes to the n-th rank; the result holds
    /// what came, in the order of the ranks.
    ///
    /// Equal parts are one operator of the program, like any other. With unequal parts the members'
    /// tensors, and so their programs, have different shapes. So what is pending is executed first,
    /// each part is padded to the length of the longest that any member sends, rounded up to a power
    /// of two (new sizes then rarely compile the exchange anew), and the exchange is a program of
    /// its own; the same in the backward pass. Everything that depends on sizes is recorded by each
    /// rank for itself: read or sync between it and a later collective.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`], any dtype being fit; [`Error::Axis`] for a tensor without
    /// axes; [`Error::ShapeMismatch`] where equal parts do not fill the axis; [`Error::Argument`] for
    /// split sizes that are not one for each member, that do not fill the axis, or that contradict
    /// what other members send. With unequal parts also what executing returns.
    ///
    /// [`Error::Axis`]: xla_core::Error::Axis
    /// [`Error::Argument`]: xla_core::Error::Argument
    /// [`Error::ShapeMismatch`]: xla_core::Error::ShapeMismatch
    #[track_caller]
    pub fn all_to_all_single(&self, tensor: &Tensor, options: &AllToAllOptions) -> Result<Tensor> {
        recorded_by(Location::caller(), || {
            let members = self.members(AllToAll::NAME, [tensor])?;
            let axis = tensor.shape().axis(AllToAll::NAME, 0)?;
            match members {
                _ if !options.is_even() => {
                    uneven::exchanged(self, members, tensor, options).map(|(received, _)| received)
                }
                Some(members) => record(members, tensor, axis, axis, false),
                None => fresh(tensor),
            }
        })
    }

    /// `split_dim` is cut into equal parts, the n-th of which goes to the n-th rank; what came is
    /// joined along `concat_dim` in the order of the ranks. PyTorch/XLA's `all_to_all`: what was
    /// spread along one axis is spread along another.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_to_all_single`].
    #[track_caller]
    pub fn all_to_all_tensor(
        &self,
        tensor: &Tensor,
        split_dim: i64,
        concat_dim: i64,
    ) -> Result<Tensor> {
        recorded_by(Location::caller(), || {
            let members = self.members(AllToAll::NAME, [tensor])?;
            let split = tensor.shape().axis(AllToAll::NAME, split_dim)?;
            let concat = tensor.shape().axis(AllToAll::NAME, concat_dim)?;
            match members {
                Some(members) => record(members, tensor, split, concat, false),
                None => fresh(tensor),
            }
        })
    }
}
