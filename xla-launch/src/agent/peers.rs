//! What an agent knows of the others.

use serde::{Deserialize, Serialize};
use xla_core::{Error, Result};
use xla_store::Event;

/// What agents tell each other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Word {
    /// This node can begin the attempt, with so many workers.
    Ready {
        /// Counted from 0.
        attempt: u64,
        /// Workers of the node.
        workers: usize,
    },
    /// A worker of this node has failed.
    Failed {
        /// In which attempt.
        attempt: u64,
        /// Which, and how.
        setback: Setback,
    },
    /// All workers of this node have ended well.
    Done {
        /// In which attempt.
        attempt: u64,
    },
}

/// The failure that ended an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Setback {
    /// What a shell would say.
    pub(super) code: i32,
    /// Who, and how.
    pub(super) reason: String,
}

/// One node's state, as far as it has told.
#[derive(Debug, Clone, Default)]
struct Peer {
    workers: usize,
    /// Attempts that it has been ready for.
    ready: u64,
    /// Attempts up to and including the last that it ended well.
    done: u64,
    failed: Option<(u64, Setback)>,
}

/// All nodes, this one included.
#[derive(Debug)]
pub(super) struct Peers {
    own: usize,
    peers: Vec<Peer>,
}

impl Peers {
    pub(super) fn new(own: usize, nodes: usize) -> Self {
        Peers {
            own,
            peers: vec![Peer::default(); nodes],
        }
    }

    /// Takes in what happened.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] when a node is lost that is still needed, or the store is.
    pub(super) fn hear(&mut self, event: Event) -> Result<()> {
        let lost = |node: usize, reason: String| Error::Rendezvous {
            url: format!("node {node}"),
            reason,
            advice: "look at the output of xlarun there",
        };
        match event {
            Event::Message { from, bytes } => self.note(from, crate::process::decode(&bytes)?),
            // It had no more to say, and what it said is known.
            Event::Left { .. } => {}
            Event::Failed { member, reason } => return Err(lost(member, reason)),
            Event::Lost { reason } => return Err(lost(0, reason)),
        }
        Ok(())
    }

    /// Takes in what a node said; its words come in order.
    pub(super) fn note(&mut self, node: usize, word: Word) {
        let Some(peer) = self.peers.get_mut(node) else {
            return;
        };
        match word {
            Word::Ready { attempt, workers } => {
                peer.workers = workers;
                peer.ready = attempt + 1;
            }
            Word::Failed { attempt, setback } => peer.failed = Some((attempt, setback)),
            Word::Done { attempt } => peer.done = attempt + 1,
        }
    }

    /// Nodes that are not ready for the attempt yet.
    pub(super) fn absent(&self, attempt: u64) -> Vec<usize> {
        let others = self.others();
        others
            .filter(|(_, peer)| peer.ready <= attempt)
            .map(|(node, _)| node)
            .collect()
    }

    /// The failure of another node that has ended the attempt.
    pub(super) fn setback(&self, attempt: u64) -> Option<Setback> {
        self.others()
            .find_map(|(_, peer)| peer.failed.clone().filter(|(when, _)| *when == attempt))
            .map(|(_, setback)| setback)
    }

    /// Whether all others have ended the attempt well.
    pub(super) fn all_done(&self, attempt: u64) -> bool {
        self.others().all(|(_, peer)| peer.done > attempt)
    }

    /// Number of workers on the nodes before this one: the first rank there.
    pub(super) fn workers_before(&self, node: usize) -> usize {
        self.peers.iter().take(node).map(|peer| peer.workers).sum()
    }

    fn others(&self) -> impl Iterator<Item = (usize, &Peer)> {
        let own = self.own;
        self.peers
            .iter()
            .enumerate()
            .filter(move |(node, _)| *node != own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(attempt: u64) -> Word {
        Word::Ready {
            attempt,
            workers: 2,
        }
    }

    #[test]
    fn an_attempt_begins_when_all_are_ready() {
        let mut peers = Peers::new(0, 3);
        peers.note(0, ready(0));
        assert_eq!(peers.absent(0), [1, 2]);
        peers.note(2, ready(0));
        peers.note(1, ready(0));
        assert!(peers.absent(0).is_empty());
        assert_eq!(peers.absent(1), [1, 2]);
        assert_eq!((peers.workers_before(1), peers.workers_before(3)), (2, 6));
    }

    #[test]
    fn a_failure_belongs_to_its_attempt() {
        let mut peers = Peers::new(0, 2);
        let setback = Setback {
            code: 3,
            reason: "rank 2".into(),
        };
        peers.note(
            1,
            Word::Failed {
                attempt: 0,
                setback: setback.clone(),
            },
        );
        peers.note(1, ready(1));
        assert_eq!((peers.setback(0), peers.setback(1)), (Some(setback), None));
        assert!(!peers.all_done(1));
        peers.note(1, Word::Done { attempt: 1 });
        assert!(peers.all_done(1));
    }

    #[test]
    fn a_lost_node_is_named() {
        let mut peers = Peers::new(0, 2);
        let event = Event::Failed {
            member: 1,
            reason: "its connection ended".into(),
        };
        let error = peers.hear(event).unwrap_err().to_string();
        assert!(error.contains("node 1: its connection ended"), "{error}");
    }
}
