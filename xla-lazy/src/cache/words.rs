//! The words that a program's key hashes, kept to be compared when the key is met again.

use crate::compiled::CompilerOption;
use crate::lower::Extent;
use crate::op::OpEntry;
use crate::trace::{Input, Recording};
use crate::ty::Ty;
use std::collections::BTreeMap;
use std::panic::Location;

/// The words that were hashed, to be compared when a key is met again: equal hashes alone never
/// make two programs one.
pub(super) struct Words {
    nodes: Vec<Word>,
    operands: Vec<u32>,
    pub(super) extent: Extent,
    numbers: [usize; 3],
    rebound: Vec<Option<u32>>,
    compiler: BTreeMap<String, CompilerOption>,
}

/// What was hashed of one node, and the line that recorded it, which was not.
#[derive(Clone, Copy)]
pub(super) struct Word {
    pub(super) entry: &'static OpEntry,
    pub(super) ty: Ty,
    first: u32,
    count: u16,
    pub(super) location: &'static Location<'static>,
}

impl Words {
    pub(super) fn of(recording: &Recording, extent: &Extent) -> Self {
        Words {
            nodes: recording.nodes[..extent.len]
                .iter()
                .map(|n| {
                    let (first, count) = recording.operand_range(n);
                    Word {
                        entry: n.entry,
                        ty: n.ty,
                        first,
                        count,
                        location: n.location,
                    }
                })
                .collect(),
            operands: recording.operand_words()[..operands_of(recording, extent.len)].to_vec(),
            extent: extent.clone(),
            numbers: extent.numbers(recording),
            rebound: rebound(recording, extent).collect(),
            compiler: compiler(recording).cloned().unwrap_or_default(),
        }
    }

    pub(super) fn matches(&self, recording: &Recording, extent: &Extent) -> bool {
        self.extent == *extent
            && self.numbers == extent.numbers(recording)
            && self.operands == recording.operand_words()[..operands_of(recording, extent.len)]
            && self
                .nodes
                .iter()
                .zip(&recording.nodes)
                .all(|(logged, node)| {
                    std::ptr::eq(logged.entry, node.entry)
                        && std::ptr::eq(logged.ty, node.ty)
                        && (logged.first, logged.count) == recording.operand_range(node)
                })
            && self.rebound.iter().copied().eq(rebound(recording, extent))
            && compiler(recording).map_or(self.compiler.is_empty(), |c| *c == self.compiler)
    }

    pub(super) fn same_rebound(&self, other: &Words) -> bool {
        self.rebound == other.rebound
    }

    pub(super) fn nodes(&self) -> &[Word] {
        &self.nodes
    }

    /// The operands of a node.
    pub(super) fn inputs(&self, word: &Word) -> impl ExactSizeIterator<Item = Input> + '_ {
        self.encoded(word).iter().map(|w| Input::decode(*w))
    }

    fn encoded(&self, word: &Word) -> &[u32] {
        let first = word.first as usize;
        &self.operands[first..first + word.count as usize]
    }

    /// How many operators, from the first one on, are the same in both.
    pub(super) fn common(&self, other: &Words) -> usize {
        let pairs = self.nodes.iter().zip(&other.nodes);
        pairs
            .take_while(|(a, b)| {
                std::ptr::eq(a.entry, b.entry)
                    && std::ptr::eq(a.ty, b.ty)
                    && self.encoded(a) == other.encoded(b)
            })
            .count()
    }
}

/// XLA's options that the recording is to be compiled with.
fn compiler(recording: &Recording) -> Option<&BTreeMap<String, CompilerOption>> {
    recording
        .function
        .as_ref()
        .map(|function| &function.compiler)
}

fn operands_of(recording: &Recording, len: usize) -> usize {
    let (first, count) = recording.operand_range(&recording.nodes[len - 1]);
    first as usize + count as usize
}

/// Which output each donor becomes: part of the program.
fn rebound<'a>(recording: &'a Recording, extent: &'a Extent) -> impl Iterator<Item = Option<u32>> {
    extent
        .donors
        .iter()
        .map(|&d| recording.params[d as usize].rebound)
}
