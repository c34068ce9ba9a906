//! What makes two programs the same.

use crate::hash::{self, Hash128};
use crate::lower::Extent;
use crate::spmd::Partitioned;
use crate::trace::Recording;

/// Where a program runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Placement {
    /// On whichever device its arguments are.
    Portable,
    /// As one replica for each of these devices, in this order.
    Replicas(Vec<usize>),
    /// On all devices of a mesh, over which the compiler partitions it.
    Partitioned(Box<Partitioned>),
}

impl Placement {
    /// How it is partitioned, if it is.
    pub(crate) fn partitioned(&self) -> Option<&Partitioned> {
        match self {
            Placement::Partitioned(partitioned) => Some(partitioned),
            Placement::Portable | Placement::Replicas(_) => None,
        }
    }
}

/// What makes two programs the same. Nothing in it depends on addresses, timing or the order of a
/// hash map, so it is the same on every rank and every run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Key {
    operators: Hash128,
    outputs: Hash128,
    donors: Hash128,
    ordered: bool,
    pub(super) placement: Placement,
}

impl Key {
    pub(super) fn new(recording: &Recording, extent: &Extent, placement: Placement) -> Self {
        let list = |items: &[u32]| hash::extend(hash::SEED, items);
        Key {
            operators: recording.chain[extent.len - 1],
            outputs: list(&extent.live),
            donors: list(&extent.donors),
            ordered: extent.ordered,
            placement,
        }
    }
}
