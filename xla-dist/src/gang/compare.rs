//! Whether the processes of a group execute the same collectives in the same order: a state machine
//! without threads or networks.
//!
//! A group numbers its collectives from 0, in the order executed: its sequence. Each process
//! announces the collectives of a program before it starts it, by their place in the sequence, and
//! compares what it has announced with what the others announce, whichever comes first. Programs
//! need not be cut at the same places. What is announced once, collectives with their text and lists
//! of them, gets a number and is announced by it from then on, so that a step costs a few bytes.

use serde::{Deserialize, Serialize};
use std::collections::{HashMap, VecDeque};
use std::panic::Location;
use xla_lazy::{Collective, Hash128};

/// Programs of one process that may wait to be compared with those of the others.
pub(super) const BACKLOG: usize = 1024;

/// A collective at one line of the user's program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    fingerprint: Hash128,
    /// Operator, type and line, for errors.
    text: String,
}

/// What one process announces before it starts a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Announcement {
    /// Place in the sequence of the program's first collective.
    base: u64,
    /// Which list of collectives the program has.
    list: u32,
    /// The list itself, when it is announced for the first time.
    defines: Option<Vec<u32>>,
    /// Collectives that are announced for the first time.
    entries: Vec<Entry>,
}

/// Two processes that execute different collectives at one place of the sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mismatch {
    pub(super) sequence: u64,
    /// The other process.
    pub(super) process: usize,
    pub(super) theirs: String,
    pub(super) ours: String,
}

/// Why an announcement is not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Rejected {
    Mismatch(Mismatch),
    /// It does not follow from what was announced before: a defect.
    Malformed(&'static str),
}

/// What a process has announced.
#[derive(Debug, Default)]
struct Announced {
    entries: Vec<Entry>,
    lists: Vec<Vec<u32>>,
    /// Programs that are not compared with all others yet: base and list.
    log: VecDeque<(u64, u32)>,
    /// One past the last collective announced.
    end: u64,
}

impl Announced {
    fn add(&mut self, announcement: Announcement) -> Result<(), Rejected> {
        let Announcement {
            base,
            list,
            defines,
            entries,
        } = announcement;
        self.entries.extend(entries);
        if let Some(defined) = defines {
            if list as usize != self.lists.len() {
                return Err(Rejected::Malformed("lists numbered in order"));
            }
            if defined.iter().any(|e| *e as usize >= self.entries.len()) {
                return Err(Rejected::Malformed("lists of known collectives"));
            }
            self.lists.push(defined);
        }
        let Some(length) = self.lists.get(list as usize).map(Vec::len) else {
            return Err(Rejected::Malformed("a list announced before"));
        };
        if base != self.end {
            return Err(Rejected::Malformed("programs in the group's sequence"));
        }
        if self.log.len() >= 2 * BACKLOG {
            return Err(Rejected::Malformed("a process that waits for the others"));
        }
        self.log.push_back((base, list));
        self.end += length as u64;
        Ok(())
    }

    /// The collectives from `from` on, with their places.
    fn since(&self, from: u64) -> impl Iterator<Item = (u64, &Entry)> {
        let first = self.log.partition_point(|(base, _)| *base <= from);
        let programs = self.log.range(first.saturating_sub(1)..);
        programs
            .flat_map(|(base, list)| {
                let list = self.lists.get(*list as usize).into_iter().flatten();
                (*base..).zip(list)
            })
            .filter(move |(place, _)| *place >= from)
            .filter_map(|(place, entry)| Some((place, self.entries.get(*entry as usize)?)))
    }

    /// Forgets the programs that lie wholly before `until`.
    fn forget(&mut self, until: u64) {
        while let Some((base, list)) = self.log.front()
            && base + self.lists.get(*list as usize).map_or(0, Vec::len) as u64 <= until
        {
            self.log.pop_front();
        }
    }
}

/// Another process.
#[derive(Debug, Default)]
struct Peer {
    announced: Announced,
    /// One past the last collective found equal.
    compared: u64,
}

impl Peer {
    /// Compares what both have announced by now.
    fn compare(&mut self, process: usize, own: &Announced) -> Result<(), Mismatch> {
        let pairs = own
            .since(self.compared)
            .zip(self.announced.since(self.compared));
        for ((sequence, ours), (_, theirs)) in pairs {
            if ours.fingerprint != theirs.fingerprint {
                return Err(Mismatch {
                    sequence,
                    process,
                    theirs: theirs.text.clone(),
                    ours: ours.text.clone(),
                });
            }
        }
        self.compared = own.end.min(self.announced.end);
        self.announced.forget(self.compared);
        Ok(())
    }
}

