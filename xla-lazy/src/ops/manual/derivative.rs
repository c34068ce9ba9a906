//! Gradients through a function of blocks: a function of blocks that computes it again.
//!
//! Where all devices along an axis have the same block of a result, each is given its share of the
//! gradient; where they have the same block of an operand, its gradient is the sum of theirs. So the
//! collectives in the body are differentiated as on replicas: what each device computes counts.

use super::mapped::Mapped;
use super::shard_map::Plan;
use crate::Tensor;
use crate::grad::{Gradients, Vjp};
use crate::intern::Interned;
use crate::op::Number;
use crate::ops::control::hub::{Again, Backward, Hub, Kind};
use crate::spmd::{NamedSharding, PartitionSpec, SpecAxes};
use crate::trace::{Recorded, Tape, is_grad_enabled};
use std::collections::BTreeMap;
use std::panic::Location;
use std::sync::Arc;
use xla_core::Result;

/// The results of a function of blocks as tensors that gradients flow through, where they do.
pub(super) fn attach(
    mapped: Interned<Mapped>,
    recorded: Recorded,
    operands: &[Tensor],
    results: Vec<Tensor>,
    at: &'static Location<'static>,
) -> Result<Vec<Tensor>> {
    let flows: Vec<bool> = (0..results.len()).map(|i| recorded.flows(i)).collect();
    let transposed = Transposed {
        mapped,
        tape: recorded.tape,
        numbers: recorded.numbers,
        at,
    };
    let hub = Hub::new(Kind::ShardMap, Arc::new(transposed), operands, at)?;
    hub.attach(results, &flows)
}

struct Transposed {
    mapped: Interned<Mapped>,
    tape: Tape,
    numbers: Vec<Number>,
    at: &'static Location<'static>,
}

impl Backward for Transposed {
    fn backward(
        self: Arc<Self>,
        vjp: &Vjp<'_>,
        gradients: BTreeMap<usize, Tensor>,
    ) -> Result<Gradients> {
        let create = is_grad_enabled();
        let mapped = self.mapped.get();
        let mut inputs = vjp.tensors(0)?;
        let operands = inputs.len();
        let wanted: Vec<usize> = (0..operands)
            .filter(|&i| vjp.needs(i) && inputs[i].dtype().is_float())
            .collect();
        let mut in_shardings = mapped.inputs.clone();
        let seeded: Vec<usize> = gradients.keys().copied().collect();
        for (index, gradient) in gradients {
            let sharding = &mapped.outputs[index];
            inputs.push(match copies(sharding) {
                1 => gradient,
                copies => gradient.div(copies)?,
            });
            in_shardings.push(sharding.clone());
        }
        let out_shardings = wanted.iter().map(|&i| stacked(&mapped.inputs[i]));
        let plan = Plan {
            mesh: &mapped.mesh,
            inputs,
            in_shardings,
            out_shardings: out_shardings.collect::<Result<_>>()?,
            at: self.at,
        };
        let again = Again {
            kind: Kind::ShardMap,
            region: &mapped.region,
            tape: &self.tape,
            numbers: &self.numbers,
            at: self.at,
        };
        let found = plan.run(|blocks| {
            let (operands, seeds) = blocks.split_at(operands);
            let variables = again.variables(operands)?;
            let (arguments, captures) = variables.split_at(mapped.arguments);
            let seeds: Vec<(usize, &Tensor)> = seeded.iter().copied().zip(seeds).collect();
            let sources: Vec<&Tensor> = wanted.iter().map(|&i| &variables[i]).collect();
            let found = again.gradients(arguments, captures, &seeds, &sources, create)?;
            let found = wanted.iter().zip(found);
            found
                .map(|(&i, gradient)| match copies(&mapped.inputs[i]) {
                    1 => Ok(gradient),
                    _ => gradient.unsqueeze(0),
                })
                .collect()
        })?;
        let mut all: Gradients = smallvec::smallvec![None; vjp.len()];
        for (&i, gradient) in wanted.iter().zip(found) {
            all[i] = Some(match copies(&mapped.inputs[i]) {
                1 => gradient,
                _ => gradient.sum(0, false)?,
            });
        }
        Ok(all)
    }
}

/// How many devices have the same block.
fn copies(sharding: &NamedSharding) -> usize {
    let blocks: usize = sharding.tiles(sharding.spec().len()).iter().product();
    sharding.mesh().len() / blocks
}

/// The sharding with, before all axes, one of the devices that have the same block, so that the sum
/// along it is theirs. As it is where no two have.
fn stacked(sharding: &NamedSharding) -> Result<NamedSharding> {
    if copies(sharding) == 1 {
        return Ok(sharding.clone());
    }
    let mesh = sharding.mesh();
    let axes = sharding.spec().axes();
    let used: Vec<&str> = axes.iter().flat_map(SpecAxes::names).collect();
    let names = mesh.axis_names().iter().copied();
    let others: SpecAxes = names.filter(|name| !used.contains(name)).collect();
    let spec = std::iter::once(others).chain(axes.iter().cloned());
    NamedSharding::new(&mesh, PartitionSpec::new(spec))
}
