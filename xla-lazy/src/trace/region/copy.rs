//! Copying a region out of the recording it was recorded in.

use super::{Region, RegionNode, Step, Tape};
use crate::op::Number;
use crate::storage::Storage;
use crate::trace::recording::{Input, Node, NumberClass, Recording, flag};
use std::collections::HashMap;
use std::sync::Arc;

/// The part of a recording that the results need.
pub(super) struct Copied {
    pub(super) region: Region,
    pub(super) tape: Tape,
    /// Nodes of the recording.
    pub(super) captures: Vec<u32>,
    pub(super) numbers: Vec<Number>,
    /// Numbers of the recording that have been copied.
    copied: HashMap<(NumberClass, u32), u32>,
    /// Where the recording's nodes are in the region.
    pub(super) places: Vec<Option<u32>>,
}

impl Copied {
    pub(super) fn of(
        inner: &Recording,
        arguments: usize,
        results: &[u32],
        insert: usize,
        changed: &[(Arc<Storage>, u32, u32)],
    ) -> Copied {
        let mut all: Vec<u32> = results.to_vec();
        let at = insert.min(all.len());
        all.splice(at..at, changed.iter().map(|(_, _, last)| *last));
        let needed = needed(inner, &all);
        let mut copied = Copied {
            region: Region {
                nodes: Vec::new(),
                captures: 0,
                numbers: Vec::new(),
                results: Vec::new(),
            },
            tape: Tape::default(),
            captures: Vec::new(),
            numbers: Vec::new(),
            copied: HashMap::new(),
            places: vec![None; inner.nodes.len()],
        };
        for (index, node) in (0u32..).zip(&inner.nodes) {
            if !needed[index as usize] {
                continue;
            }
            let step = copied.step(inner, arguments, insert, changed, index, node);
            copied.places[index as usize] = Some(copied.region.nodes.len() as u32);
            copied.tape.flows.push(node.has(flag::GRAD));
            copied.region.nodes.push(RegionNode {
                step,
                ty: node.ty,
                location: node.location,
            });
        }
        copied.region.captures = copied.captures.len() as u32;
        let places = &copied.places;
        let place = |node: u32| places[node as usize].unwrap_or_default();
        copied.region.results = all.into_iter().map(place).collect();
        copied
    }

    fn step(
        &mut self,
        inner: &Recording,
        arguments: usize,
        insert: usize,
        changed: &[(Arc<Storage>, u32, u32)],
        index: u32,
        node: &Node,
    ) -> Step {
        if node.has(flag::PARAM) {
            let carried = changed.iter().position(|(_, capture, _)| *capture == index);
            return match carried {
                Some(at) => Step::Argument((insert + at) as u32),
                None if (index as usize) < insert => Step::Argument(index),
                None if (index as usize) < arguments => {
                    Step::Argument(index + changed.len() as u32)
                }
                None => {
                    self.captures.push(index);
                    Step::Capture(self.captures.len() as u32 - 1)
                }
            };
        }
        let inputs = inner.inputs(node).map(|input| match input {
            Input::Node(j) => Input::Node(self.places[j as usize].unwrap_or_default()),
            Input::Number(class, slot) => {
                let known = self.copied.get(&(class, slot)).copied();
                Input::Number(
                    class,
                    known.unwrap_or_else(|| self.number(inner, class, slot)),
                )
            }
        });
        let inputs: Vec<Input> = inputs.collect();
        Step::Apply(node.entry, inputs.into())
    }
}

impl Copied {
    fn number(&mut self, inner: &Recording, class: NumberClass, slot: u32) -> u32 {
        let at = self.numbers.len() as u32;
        self.region.numbers.push(class);
        self.numbers.push(inner.numbers.get(class, slot));
        self.copied.insert((class, slot), at);
        at
    }
}

fn needed(recording: &Recording, results: &[u32]) -> Vec<bool> {
    let mut needed = vec![false; recording.nodes.len()];
    for &result in results {
        needed[result as usize] = true;
    }
    for index in (0..needed.len()).rev() {
        if needed[index] {
            for input in recording.inputs(&recording.nodes[index]) {
                if let Input::Node(j) = input {
                    needed[j as usize] = true;
                }
            }
        }
    }
    needed
}
