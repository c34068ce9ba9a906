//! The part of a gang that knows of the group's members in other processes.
//!
//! Members of one process settle and vote among themselves. Then the last one to vote announces the
//! program's collectives to the other processes and, if it is executed for the first time, waits
//! until each of them has come to its first collective. What they announce is compared, then and
//! later ([`super::compare`]). Whatever goes wrong in one process ends the gang in all of them.

use super::compare::{Announcing, Comparison, Mismatch, Rejected};
use super::cost::Timed;
use super::launched::{Launched, Program};
use super::layout::Layout;
use super::wire::{Message, News, Reason};
use super::{Shared, WAITED_FOR, absent, named};
use crate::transport::Transport;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use xla_core::{Error, Result};
use xla_lazy::{Proposal, Start};
use xla_runtime::context::Standing;

/// The way to the other processes of the world.
pub(crate) trait Control: Send + Sync {
    /// Gives a message to all of them. Does not wait.
    fn tell(&self, message: &Message);
}

/// What a gang needs to reach beyond its process.
pub(crate) struct Across {
    /// The group's number, the same in all processes.
    group: u64,
    layout: Arc<Layout>,
    control: Arc<dyn Control>,
    /// The group's own, so that ending it does no harm to others.
    transport: Arc<dyn Transport>,
    state: Mutex<State>,
}

struct State {
    comparison: Comparison,
    /// Programs that are started and not over.
    flying: Vec<Arc<Launched>>,
    /// The place that the others are waited for to announce.
    awaited: Option<u64>,
    /// Why the gang cannot go on.
    broken: Option<Error>,
}