/// What this process knows of the collectives that a group's processes execute.
#[derive(Debug)]
pub(super) struct Comparison {
    own: Announced,
    entries: HashMap<(Hash128, &'static Location<'static>), u32>,
    lists: HashMap<Vec<u32>, u32>,
    /// By process of the set; `None` for this one.
    peers: Vec<Option<Peer>>,
}

/// A program that may be announced.
#[derive(Debug)]
pub(super) struct Announcing {
    pub(super) announcement: Announcement,
    /// Its list of collectives.
    pub(super) list: u32,
    /// Whether its list of collectives is executed for the first time.
    pub(super) first_use: bool,
}

impl Comparison {
    pub(super) fn new(own: usize, processes: usize) -> Self {
        Comparison {
            own: Announced::default(),
            entries: HashMap::new(),
            lists: HashMap::new(),
            peers: (0..processes)
                .map(|process| (process != own).then(Peer::default))
                .collect(),
        }
    }

    /// The place in the sequence of the next program's first collective.
    pub(super) fn next(&self) -> u64 {
        self.own.end
    }

    /// Announces a program of this process; `describe` gives the text of one of its operators. The
    /// second value is whether the others have announced the same so far.
    pub(super) fn announce(
        &mut self,
        collectives: &[Collective],
        describe: impl Fn(usize) -> String,
    ) -> (Announcing, Result<(), Rejected>) {
        let mut fresh = Vec::new();
        let numbers: Vec<u32> = collectives
            .iter()
            .map(|collective| {
                let next = self.entries.len() as u32;
                let key = (collective.fingerprint, collective.location);
                *self.entries.entry(key).or_insert_with(|| {
                    fresh.push(Entry {
                        fingerprint: collective.fingerprint,
                        text: describe(collective.index),
                    });
                    next
                })
            })
            .collect();
        let next = self.lists.len() as u32;
        let known = self.lists.get(&numbers).copied();
        if known.is_none() {
            self.lists.insert(numbers.clone(), next);
        }
        let announcement = Announcement {
            base: self.own.end,
            list: known.unwrap_or(next),
            defines: known.is_none().then_some(numbers),
            entries: fresh,
        };
        let compared = self
            .own
            .add(announcement.clone())
            .and_then(|()| self.compare());
        let announcing = Announcing {
            list: announcement.list,
            announcement,
            first_use: known.is_none(),
        };
        (announcing, compared)
    }

    /// Takes in what another process has announced.
    ///
    /// # Errors
    /// Where it differs from what this process has announced, or does not follow from what the other
    /// has announced before.
    pub(super) fn receive(
        &mut self,
        process: usize,
        announcement: Announcement,
    ) -> Result<(), Rejected> {
        let Some(Some(peer)) = self.peers.get_mut(process) else {
            return Err(Rejected::Malformed("another process of the set"));
        };
        peer.announced.add(announcement)?;
        self.compare()
    }

    fn compare(&mut self) -> Result<(), Rejected> {
        for (process, peer) in self.peers.iter_mut().enumerate() {
            if let Some(peer) = peer {
                peer.compare(process, &self.own)
                    .map_err(Rejected::Mismatch)?;
            }
        }
        let compared = self.peers.iter().flatten().map(|peer| peer.compared);
        self.own.forget(compared.min().unwrap_or(self.own.end));
        Ok(())
    }

    /// The processes that have not announced the collective at this place.
    pub(super) fn without(&self, place: u64) -> impl Iterator<Item = usize> + '_ {
        let peers = self.peers.iter().enumerate();
        peers
            .filter(move |(_, peer)| peer.as_ref().is_some_and(|p| p.announced.end <= place))
            .map(|(process, _)| process)
    }

    /// Whether this process is so far ahead of another that it should wait.
    pub(super) fn is_far_ahead(&self) -> bool {
        self.own.log.len() > BACKLOG
    }

    /// Operator, type and line of a collective of one of this process's lists.
    pub(super) fn text(&self, list: u32, collective: usize) -> Option<&str> {
        let entry = *self.own.lists.get(list as usize)?.get(collective)?;
        Some(self.own.entries.get(entry as usize)?.text.as_str())
    }
}

#[cfg(test)]
mod tests;
