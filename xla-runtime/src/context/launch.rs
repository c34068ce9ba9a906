//! A launch: how its replicas are run, where they are, and which of them are still there.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xla_core::{Error, Result};

/// How replicas are run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// No launch: the process is its own single replica.
    Single,
    /// One thread of this process for each replica.
    Threads,
    /// One replica on the calling thread, for debugging.
    Debug,
    /// Threads of processes that a launch of this program has spawned.
    Processes,
    /// Threads of processes that another launcher (torchrun, Slurm, …) has started.
    External,
    /// Threads of a notebook's kernel.
    Notebook,
    /// One call a process, whose programs XLA partitions over all devices.
    Spmd,
}

/// Where the replicas of a launch are: the same number in each of several processes, ranks in
/// process order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Topology {
    /// Number of processes.
    pub processes: usize,
    /// Which of them this is, from 0.
    pub process_index: usize,
    /// Replicas in each process.
    pub replicas: usize,
}

impl Topology {
    /// So many replicas, all in this process.
    pub fn one_process(replicas: usize) -> Self {
        Topology {
            processes: 1,
            process_index: 0,
            replicas,
        }
    }

    /// Number of replicas over all processes.
    pub fn world_size(&self) -> usize {
        self.processes * self.replicas
    }

    /// Global ranks of the replicas in this process.
    pub fn local_ranks(&self) -> Range<usize> {
        let first = self.process_index * self.replicas;
        first..first + self.replicas
    }

    /// The process that drives this global rank.
    pub fn process_of(&self, rank: usize) -> usize {
        rank / self.replicas.max(1)
    }
}

/// What has become of one replica of a launch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// Its function still runs.
    Running,
    /// Its function returned.
    Left,
    /// Its function returned an error or panicked; the text is its own.
    Failed(String),
}

type Listener = Arc<dyn Fn(usize, &Standing) + Send + Sync>;

/// What the replicas of one launch share: who is still there, in all its processes.
///
/// Anyone who waits for other replicas waits here, so that a replica that leaves or fails wakes
/// every waiter at once. Of the replicas in other processes a launch knows what it is told with
/// [`Launch::leave`]; [`Launch::on_change`] is how those others are told of this process's.
pub struct Launch {
    id: u64,
    mode: Mode,
    topology: Topology,
    deadline: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    standings: Vec<Standing>,
    listeners: Vec<Listener>,
}

impl Launch {
    /// A launch of `world_size` replicas, all in this process, that wait for each other at most
    /// `deadline`.
    pub fn new(mode: Mode, world_size: usize, deadline: Duration) -> Arc<Self> {
        Launch::spanning(mode, Topology::one_process(world_size), deadline)
    }

