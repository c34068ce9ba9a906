//! `collective_permute`: members pass tensors on to one another.

use super::{ReplicaGroups, lowering};
use crate::group::{Members, ProcessGroup, fresh};
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, recorded_by};

/// The tensor of the member that a pair names as the source of this one; zeros where none does.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Permute {
    /// Positions: source, destination.
    pairs: Vec<(u32, u32)>,
    groups: ReplicaGroups,
}

impl Operator for Permute {
    const NAME: &'static str = "collective_permute";

    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let members = Members::of(vjp, &op.groups)?;
            let back = op.pairs.iter().map(|&(from, to)| (to, from)).collect();
            vjp.only(record(&members, vjp.grad(), back))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        lowering::permute(f, inputs[0], &self.pairs, &self.groups)
    }
}

fn record(members: &Members, tensor: &Tensor, pairs: Vec<(u32, u32)>) -> Result<Tensor> {
    let groups = members.groups.clone();
    members.record(Permute { pairs, groups }, &[tensor.into()])
}

/// A tensor on its way from one rank to another, for [`ProcessGroup::send_recv`].
#[derive(Debug, Clone, Copy)]
pub struct Transfer<'a> {
    /// On the source what is sent. On the others it says the shape and dtype only.
    pub tensor: &'a Tensor,
    /// Global rank of the sender.
    pub source: usize,
    /// Global rank of the receiver.
    pub destination: usize,
}

impl ProcessGroup {
    /// What another rank passed: of each of the pairs (source, destination) of global ranks, the
    /// destination gets the source's tensor. A rank that is no destination gets zeros.
    ///
    /// All members pass the same pairs, in the same order, and tensors of one shape and dtype. The
    /// gradients go back the other way.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`], any dtype being fit; [`Error::Argument`] for ranks that are
    /// not in the group, or a rank that is the source, or the destination, of two pairs.
    #[track_caller]
    pub fn collective_permute(&self, tensor: &Tensor, pairs: &[(usize, usize)]) -> Result<Tensor> {
        recorded_by(Location::caller(), || {
            self.permuted(Permute::NAME, tensor, pairs)
        })
    }

    /// Sends tensors from rank to rank: PyTorch's `batch_isend_irecv`, with the whole list given on
    /// every member. The results are in the order of the list; a rank that is not a transfer's
    /// destination gets zeros for it.
    ///
    /// Every member passes the same transfers, also those it has no part in, since all run one
    /// program. Where each rank sends one tensor (a ring, say),
    /// [`ProcessGroup::collective_permute`] does it in one operation.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`], any dtype being fit; [`Error::Argument`] for ranks that are
    /// not in the group.
    #[track_caller]
    pub fn send_recv(&self, transfers: &[Transfer<'_>]) -> Result<Vec<Tensor>> {
        recorded_by(Location::caller(), || {
            let send = |transfer: &Transfer<'_>| {
                let pair = (transfer.source, transfer.destination);
                self.permuted("send_recv", transfer.tensor, &[pair])
            };
            transfers.iter().map(send).collect()
        })
    }

    fn permuted(
        &self,
        op: &'static str,
        tensor: &Tensor,
        pairs: &[(usize, usize)],
    ) -> Result<Tensor> {
        let members = self.members(op, [tensor])?;
        let mut positions: Vec<(u32, u32)> = Vec::with_capacity(pairs.len());
        for &(source, destination) in pairs {
            let from = self.position_of(op, "source", source)? as u32;
            let to = self.position_of(op, "destination", destination)? as u32;
            if positions.iter().any(|(f, t)| *f == from || *t == to) {
                let expected = "each rank at most once as source and once as destination";
                return Err(Error::argument(op, "pairs", expected, format!("{pairs:?}")));
            }
            positions.push((from, to));
        }
        match members {
            Some(members) if !positions.is_empty() => record(members, tensor, positions),
            None if !positions.is_empty() => fresh(tensor),
            _ => tensor.zeros_like(),
        }
    }
}