impl Across {
    pub(crate) fn new(
        group: u64,
        layout: Arc<Layout>,
        control: Arc<dyn Control>,
        transport: Arc<dyn Transport>,
    ) -> Self {
        let comparison = Comparison::new(layout.own(), layout.processes());
        Across {
            group,
            layout,
            control,
            transport,
            state: Mutex::new(State {
                comparison,
                flying: Vec::new(),
                awaited: None,
                broken: None,
            }),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, news: News) {
        self.control.tell(&Message::Group {
            group: self.group,
            news,
        });
    }

    /// Ends everything under way, once; with `tell` the other processes are told why. Who returns
    /// from here can be sure that they are: what this causes, such as the failure of the caller, is
    /// heard of later.
    fn end(&self, error: &Error, tell: bool) {
        let mut state = self.lock();
        if state.broken.is_some() {
            return;
        }
        state.broken = Some(error.clone());
        let flying = std::mem::take(&mut state.flying);
        if tell {
            let own = self.layout.ranks_in(self.layout.own()).next();
            self.tell(News::Broken(Reason::of(error, own.unwrap_or(0))));
        }
        drop(state);
        for launched in flying {
            launched.settle(Err(error.clone()));
        }
        self.transport.abort(&error.to_string());
    }

    /// The ranks in these processes.
    fn ranks_of(&self, processes: impl Iterator<Item = usize>) -> Vec<usize> {
        processes
            .flat_map(|process| self.layout.ranks_in(process).collect::<Vec<_>>())
            .collect()
    }

    /// The error of two processes that announced different collectives, the same on both.
    fn divergence(&self, found: Mismatch) -> Error {
        let first_rank = |process| self.layout.ranks_in(process).next().unwrap_or(0);
        let (own, other) = (first_rank(self.layout.own()), first_rank(found.process));
        let index = found.sequence as usize;
        if own > other {
            Error::Divergence {
                index,
                rank: own,
                left: found.ours,
                other_rank: other,
                right: found.theirs,
            }
        } else {
            Error::Divergence {
                index,
                rank: other,
                left: found.theirs,
                other_rank: own,
                right: found.ours,
            }
        }
    }

    fn rejected(&self, why: Rejected) -> Error {
        match why {
            Rejected::Mismatch(found) => self.divergence(found),
            Rejected::Malformed(expected) => Error::Internal {
                what: "announcements",
                expected: expected.into(),
            },
        }
    }
}

impl State {
    /// The error of a member that ended and whose process has not announced all collectives before
    /// `place`, or that failed.
    fn gone(&self, across: &Across, standings: &[Standing], place: u64) -> Option<Error> {
        let ranks = across.layout.ranks();
        let late: Vec<usize> = match place.checked_sub(1) {
            Some(last) => across.ranks_of(self.comparison.without(last)),
            None => Vec::new(),
        };
        let own: Vec<usize> = across.layout.ranks_in(across.layout.own()).collect();
        let failed = |rank: usize| matches!(standings.get(rank), Some(Standing::Failed(_)));
        absent(WAITED_FOR, standings, ranks, |member| {
            let rank = ranks[member];
            own.contains(&rank) || !late.contains(&rank) && !failed(rank)
        })
    }
}

/// Of a gang that spans processes.
impl Shared {
    /// Announces a program of which all members of this process are about to start the first `len`
    /// operators, and waits for the others where that is needed.
    pub(super) fn start_across(
        self: &Arc<Self>,
        across: &Across,
        launch_id: i32,
        proposal: &dyn Proposal,
        len: usize,
    ) -> Result<Start> {
        let collectives = proposal.collectives(len);
        let end = Instant::now() + self.launch.deadline();
        let mut state = across.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let timed = Timed::begin();
        let base = state.comparison.next();
        let (announcing, compared) = state
            .comparison
            .announce(&collectives, |index| proposal.describe(index));
        let Announcing {
            announcement,
            list,
            first_use,
        } = announcing;
        // Sent under the lock, so that the others get them in order.
        across.tell(News::Announced(announcement));
        drop(timed);
        let wait = first_use || state.comparison.is_far_ahead();
        state.awaited = wait.then_some(base);
        drop(state);
        compared.map_err(|why| across.rejected(why))?;
        let program = Program {
            base,
            list,
            collectives: collectives.iter().map(|c| c.fingerprint).collect(),
        };
        let place = base + collectives.len() as u64;
        self.await_others(across, base, place, wait)?;
        let mut state = across.lock();
        if let Some(error) = &state.broken {
            return Err(error.clone());
        }
        let launched = Launched::begin(
            launch_id,
            Arc::clone(self),
            Arc::clone(&across.layout),
            Arc::clone(&across.transport),
            program,
            end,
        );
        state.flying.push(Arc::clone(&launched));
        state.awaited = None;
        drop(state);
        // Who ended meanwhile did not find it among those under way.
        let standings = self.launch.standings();
        let gone = across.lock().gone(across, &standings, place);
        match gone {
            Some(error) => Err(error),
            None => Ok(Start {
                launch_id,
                outcome: Some(launched),
            }),
        }
    }

    /// Waits, if `wait`, until every process has announced the collective at `base`. In any case an
    /// error of a member that can be seen to be unable to come with those before `place`.
    fn await_others(&self, across: &Across, base: u64, place: u64, wait: bool) -> Result<()> {
        let waited = self.launch.wait_until(WAITED_FOR, |standings| {
            let state = across.lock();
            if let Some(error) = &state.broken {
                return Some(Err(error.clone()));
            }
            if let Some(error) = state.gone(across, standings, place) {
                return Some(Err(error));
            }
            let alone = state.comparison.without(base).next().is_some();
            let ahead = state.comparison.is_far_ahead();
            (!wait || !alone && !ahead).then_some(Ok(()))
        });
        waited.unwrap_or_else(|timeout| {
            let missing = self.awaited_ranks();
            Err(named(timeout, WAITED_FOR, missing.into_iter()))
        })
    }

    /// The ranks of other processes that this one waits for.
    pub(super) fn awaited_ranks(&self) -> Vec<usize> {
        let Some(across) = &self.across else {
            return Vec::new();
        };
        let state = across.lock();
        let place = state.awaited;
        place.map_or(Vec::new(), |place| {
            across.ranks_of(state.comparison.without(place))
        })
    }

