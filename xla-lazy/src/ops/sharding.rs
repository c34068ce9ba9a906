//! How values are to be spread over the devices of a mesh.

use super::only;
use crate::Tensor;
use crate::op::{Derivative, InputType, OpEntry, Operator, Saves, entry};
use crate::spmd::NamedSharding;
use crate::stablehlo::{Func, Value};
use crate::trace::{record_at, record_op};
use crate::ty::Ty;
use std::panic::Location;
use xla_core::Result;

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ShardingConstraint {
    sharding: NamedSharding,
}

impl Operator for ShardingConstraint {
    const NAME: &'static str = "with_sharding_constraint";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| vjp.only(record_op(op.clone(), &[vjp.grad().into()])),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        only(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(f.sharding_constraint(inputs[0], &self.sharding))
    }
}

/// The operator that spreads its operand like this.
pub(crate) fn sharding_entry(sharding: &NamedSharding) -> &'static OpEntry {
    entry(ShardingConstraint {
        sharding: sharding.clone(),
    })
}

/// The tensor as it is, spread like this within the program.
pub(crate) fn constrained(
    x: &Tensor,
    sharding: &NamedSharding,
    at: &'static Location<'static>,
) -> Result<Tensor> {
    record_at(sharding_entry(sharding), &[x.into()], at)
}
