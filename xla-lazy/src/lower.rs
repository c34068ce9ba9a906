//! From a recording to StableHLO: the part of it that the outputs need.

use crate::cache::Placement;
use crate::debug::checks::{self, Checks};
use crate::spmd::{NamedSharding, Partitioned};
use crate::stablehlo::{Func, Value};
use crate::trace::{Input, NumberClass, Recording, flag, number_type};
use crate::ty::{Ty, ty};
use std::collections::HashMap;
use xla_core::{Error, Result, Shape};

/// Most live operators in one program; beyond it XLA's compiler takes minutes and, on some
/// versions, all of its stack.
const MAX_LIVE: usize = 50_000;

/// What an argument of the program is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Argument {
    /// A packed vector of all numbers of a class.
    Numbers(NumberClass),
    /// A parameter of the recording.
    Param(u32),
    /// What the effects of this program come after: the order value of the program before it.
    Order,
}

/// A lowered program.
pub(crate) struct Lowered {
    pub(crate) text: String,
    pub(crate) arguments: Vec<(Argument, Ty)>,
    /// Positions, among the arguments, of those whose memory an output takes over.
    pub(crate) donated: Vec<usize>,
    pub(crate) results: Vec<Ty>,
    pub(crate) operators: usize,
    /// What the results after those of the extent tell.
    pub(crate) checks: Checks,
}

/// What is to be lowered: the first `len` nodes, with these outputs and donated parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) len: usize,
    /// Nodes, ascending.
    pub(crate) live: Vec<u32>,
    /// Parameters (positions in [`Recording::params`]), ascending.
    pub(crate) donors: Vec<u32>,
    /// Whether the collectives are effects, which keep their order among all programs. Such a program
    /// has one result more than `live`, its last: the order value for the next one.
    pub(crate) ordered: bool,
}

impl NumberClass {
    /// All classes, in the order that their vectors are passed.
    const ALL: [NumberClass; 3] = [NumberClass::F32, NumberClass::F64, NumberClass::I64];

    /// Position in [`NumberClass::ALL`].
    pub(crate) fn index(self) -> usize {
        self as usize - NumberClass::F32 as usize
    }
}

impl Extent {
    /// How many numbers of each class the nodes read. A replica that has recorded more than the
    /// others passes no more of its numbers than they do, so all run one program.
    pub(crate) fn numbers(&self, recording: &Recording) -> [usize; 3] {
        let all = &recording.numbers;
        if self.len == recording.nodes.len() {
            return [all.f32.len(), all.f64.len(), all.i64.len()];
        }
        let mut counts = [0; 3];
        let nodes = recording.nodes[..self.len].iter();
        for input in nodes.flat_map(|node| recording.inputs(node)) {
            if let Input::Number(class, slot) = input {
                let count = &mut counts[class.index()];
                *count = (*count).max(slot as usize + 1);
            }
        }
        counts
    }
}

