//! The replicas that run programs with collectives together, as those of one process see it.
//!
//! XLA ends the whole process when one replica of a collective does not come. So members meet
//! before each such program, twice: [`Gang::settle`] agrees on what to run, and [`Gang::vote`],
//! after everything that can fail, that all are about to. Whoever waits does so in the launch
//! ([`Launch::wait_until`]), so a replica that returns or fails wakes all of them at once.

mod across;
mod agree;
mod compare;
mod cost;
mod launched;
mod layout;
mod wire;

pub(crate) use across::{Across, Control};
#[cfg(feature = "gloo")]
pub(crate) use cost::spent as spent_on_checks;
pub(crate) use launched::Launched;
pub(crate) use layout::Layout;
pub(crate) use wire::{Hello, Message, News};

use agree::{Agreement, agree};
use std::fmt::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xla_core::{Error, Result};
use xla_lazy::{Gang, Proposal, Settlement, Start};
use xla_runtime::context::{Launch, Standing};

/// The exit code of a process whose collectives neither completed nor could be cancelled within
/// the deadline: `EX_TEMPFAIL`, worth another try.
pub const OVERDUE_EXIT_CODE: i32 = 75;

/// What errors call the thing that members wait for.
const WAITED_FOR: &str = "a collective";

/// One member's handle on the gang of thread replicas.
pub(crate) struct ThreadGang {
    shared: Arc<Shared>,
    member: usize,
}

/// What the members of a gang in one process share.
pub(crate) struct Shared {
    launch: Arc<Launch>,
    /// Global ranks of the members in this process.
    ranks: Vec<usize>,
    devices: Vec<usize>,
    room: Mutex<Room>,
    /// Where there are members in other processes.
    across: Option<Across>,
}

/// What a member is doing, for the report of [`Gang::overdue`].
#[derive(Debug, Clone, Copy)]
enum Doing {
    Recording,
    Proposed(usize),
    Preparing,
    Ready,
    Launched(i32),
}

impl fmt::Display for Doing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Doing::Recording => f.write_str("has not come to a collective"),
            Doing::Proposed(n) => write!(f, "waits for the others with {n} operator(s) pending"),
            Doing::Preparing => f.write_str("prepares the program"),
            Doing::Ready => f.write_str("is ready and waits for the others"),
            Doing::Launched(id) => write!(f, "has started launch {id}"),
        }
    }
}

/// Where the members meet. Invariants: a member has at most one of a question and an answer in
/// each phase; when all have asked, the questions are taken and answered under one lock.
struct Room {
    proposals: Vec<Option<Arc<dyn Proposal>>>,
    settlements: Vec<Option<Result<Settlement>>>,
    /// What was settled last: how much of which proposals.
    settled: Option<(Vec<Arc<dyn Proposal>>, usize)>,
    votes: Vec<Option<Result<()>>>,
    launches: Vec<Option<Result<Start>>>,
    doing: Vec<Doing>,
    /// Why the gang cannot go on. It stays: after a failure members no longer stand at the same
    /// place, and a later collective would pair what does not belong together.
    broken: Option<Error>,
}

impl Room {
    fn new(size: usize) -> Self {
        fn none<T>(size: usize) -> Vec<Option<T>> {
            std::iter::repeat_with(|| None).take(size).collect()
        }
        Room {
            proposals: none(size),
            settlements: none(size),
            settled: None,
            votes: none(size),
            launches: none(size),
            doing: vec![Doing::Recording; size],
            broken: None,
        }
    }

    /// Answers the settle phase once all have proposed. True if somebody has to be woken.
    fn settle(&mut self, ranks: &[usize]) -> bool {
        let Some(proposals) = self.proposals.iter().cloned().collect::<Option<Vec<_>>>() else {
            return false;
        };
        match agree(&proposals, ranks) {
            Agreement::Run(settlement) => {
                if let Settlement::Run { len, .. } = settlement {
                    self.settled = Some((proposals, len));
                }
                self.proposals.fill(None);
                self.settlements.fill(Some(Ok(settlement)));
                self.doing.fill(Doing::Preparing);
            }
            Agreement::Align(steps) => {
                for (member, step) in steps.into_iter().enumerate() {
                    if let Some(len) = step {
                        self.proposals[member] = None;
                        self.settlements[member] = Some(Ok(Settlement::FlushFirst { len }));
                        self.doing[member] = Doing::Preparing;
                    }
                }
            }
            Agreement::Diverged(error) => self.fail(error),
        }
        true
    }

