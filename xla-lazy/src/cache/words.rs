//! The words that a program's key hashes, kept to be compared when the key is met again.

use crate::lower::Extent;
use crate::op::OpEntry;
use crate::trace::Recording;
use crate::ty::Ty;

/// The words that were hashed, to be compared when a key is met again: equal hashes alone never
/// make two programs one.
pub(super) struct Log {
    nodes: Vec<(&'static OpEntry, Ty, u32, u16)>,
    operands: Vec<u32>,
    extent: Extent,
    numbers: [usize; 3],
    rebound: Vec<Option<u32>>,
}

impl Log {
    pub(super) fn of(recording: &Recording, extent: &Extent) -> Self {
        Log {
            nodes: recording.nodes[..extent.len]
                .iter()
                .map(|n| {
                    let (first, count) = recording.operand_range(n);
                    (n.entry, n.ty, first, count)
                })
                .collect(),
            operands: recording.operand_words()[..operands_of(recording, extent.len)].to_vec(),
            extent: extent.clone(),
            numbers: extent.numbers(recording),
            rebound: rebound(recording, extent).collect(),
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
                    std::ptr::eq(logged.0, node.entry)
                        && std::ptr::eq(logged.1, node.ty)
                        && (logged.2, logged.3) == recording.operand_range(node)
                })
            && self.rebound.iter().copied().eq(rebound(recording, extent))
    }
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