/// Lowers the part of a recording that the outputs need.
///
/// # Errors
/// [`Error::ProgramTooLarge`], or what an operator's lowering returns, with its line.
pub(crate) fn lower(
    recording: &Recording,
    extent: &Extent,
    placement: &Placement,
    name: &str,
) -> Result<Lowered> {
    let needed = reachable(recording, extent);
    let operators = needed.iter().filter(|n| **n).count();
    if operators > MAX_LIVE {
        return Err(Error::ProgramTooLarge {
            nodes: operators,
            limit: MAX_LIVE,
        });
    }
    let mut f = Func::new();
    f.begin_watching(checks::watches_indices(), checks::watches_values());
    let partitioned = placement.partitioned();
    if let Some(Partitioned { mesh, shardy, .. }) = partitioned {
        f.begin_partitioned(*mesh, *shardy);
    }
    let mut watched = Vec::new();
    let mut values: Vec<Option<Value>> = vec![None; extent.len];
    let mut arguments = Vec::new();
    let mut donated = Vec::new();
    let mut packed: HashMap<NumberClass, Value> = HashMap::new();
    for (class, len) in NumberClass::ALL.into_iter().zip(extent.numbers(recording)) {
        if len > 0 {
            let ty = ty(number_type(class).dtype(), &Shape::new(&[len]));
            arguments.push((Argument::Numbers(class), ty));
            let packed_numbers = f.argument(ty, None);
            if let Some(partitioned) = partitioned {
                f.shard_argument(packed_numbers, &partitioned.replicated(), ty.shape());
            }
            packed.insert(class, packed_numbers);
        }
    }
    for (position, param) in recording.params.iter().enumerate() {
        let node = param.node as usize;
        if node >= extent.len || !needed[node] {
            continue;
        }
        let position = position as u32;
        let ty = recording.nodes[node].ty;
        let result = param
            .rebound
            .and_then(|n| extent.live.binary_search(&n).ok());
        let alias = result
            .filter(|_| extent.donors.binary_search(&position).is_ok())
            .filter(|&at| partitioned.is_none_or(|p| p.keeps(position, at)));
        if alias.is_some() {
            donated.push(arguments.len());
        }
        let Some(partitioned) = partitioned else {
            arguments.push((Argument::Param(position), ty));
            values[node] = Some(f.argument(ty, alias));
            continue;
        };
        let sharding = partitioned.parameter(position);
        let stored = padded(ty, sharding);
        arguments.push((Argument::Param(position), stored));
        let argument = f.argument(stored, alias);
        values[node] = Some(f.shard_argument(argument, sharding, ty.shape()));
    }
    // A number that several nodes read is one value, as the results of one loop count on.
    let mut scalars: HashMap<(NumberClass, u32), Value> = HashMap::new();
    if extent.ordered {
        arguments.push((Argument::Order, order_type()));
        f.begin_effects(order_type());
    }
    for index in 0..extent.len {
        let node = &recording.nodes[index];
        if !needed[index] || node.has(flag::PARAM) {
            continue;
        }
        let mut inputs = Vec::with_capacity(recording.inputs(node).len());
        for input in recording.inputs(node) {
            inputs.push(match input {
                Input::Node(j) => values[j as usize].ok_or_else(|| Error::Internal {
                    what: "lowering",
                    expected: format!("operand {j} of {} before it", node.entry.name),
                })?,
                Input::Number(class, slot) => *scalars
                    .entry((class, slot))
                    .or_insert_with(|| f.number(packed[&class], slot as usize)),
            });
        }
        if node.has(flag::COLLECTIVE) {
            f.next_collective();
        }
        let value = node
            .entry
            .op
            .lower(&mut f, &inputs, node.ty)
            .map_err(|e| e.at(node.location))?;
        if value.ty() != node.ty {
            return Err(Error::Internal {
                what: node.entry.name,
                expected: format!("lowering to give {}, not {}", node.ty, value.ty()),
            });
        }
        values[index] = Some(value);
        let seen = f.take_watched();
        if !seen.is_empty() {
            watched.push((index as u32, seen));
        }
    }
    let mut results: Vec<Value> = extent
        .live
        .iter()
        .filter_map(|&i| values[i as usize])
        .collect();
    if let Some(partitioned) = partitioned {
        f.shard_results(&mut results, &partitioned.results);
    }
    let (checks, told) = Checks::lower(&mut f, &values, &watched);
    results.extend(told);
    results.extend(f.order());
    let types = results.iter().map(|v| v.ty()).collect();
    let text = f.finish(name, &results);
    Ok(Lowered {
        text,
        arguments,
        donated,
        results: types,
        operators,
        checks,
    })
}

/// The type as which a value arrives and leaves that is spread like this.
fn padded(of: Ty, sharding: &NamedSharding) -> Ty {
    ty(of.dtype(), &sharding.padded_shape(of.shape()))
}

/// The type of an order value. Only who computes it matters: its element is always 0.
pub(crate) fn order_type() -> Ty {
    ty(xla_core::DType::I32, &Shape::scalar())
}

/// Which of the nodes the outputs need.
pub(crate) fn reachable(recording: &Recording, extent: &Extent) -> Vec<bool> {
    let mut needed = vec![false; extent.len];
    for &i in &extent.live {
        needed[i as usize] = true;
    }
    // A collective runs on every replica, whoever reads its result.
    for (i, node) in recording.nodes[..extent.len].iter().enumerate() {
        needed[i] |= node.has(flag::COLLECTIVE);
    }
    for i in (0..extent.len).rev() {
        if needed[i] {
            for input in recording.inputs(&recording.nodes[i]) {
                if let Input::Node(j) = input {
                    needed[j as usize] = true;
                }
            }
        }
    }
    needed
}
