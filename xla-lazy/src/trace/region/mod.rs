//! Regions: functions of tensors that are recorded by themselves, to be the bodies of operators.
//!
//! While a region is open its recording takes the place of the trace's. A value from outside enters it
//! as a capture, which the outer recording computes once; a tensor from outside that is changed in
//! place becomes an argument and a result, so that the change can be carried on. When the region is
//! closed what its results need is copied out, and the outer recording goes on as if nothing had
//! been recorded.

mod copy;
mod open;
mod replay;

pub(crate) use open::{Argument, record_region};
pub(super) use open::{Changed, Enclosing};
pub(crate) use replay::replay;

use super::recording::{Input, NumberClass};
use crate::grad::Function;
use crate::op::{Number, OpEntry};
use crate::stablehlo::{Func, Origin, Value as Lowered};
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::ty::Ty;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::Arc;
use xla_core::{Error, Result};

/// What a node of a region is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// An argument of the region.
    Argument(u32),
    /// A value from outside.
    Capture(u32),
    /// An operator. Numbers are counted over all of the region's classes.
    Apply(&'static OpEntry, Box<[Input]>),
}

/// One node of a region.
#[derive(Debug, Clone)]
pub(crate) struct RegionNode {
    pub(crate) step: Step,
    pub(crate) ty: Ty,
    /// Not part of what makes two regions one.
    pub(crate) location: &'static Location<'static>,
}

impl PartialEq for RegionNode {
    fn eq(&self, other: &Self) -> bool {
        self.step == other.step && self.ty == other.ty
    }
}

impl Eq for RegionNode {}

impl Hash for RegionNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.step.hash(state);
        self.ty.hash().hash(state);
    }
}

/// A function of tensors: what its results need, in the order recorded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Region {
    pub(crate) nodes: Vec<RegionNode>,
    pub(crate) captures: u32,
    /// The classes of its numbers, which are operands of the operator it belongs to.
    pub(crate) numbers: Vec<NumberClass>,
    /// The nodes returned.
    pub(crate) results: Vec<u32>,
}

impl Region {
    /// The type of a result.
    pub(crate) fn result(&self, index: usize) -> Ty {
        self.nodes[self.results[index] as usize].ty
    }

    /// Takes a capture for an argument.
    pub(crate) fn promote(&mut self, capture: u32, argument: u32) {
        for node in &mut self.nodes {
            match &mut node.step {
                Step::Capture(k) if *k == capture => node.step = Step::Argument(argument),
                Step::Capture(k) if *k > capture => *k -= 1,
                _ => {}
            }
        }
        self.captures -= 1;
    }

    /// The results as values of a function under construction.
    ///
    /// # Errors
    /// What an operator's lowering returns, with its line.
    pub(crate) fn lower(
        &self,
        f: &mut Func,
        arguments: &[Lowered],
        captures: &[Lowered],
        numbers: &[Lowered],
    ) -> Result<Vec<Lowered>> {
        let mut values: Vec<Lowered> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let value = match &node.step {
                Step::Argument(i) => arguments[*i as usize],
                Step::Capture(k) => captures[*k as usize],
                Step::Apply(entry, inputs) => {
                    let inputs: Vec<Lowered> = inputs
                        .iter()
                        .map(|input| match input {
                            Input::Node(j) => values[*j as usize],
                            Input::Number(_, k) => numbers[*k as usize],
                        })
                        .collect();
                    let inside = Origin {
                        op: entry.name,
                        at: node.location,
                    };
                    let lowered =
                        f.watch_inside(inside, &inputs, |f| entry.op.lower(f, &inputs, node.ty));
                    lowered.map_err(|e| e.at(node.location))?
                }
            };
            if value.ty() != node.ty {
                return Err(Error::Internal {
                    what: "region",
                    expected: format!("a value of {}, not {}", node.ty, value.ty()),
                });
            }
            values.push(value);
        }
        Ok(self.results.iter().map(|&r| values[r as usize]).collect())
    }
}

/// What autograd knows of a region's nodes. It belongs to one recording of the region, not to the
/// program.
#[derive(Default)]
pub(crate) struct Tape {
    /// Whether a gradient flows to the node.
    pub(crate) flows: Vec<bool>,
    /// Nodes with a derivative of their own.
    pub(crate) functions: HashMap<u32, Arc<dyn Function>>,
}

/// A recorded region and what it was recorded with.
pub(crate) struct Recorded {
    pub(crate) region: Region,
    pub(crate) tape: Tape,
    pub(crate) captures: Vec<Tensor>,
    pub(crate) numbers: Vec<Number>,
    /// Tensors from outside that the region changes in place, with the values they have before.
    pub(crate) changed: Vec<(Arc<Storage>, Tensor)>,
}

impl Recorded {
    /// Whether a gradient flows to a result.
    pub(crate) fn flows(&self, result: usize) -> bool {
        self.tape.flows[self.region.results[result] as usize]
    }
}
