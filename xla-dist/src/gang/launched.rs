//! Started programs whose collectives go beyond this process, for the handlers of their exchanges
//! and for whoever reads their results.

use super::Shared;
use super::layout::Layout;
use crate::exchange::Meetings;
use crate::transport::{Failure, Transport};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xla_core::{Error, Result};
use xla_lazy::{Hash128, Outcome};

/// How long a handler whose connection failed waits to be told why: longer than it takes to notice
/// that a process is gone.
const NOTICE: Duration = Duration::from_secs(8);

/// One execution of a program by the replicas of this process.
///
/// A handler that cannot do its part calls [`Launched::fail`], fills its outputs with zeros and
/// returns. A result is given out only after [`Outcome::poll`] was asked, so nobody sees the zeros.
pub(crate) struct Launched {
    id: i32,
    gang: Arc<Shared>,
    layout: Arc<Layout>,
    transport: Arc<dyn Transport>,
    /// Place in the group's sequence of the program's first collective.
    base: u64,
    collectives: Vec<Hash128>,
    list: u32,
    end: Instant,
    /// Members of this process whose execution is not over.
    running: AtomicUsize,
    meetings: Meetings,
    state: Mutex<Option<Result<()>>>,
    settled: Condvar,
}

static ALL: Mutex<Option<HashMap<i64, Arc<Launched>>>> = Mutex::new(None);

fn with_all<T>(f: impl FnOnce(&mut HashMap<i64, Arc<Launched>>) -> T) -> T {
    let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
    f(all.get_or_insert_default())
}

/// What a started program consists of.
pub(super) struct Program {
    pub(super) base: u64,
    pub(super) list: u32,
    pub(super) collectives: Vec<Hash128>,
}

impl Launched {
    /// Notes a program that the members of this process are about to start.
    pub(super) fn begin(
        id: i32,
        gang: Arc<Shared>,
        layout: Arc<Layout>,
        transport: Arc<dyn Transport>,
        program: Program,
        end: Instant,
    ) -> Arc<Launched> {
        let launched = Arc::new(Launched {
            id,
            base: program.base,
            collectives: program.collectives,
            list: program.list,
            end,
            running: AtomicUsize::new(layout.local().len()),
            meetings: Meetings::default(),
            gang,
            layout,
            transport,
            state: Mutex::new(None),
            settled: Condvar::new(),
        });
        with_all(|all| all.insert(id.into(), Arc::clone(&launched)));
        launched
    }

    /// The program that runs under a run id. `None` once it is over, or after its group has failed:
    /// there is nothing to be exchanged then.
    pub(crate) fn find(run_id: i64) -> Option<Arc<Launched>> {
        with_all(|all| all.get(&run_id).cloned())
    }

    /// Which members of the group are in which process.
    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The way to the other processes of the layout.
    pub(crate) fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// Where the handlers of this process's members meet.
    pub(crate) fn meetings(&self) -> &Meetings {
        &self.meetings
    }

    /// The member of the group (its position) that a device of this process is.
    pub(crate) fn member(&self, device: usize) -> Option<usize> {
        let local = self.gang.devices.iter().position(|d| *d == device)?;
        Some(*self.layout.local().get(local)? as usize)
    }

    /// When whoever waits for another process gives up.
    pub(crate) fn end(&self) -> Instant {
        self.end
    }

    /// A tag for the messages of a collective of the program (from 0) and of one of its calls: equal
    /// in all processes, and different from those of all other collectives under way.
    pub(crate) fn tag(&self, collective: usize, call: usize) -> u32 {
        let place = self.base + collective as u64;
        let print = self
            .collectives
            .get(collective)
            .copied()
            .unwrap_or_default();
        let words = [self.gang.group(), place, call as u64, print[0], print[1]];
        // FNV-1a, the same in every process.
        let hash = words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            });
        (hash ^ hash >> 32) as u32
    }

    /// Marks the execution and its group as failed, because a collective of the program (from 0) did
    /// not get what it needed. Waits a while for the control channel to tell the cause, which is more
    /// than a lost connection shows.
    pub(crate) fn fail(&self, collective: usize, failure: &Failure) {
        if matches!(failure, Failure::Late { .. }) {
            self.gang
                .late(self.base + collective as u64, self.text(collective));
            return;
        }
        let state = self.lock();
        let unknown = |state: &mut Option<Result<()>>| state.is_none();
        let waited = self.settled.wait_timeout_while(state, NOTICE, unknown);
        drop(waited);
        match failure {
            Failure::Lost { process, reason } => self.gang.lost(*process, reason),
            Failure::Aborted(reason) if self.poll().is_none() => {
                self.gang.break_off(Error::Internal {
                    what: "a collective across processes",
                    expected: format!("all it needs, not: {reason}"),
                });
            }
            _ => {}
        }
    }

    /// Operator, type and line of a collective of the program (from 0).
    pub(crate) fn text(&self, collective: usize) -> String {
        self.gang.text(self.list, collective)
    }

    /// One past the place in the group's sequence of the last collective.
    pub(super) fn last(&self) -> u64 {
        self.base + self.collectives.len() as u64
    }

    /// Settles how it ended, once, and lets go of it.
    pub(super) fn settle(&self, outcome: Result<()>) {
        self.lock().get_or_insert(outcome);
        self.settled.notify_all();
        self.meetings.call_off();
        with_all(|all| all.remove(&self.id.into()));
    }

    fn lock(&self) -> MutexGuard<'_, Option<Result<()>>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Outcome for Launched {
    fn poll(&self) -> Option<Result<()>> {
        self.lock().clone()
    }

    fn over(&self) {
        if self.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.settle(Ok(()));
            self.gang.landed(self.id);
        }
    }
}

impl Launched {
    pub(super) fn id(&self) -> i32 {
        self.id
    }
}