    /// A launch whose replicas may be in several processes and wait for each other at most
    /// `deadline`.
    pub fn spanning(mode: Mode, topology: Topology, deadline: Duration) -> Arc<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Arc::new(Launch {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            mode,
            topology,
            deadline,
            state: Mutex::new(State {
                standings: vec![Standing::Running; topology.world_size()],
                listeners: Vec::new(),
            }),
            changed: Condvar::new(),
        })
    }

    /// A number that no other launch of the process has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// How its replicas are run.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Where its replicas are.
    pub fn topology(&self) -> Topology {
        self.topology
    }

    /// Number of replicas over all processes.
    pub fn world_size(&self) -> usize {
        self.topology.world_size()
    }

    /// Global ranks of the replicas in this process.
    pub fn local_ranks(&self) -> Range<usize> {
        self.topology.local_ranks()
    }

    /// Whether some replicas are in another process.
    pub fn spans_processes(&self) -> bool {
        self.topology.processes > 1
    }

    /// How long a replica waits for others.
    pub fn deadline(&self) -> Duration {
        self.deadline
    }

    /// What has become of each replica, by global rank.
    pub fn standings(&self) -> Vec<Standing> {
        self.lock().standings.clone()
    }

    /// Records that a replica's function has ended, in this process or another, wakes all who wait,
    /// and tells the listeners. Only the first end of a rank counts, so a failure is never
    /// overwritten.
    pub fn leave(&self, rank: usize, standing: Standing) {
        let mut state = self.lock();
        let listeners = match state.standings.get_mut(rank) {
            Some(slot) if *slot == Standing::Running && standing != Standing::Running => {
                *slot = standing.clone();
                state.listeners.clone()
            }
            _ => Vec::new(),
        };
        drop(state);
        self.changed.notify_all();
        for listener in listeners {
            listener(rank, &standing);
        }
    }

    /// Has `listener` called with rank and standing when a replica ends: exactly once for each, on
    /// the thread that reports it, or at once for those that have ended already.
    ///
    /// No lock is held meanwhile, so a listener may call back into the launch. It should not wait for
    /// anything, since whoever reports an end waits for it; and it lives as long as the launch, so it
    /// must not own what owns the launch.
    pub fn on_change(&self, listener: impl Fn(usize, &Standing) + Send + Sync + 'static) {
        let listener: Listener = Arc::new(listener);
        let mut state = self.lock();
        state.listeners.push(Arc::clone(&listener));
        let standings = state.standings.clone();
        drop(state);
        for (rank, standing) in standings.iter().enumerate() {
            if *standing != Standing::Running {
                listener(rank, standing);
            }
        }
    }

    /// Wakes everybody who waits in [`Launch::wait_until`], to look again.
    pub fn notify(&self) {
        // Taking the lock orders this after a waiter's look and before its sleep.
        drop(self.lock());
        self.changed.notify_all();
    }

    /// Waits until `done` returns something. `done` is called first, then after every
    /// [`Launch::notify`] and every change of standing, with the standings by global rank; it must
    /// not call back into this launch.
    ///
    /// # Errors
    /// [`Error::Deadline`] naming `what` once the launch's deadline has passed.
    pub fn wait_until<T>(
        &self,
        what: &str,
        mut done: impl FnMut(&[Standing]) -> Option<T>,
    ) -> Result<T> {
        let end = Instant::now() + self.deadline;
        let mut state = self.lock();
        loop {
            if let Some(value) = done(&state.standings) {
                return Ok(value);
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Error::Deadline {
                    what: what.to_owned(),
                    after: self.deadline,
                    advice: "; a rank may be stuck, or set a longer deadline",
                });
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Launch")
            .field("id", &self.id)
            .field("mode", &self.mode)
            .field("topology", &self.topology)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leaving_member_wakes_waiters_and_a_deadline_ends_the_wait() {
        let launch = Launch::new(Mode::Threads, 2, Duration::from_millis(300));
        let waiter = std::thread::spawn({
            let launch = Arc::clone(&launch);
            move || {
                launch.wait_until("a test", |m| {
                    (m[1] != Standing::Running).then(|| m[1].clone())
                })
            }
        });
        launch.leave(1, Standing::Failed("disk full".into()));
        launch.leave(1, Standing::Left);
        assert_eq!(
            waiter.join().unwrap().unwrap(),
            Standing::Failed("disk full".into())
        );
        let late = launch.wait_until("rank 0", |m| (m[0] == Standing::Left).then_some(()));
        assert!(matches!(late, Err(Error::Deadline { .. })));
    }

    #[test]
    fn listeners_hear_of_each_end_once() {
        let topology = Topology {
            processes: 3,
            process_index: 1,
            replicas: 2,
        };
        let launch = Launch::spanning(Mode::External, topology, Duration::from_secs(1));
        assert_eq!((launch.world_size(), launch.local_ranks()), (6, 2..4));
        launch.leave(4, Standing::Left);
        let heard = Arc::new(Mutex::new(Vec::new()));
        launch.on_change({
            let (heard, launch) = (Arc::clone(&heard), Arc::downgrade(&launch));
            move |rank, standing| {
                // Calling back does not deadlock, and sees the change.
                assert_eq!(&launch.upgrade().unwrap().standings()[rank], standing);
                heard.lock().unwrap().push((rank, standing.clone()));
            }
        });
        let failed = Standing::Failed("out of memory".into());
        launch.leave(2, failed.clone());
        launch.leave(2, Standing::Left);
        launch.leave(17, Standing::Left);
        assert_eq!(
            *heard.lock().unwrap(),
            [(4, Standing::Left), (2, failed.clone())]
        );
        assert_eq!(topology.process_of(5), 2);
    }
}