    /// Ends the voting phase once all have voted, if one of them refuses.
    fn count(&mut self, ranks: &[usize]) -> Count {
        if self.votes.iter().any(Option::is_none) {
            return Count::Incomplete;
        }
        if self.votes.iter().flatten().all(Result::is_ok) {
            return Count::Unanimous;
        }
        let votes: Vec<Result<()>> = self.votes.iter_mut().filter_map(Option::take).collect();
        let refused = votes.iter().zip(ranks).find_map(|(vote, rank)| {
            let error = vote.as_ref().err()?;
            Some(Error::ReplicaFailed {
                rank: *rank,
                message: error.to_string(),
            })
        });
        if let Some(error) = refused {
            for (answer, vote) in self.launches.iter_mut().zip(votes) {
                *answer = Some(Err(vote.err().unwrap_or_else(|| error.clone())));
            }
            self.fail(error);
        }
        Count::Refused
    }

    /// Answers the voting phase.
    fn start(&mut self, start: Start) {
        self.votes.fill_with(|| None);
        self.settled = None;
        self.doing.fill(Doing::Launched(start.launch_id));
        self.launches.fill(Some(Ok(start)));
    }

    /// Ends the gang; the first reason stays.
    fn fail(&mut self, error: Error) {
        self.proposals.fill(None);
        self.votes.fill_with(|| None);
        self.settled = None;
        self.broken.get_or_insert(error);
    }
}

/// The state of a vote.
enum Count {
    Incomplete,
    Refused,
    Unanimous,
}

impl Shared {
    /// The gang of these replicas of a launch: global ranks and device ordinals, in member order.
    pub(crate) fn new(launch: Arc<Launch>, ranks: Vec<usize>, devices: Vec<usize>) -> Arc<Self> {
        let room = Mutex::new(Room::new(ranks.len()));
        Arc::new(Shared {
            launch,
            ranks,
            devices,
            room,
            across: None,
        })
    }

    /// The gang of a group with members in other processes: `devices` are the ordinals of those in
    /// this one.
    pub(crate) fn spanning(
        launch: Arc<Launch>,
        ranks: Vec<usize>,
        devices: Vec<usize>,
        across: Across,
    ) -> Arc<Self> {
        let room = Mutex::new(Room::new(ranks.len()));
        let gang = Arc::new(Shared {
            launch: Arc::clone(&launch),
            ranks,
            devices,
            room,
            across: Some(across),
        });
        let told = Arc::downgrade(&gang);
        launch.on_change(move |rank, standing| {
            if let Some(gang) = told.upgrade() {
                gang.ended(rank, standing);
            }
        });
        gang
    }

    fn room(&self) -> MutexGuard<'_, Room> {
        self.room.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What all members start with, once they are ready to run what was settled.
    fn start(self: &Arc<Self>, settled: Option<(Vec<Arc<dyn Proposal>>, usize)>) -> Result<Start> {
        let launch_id = xla_runtime::fresh_launch_id();
        match (&self.across, &settled) {
            (None, _) => Ok(Start {
                launch_id,
                outcome: None,
            }),
            (Some(across), Some((proposals, len))) if let [first, ..] = proposals.as_slice() => {
                self.start_across(across, launch_id, &**first, *len)
            }
            (Some(_), _) => Err(Error::Internal {
                what: "gang",
                expected: "settling before a vote".into(),
            }),
        }
    }

    /// Waits for `answers(room)[member]`. `asked` tells which members have come.
    fn wait<T>(
        &self,
        member: usize,
        answers: fn(&mut Room) -> &mut Vec<Option<Result<T>>>,
        asked: fn(&Room, usize) -> bool,
    ) -> Result<T> {
        let waited = self.launch.wait_until(WAITED_FOR, |standings| {
            let mut room = self.room();
            if let Some(answer) = answers(&mut room)[member].take() {
                return Some(answer);
            }
            if room.broken.is_none()
                && let Some(error) = absent(WAITED_FOR, standings, &self.ranks, |m| asked(&room, m))
            {
                room.fail(error);
            }
            room.broken.clone().map(Err)
        });
        let waited = waited.unwrap_or_else(|timeout| {
            let mut room = self.room();
            if let Some(answer) = answers(&mut room)[member].take() {
                return answer;
            }
            let mut missing: Vec<usize> = (0..self.ranks.len())
                .filter(|m| !asked(&room, *m))
                .map(|m| self.ranks[m])
                .collect();
            if missing.is_empty() {
                missing = self.awaited_ranks();
            }
            room.fail(named(timeout, WAITED_FOR, missing.into_iter()));
            let error = room.broken.clone();
            drop(room);
            self.launch.notify();
            Err(error.unwrap_or(Error::Internal {
                what: "gang",
                expected: "a reason".into(),
            }))
        });
        if waited.is_err() {
            self.spread();
        }
        waited
    }
}

/// The error of the first of these ranks that ended without having come to `what`.
pub(crate) fn absent(
    what: &str,
    standings: &[Standing],
    ranks: &[usize],
    came: impl Fn(usize) -> bool,
) -> Option<Error> {
    ranks
        .iter()
        .enumerate()
        .filter(|(member, _)| !came(*member))
        .find_map(|(_, &rank)| match standings.get(rank)? {
            Standing::Running => None,
            Standing::Left => Some(Error::ReplicaLeft {
                what: what.into(),
                rank,
            }),
            Standing::Failed(message) => Some(Error::ReplicaFailed {
                rank,
                message: message.clone(),
            }),
        })
}