    /// Takes in what another process of the world tells.
    pub(crate) fn hear(&self, process: usize, news: News) {
        let Some(across) = &self.across else { return };
        let Some(process) = across.layout.of_world(process) else {
            return;
        };
        match news {
            News::Announced(announcement) => {
                let received = {
                    let mut state = across.lock();
                    let _timed = Timed::begin();
                    state.comparison.receive(process, announcement)
                };
                match received {
                    Ok(()) => self.launch.notify(),
                    Err(why) => self.break_off(across.rejected(why)),
                }
            }
            News::Formed(ranks) => {
                if ranks != across.layout.ranks() {
                    let rank = across.layout.ranks_in(process).next().unwrap_or(0);
                    self.break_off(Error::ReplicaFailed {
                        rank,
                        message: format!(
                            "it made a group of the ranks {ranks:?} where this process made one of \
                             the ranks {:?}; make the same groups in the same order on every rank",
                            across.layout.ranks()
                        ),
                    });
                }
            }
            News::Broken(reason) => {
                let error = reason.into_error();
                self.room().fail(error.clone());
                across.end(&error, false);
                self.launch.notify();
            }
        }
    }

    /// A replica of the launch has ended: what is under way and still needs it cannot go on. After a
    /// failure nothing does, so that the first one is what all hear of, and not what it causes.
    pub(crate) fn ended(&self, rank: usize, standing: &Standing) {
        let Some(across) = &self.across else { return };
        if let Standing::Failed(message) = standing
            && across.layout.ranks().contains(&rank)
        {
            return self.break_off(Error::ReplicaFailed {
                rank,
                message: message.clone(),
            });
        }
        let standings = self.launch.standings();
        let state = across.lock();
        let flying = state.flying.iter();
        let remote = across.layout.process_of(rank) != Some(across.layout.own());
        let needed = flying
            .filter(|_| remote && *standing != Standing::Running)
            .map(|launched| launched.last())
            .max();
        let gone = needed.and_then(|place| state.gone(across, &standings, place));
        drop(state);
        if let Some(error) = gone {
            self.break_off(error);
        }
    }

    /// Ends the gang, here and in the other processes; the first reason stays.
    pub(super) fn break_off(&self, error: Error) {
        self.room().fail(error);
        self.spread();
        self.launch.notify();
    }

    /// Lets the other processes know that the gang is broken, once, and ends what is under way.
    pub(super) fn spread(&self) {
        let Some(across) = &self.across else { return };
        let Some(error) = self.room().broken.clone() else {
            return;
        };
        across.end(&error, true);
    }

    /// The group's number.
    pub(super) fn group(&self) -> u64 {
        self.across.as_ref().map_or(0, |across| across.group)
    }

    /// Operator, type and line of a collective of an announced list.
    pub(super) fn text(&self, list: u32, collective: usize) -> String {
        let text = self.across.as_ref().and_then(|across| {
            let state = across.lock();
            state.comparison.text(list, collective).map(str::to_owned)
        });
        text.unwrap_or_else(|| WAITED_FOR.into())
    }

    /// The collective at `place`, described by `what`, was not completed before the deadline.
    pub(super) fn late(&self, place: u64, what: String) {
        let Some(across) = &self.across else { return };
        let missing = across.ranks_of(across.lock().comparison.without(place));
        let what = if missing.is_empty() {
            format!("{what}, to which all ranks have come but whose data is missing,")
        } else {
            format!("{what}, that rank(s) {missing:?} did not come to,")
        };
        self.break_off(Error::Deadline {
            what,
            after: self.launch.deadline(),
            advice: "; a rank may be stuck, or set a longer deadline",
        });
    }

    /// The connection to a process is gone, and nobody has said why.
    pub(super) fn lost(&self, process: usize, reason: &str) {
        let Some(across) = &self.across else { return };
        let rank = across.layout.ranks_in(process).next().unwrap_or(0);
        self.break_off(Error::ReplicaFailed {
            rank,
            message: format!("the connection to its process is lost: {reason}"),
        });
    }

    /// A program is over on all members of this process.
    pub(super) fn landed(&self, launch_id: i32) {
        if let Some(across) = &self.across {
            across.lock().flying.retain(|l| l.id() != launch_id);
        }
    }
}
