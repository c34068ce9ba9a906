//! `broadcast`: every rank gets one rank's tensor.

use super::{ReduceOp, ReplicaGroups, all_reduce_in, bitcast, is_member, reduce_across};
use crate::group::{self, ProcessGroup};
use xla_core::{DType, Error, Result};
use xla_lazy::stablehlo::{Func, Reduction, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, record_collective, ty};

/// One member's tensor on all members.
///
/// XLA's CPU compiler has no broadcast between replicas, so it is the sum of that member's tensor
/// with zeros, over the bits as integers: `NaN` payloads and `-0.0` arrive as they were, and a
/// `NaN` in what another member holds does no harm.
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
            let group = group::current(Self::NAME)?;
            let total = all_reduce_in(&group, vjp.grad(), ReduceOp::Sum)?;
            vjp.only(on_member(&group, &total, op.source))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = inputs[0];
        let bits = match x.dtype() {
            DType::F16 | DType::BF16 => DType::I16,
            DType::F32 => DType::I32,
            DType::F64 => DType::I64,
            same => same,
        };
        let carrier = if bits == x.dtype() {
            x
        } else {
            bitcast(f, x, ty(bits, x.shape()))
        };
        // 16-bit integers are reduced as 32-bit ones, which every plugin can.
        let wide = match bits {
            DType::I16 | DType::U16 => f.convert(carrier, DType::I32),
            _ => carrier,
        };
        let reduction = if bits == DType::Bool {
            Reduction::Or
        } else {
            Reduction::Sum
        };
        let zero = f.constant_int(wide.dtype(), wide.shape(), 0);
        let source = is_member(f, self.source);
        let own = f.select(source, wide, zero);
        let all = reduce_across(f, reduction, own, &self.groups);
        let narrow = f.convert(all, bits);
        Ok(if bits == x.dtype() {
            narrow
        } else {
            bitcast(f, narrow, out)
        })
    }
}

/// The tensor on one member, zeros on all others.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OnMember {
    member: u32,
}

impl Operator for OnMember {
    const NAME: &'static str = "on_member";

    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            vjp.only(on_member(
                &*group::current(Self::NAME)?,
                vjp.grad(),
                op.member,
            ))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let x = inputs[0];
        let zero = f.constant_int(x.dtype(), x.shape(), 0);
        let this = is_member(f, self.member);
        Ok(f.select(this, x, zero))
    }
}

#[track_caller]
fn on_member(group: &ProcessGroup, tensor: &Tensor, member: u32) -> Result<Tensor> {
    match group.gang_for(OnMember::NAME, tensor)? {
        Some(gang) => record_collective(gang, OnMember { member }, &[tensor.into()]),
        None => group::fresh(tensor),
    }
}

/// The tensor that rank `source` passed, on every rank, bit for bit. All ranks pass a tensor of the
/// same shape and dtype; what the others hold does not matter.
///
/// The gradient of all ranks' results flows to the source's tensor; the others' get zeros.
///
/// # Errors
/// [`Error::Argument`] for a rank that is not in the group; otherwise as
/// [`all_reduce`](crate::all_reduce).
#[track_caller]
pub fn broadcast(tensor: &Tensor, source: usize) -> Result<Tensor> {
    let group = group::current("broadcast")?;
    let Some(member) = group.ranks().iter().position(|rank| *rank == source) else {
        let expected = format!("one of the group's ranks {:?}", group.ranks());
        return Err(Error::argument("broadcast", "source", expected, source)
            .at(std::panic::Location::caller()));
    };
    match group.gang_for("broadcast", tensor)? {
        Some(gang) => {
            let groups = ReplicaGroups::all(group.size());
            record_collective(
                gang,
                Broadcast {
                    source: member as u32,
                    groups,
                },
                &[tensor.into()],
            )
        }
        None => group::fresh(tensor),
    }
}