/// A deadline's error with the ranks that did not come.
pub(crate) fn named(error: Error, what: &str, missing: impl Iterator<Item = usize>) -> Error {
    match error {
        Error::Deadline { after, advice, .. } => Error::Deadline {
            what: format!(
                "{what} that rank(s) {:?} did not come to",
                missing.collect::<Vec<_>>()
            ),
            after,
            advice,
        },
        other => other,
    }
}

impl ThreadGang {
    /// The handle of one member (its position, not its rank).
    pub(crate) fn new(shared: Arc<Shared>, member: usize) -> Self {
        ThreadGang { shared, member }
    }
}

impl Gang for ThreadGang {
    fn devices(&self) -> &[usize] {
        &self.shared.devices
    }

    fn spans_processes(&self) -> bool {
        self.shared.across.is_some()
    }

    fn proposals(&self) -> Vec<Arc<dyn Proposal>> {
        let room = self.shared.room();
        let settled = room.settled.as_ref();
        settled.map_or_else(Vec::new, |(proposals, _)| proposals.clone())
    }

    fn settle(&self, proposal: Arc<dyn Proposal>) -> Result<Settlement> {
        let mut room = self.shared.room();
        if let Some(error) = room.broken.clone() {
            drop(room);
            self.shared.spread();
            return Err(error);
        }
        if room.votes.iter().any(Option::is_some) || room.proposals[self.member].is_some() {
            room.fail(Error::Internal {
                what: "gang",
                expected: "a vote after settling".into(),
            });
        } else {
            room.doing[self.member] = Doing::Proposed(proposal.len());
            room.proposals[self.member] = Some(proposal);
            if !room.settle(&self.shared.ranks) {
                drop(room);
                return self.wait_settled();
            }
        }
        drop(room);
        self.shared.launch.notify();
        self.wait_settled()
    }

    fn vote(&self, ready: Result<()>) -> Result<Start> {
        let mut room = self.shared.room();
        if let Some(error) = room.broken.clone() {
            drop(room);
            self.shared.spread();
            return Err(ready.err().unwrap_or(error));
        }
        if room.proposals.iter().any(Option::is_some) || room.votes[self.member].is_some() {
            room.fail(Error::Internal {
                what: "gang",
                expected: "settling before a vote".into(),
            });
        } else {
            room.doing[self.member] = Doing::Ready;
            room.votes[self.member] = Some(ready);
            match room.count(&self.shared.ranks) {
                Count::Incomplete => {
                    drop(room);
                    return self.wait_launched();
                }
                Count::Refused => {}
                Count::Unanimous => {
                    let settled = room.settled.take();
                    drop(room);
                    let start = self.shared.start(settled);
                    room = self.shared.room();
                    match start {
                        _ if room.broken.is_some() => {}
                        Ok(start) => room.start(start),
                        Err(error) => room.fail(error),
                    }
                }
            }
        }
        drop(room);
        self.shared.launch.notify();
        self.wait_launched()
    }

    fn overdue(&self, what: &str) -> ! {
        let standings = self.shared.launch.standings();
        // Held to the end, so that of several members whose deadlines pass at once only one reports.
        let room = self.shared.room();
        let mut report = format!(
            "{what} did not finish within {:?}; collectives cannot be cancelled, so the process \
             ends with exit code {OVERDUE_EXIT_CODE}. The replicas:\n",
            self.shared.launch.deadline()
        );
        for (rank, doing) in self.shared.ranks.iter().zip(&room.doing) {
            let _ = match standings.get(*rank) {
                Some(Standing::Failed(message)) => {
                    writeln!(report, "  rank {rank} failed: {message}")
                }
                Some(Standing::Left) => writeln!(report, "  rank {rank} has returned"),
                _ => writeln!(report, "  rank {rank} {doing}"),
            };
        }
        eprint!("{report}");
        // The plugin's threads are inside the collective: running destructors now would crash.
        xla_runtime::abandon_process(OVERDUE_EXIT_CODE)
    }
}

impl ThreadGang {
    fn wait_settled(&self) -> Result<Settlement> {
        self.shared.wait(
            self.member,
            |room| &mut room.settlements,
            |room, m| room.proposals[m].is_some() || room.settlements[m].is_some(),
        )
    }

    fn wait_launched(&self) -> Result<Start> {
        self.shared.wait(
            self.member,
            |room| &mut room.launches,
            |room, m| room.votes[m].is_some() || room.launches[m].is_some(),
        )
    }
}

#[cfg(test)]
mod across_tests;
#[cfg(test)]
mod tests;
