//! A trace's recording, cut off to be executed: what is live in it and what may be donated.

use crate::gang::{Collective, Proposal};
use crate::hash::{self, Hash128};
use crate::lower::Extent;
use crate::storage::Storage;
use crate::trace::{Input, Recording, flag, number_type};

/// A recording that no longer grows.
pub(crate) struct Pending {
    pub(crate) recording: Recording,
    /// Nodes whose value a reachable tensor needs, ascending.
    live: Vec<u32>,
    flushed: Vec<(usize, Hash128)>,
}

impl Pending {
    pub(crate) fn new(
        recording: Recording,
        live: Vec<u32>,
        flushed: Vec<(usize, Hash128)>,
    ) -> Self {
        Pending {
            recording,
            live,
            flushed,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.recording.nodes.len()
    }

    /// What this replica alone would run of the first `len` nodes.
    pub(crate) fn extent(&self, len: usize) -> Extent {
        Extent {
            len,
            live: Proposal::live(self, len),
            donors: Proposal::donors(self, len),
            ordered: false,
        }
    }

    /// Whether the node of a tail that begins at `len` reads this node.
    fn read_by_tail(&self, len: usize) -> Vec<bool> {
        let mut read = vec![false; len];
        for node in &self.recording.nodes[len..] {
            for input in self.recording.inputs(node) {
                if let Input::Node(j) = input
                    && (j as usize) < len
                {
                    read[j as usize] = true;
                }
            }
        }
        read
    }
}

/// The nodes whose storage somebody other than the trace holds.
pub(crate) fn live_nodes(recording: &Recording) -> Vec<u32> {
    let held = |storage: &Option<_>| storage.as_ref().is_some_and(Storage::is_held);
    (0u32..)
        .zip(recording.storages.iter().zip(&recording.nodes))
        .filter(|(_, (storage, node))| held(storage) && !node.has(flag::PARAM))
        .map(|(index, _)| index)
        .collect()
}

impl Proposal for Pending {
    fn len(&self) -> usize {
        self.recording.nodes.len()
    }

    fn chain(&self, n: usize) -> Hash128 {
        match n.checked_sub(1) {
            Some(last) => self.recording.chain[last],
            None => crate::hash::SEED,
        }
    }

    fn has_collective(&self, n: usize) -> bool {
        let mut nodes = self.recording.nodes[..n].iter();
        nodes.any(|node| node.has(flag::COLLECTIVE))
    }

    fn collectives(&self, n: usize) -> Vec<Collective> {
        let nodes = self.recording.nodes[..n].iter().enumerate();
        nodes
            .filter(|(_, node)| node.has(flag::COLLECTIVE))
            .map(|(index, node)| {
                let mut print = node.entry.hash;
                let types = self.recording.inputs(node).map(|input| match input {
                    Input::Node(j) => self.recording.nodes[j as usize].ty,
                    Input::Number(class, _) => number_type(class),
                });
                for ty in types.chain([node.ty]) {
                    print = hash::fold(print, ty.hash()[0], ty.hash()[1]);
                }
                Collective {
                    index,
                    fingerprint: print,
                    location: node.location,
                }
            })
            .collect()
    }

    fn describe(&self, index: usize) -> String {
        let node = &self.recording.nodes[index];
        format!("{:?} -> {} at {}", node.entry, node.ty, node.location)
    }

    fn live(&self, n: usize) -> Vec<u32> {
        if n == self.len() {
            return self.live.clone();
        }
        let read = self.read_by_tail(n);
        let mut live: Vec<u32> = self
            .live
            .iter()
            .copied()
            .filter(|&i| (i as usize) < n)
            .collect();
        live.extend(
            (0..n as u32).filter(|&i| {
                read[i as usize] && !self.recording.nodes[i as usize].has(flag::PARAM)
            }),
        );
        live.sort_unstable();
        live.dedup();
        live
    }

    fn donors(&self, n: usize) -> Vec<u32> {
        let read = if n == self.len() {
            Vec::new()
        } else {
            self.read_by_tail(n)
        };
        let params = (0u32..).zip(&self.recording.params);
        params
            .filter(|(_, p)| (p.node as usize) < n)
            .filter(|(_, p)| !read.get(p.node as usize).is_some_and(|r| *r))
            .filter(|(_, p)| {
                p.rebound
                    .is_some_and(|to| (to as usize) < n && self.live.binary_search(&to).is_ok())
            })
            .map(|(position, _)| position)
            .collect()
    }

    fn flushed(&self) -> &[(usize, Hash128)] {
        &self.flushed
    }
}
