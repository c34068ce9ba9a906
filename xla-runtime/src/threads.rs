//! How many threads a CPU client has.
//!
//! A CPU client starts as many threads for its devices, and as many again for the work inside an
//! operator, as the process may use cores, or as it has devices if those are more; the environment
//! variables `PJRT_NPROC` and `NPROC` stand in for the number of cores. That is too few where custom
//! calls wait for other processes: with every thread of the devices inside such a call, whatever
//! else is started waits, too. And it is too many where several processes share a host: each would
//! take all cores.
//!
//! The variable is set while a client is created and taken back at once, so that a child process
//! does not inherit what was decided for its parent.

use std::env;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use xla_core::{Error, Result};

/// The user's own setting, under either name.
const USERS: [&str; 2] = ["PJRT_NPROC", "NPROC"];

/// What this process's CPU clients need threads for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CpuThreads {
    /// How many processes share the cores of this host, this one included; at least 1.
    pub processes: usize,
    /// Whether custom calls may wait for other processes.
    pub blocking_calls: bool,
}

/// What the next client will get.
static POLICY: Mutex<CpuThreads> = Mutex::new(CpuThreads {
    processes: 1,
    blocking_calls: false,
});

/// Clients that have no thread to spare when a custom call of each device waits.
static TIGHT: AtomicUsize = AtomicUsize::new(0);

/// Says what the CPU clients created from now on need threads for. `PJRT_NPROC` or `NPROC`, where the
/// user has set one, is left as it is.
///
/// For a client that is there already nothing changes.
///
/// # Errors
/// [`Error::Argument`] for no process; [`Error::Launch`] where custom calls are to wait but a client
/// that is there already has too few threads for it.
pub fn set_cpu_threads(threads: CpuThreads) -> Result<()> {
    if threads.processes == 0 {
        return Err(Error::argument(
            "set_cpu_threads",
            "processes",
            "at least 1",
            0,
        ));
    }
    if threads.blocking_calls && TIGHT.load(Ordering::Acquire) > 0 {
        return Err(Error::Launch {
            reason:
                "the PJRT client has no more threads than devices, so collectives that wait for \
                     other processes would block everything else"
                    .into(),
            advice: "launch, or init_process_group, before the first use of a device; or set \
                     PJRT_NPROC to more than the number of devices",
        });
    }
    *policy() = threads;
    Ok(())
}

fn policy() -> MutexGuard<'static, CpuThreads> {
    POLICY.lock().unwrap_or_else(PoisonError::into_inner)
}

impl CpuThreads {
    /// How many threads that makes of so many cores, for a client with so many devices.
    pub fn count(self, cores: usize, devices: usize) -> usize {
        let share = (cores / self.processes.max(1)).max(1);
        // One waits in each device's execution, and what a device runs is run in order; as many
        // again, and two for whatever the host reads or sends meanwhile.
        let needed = if self.blocking_calls {
            2 * devices + 2
        } else {
            1
        };
        share.max(needed)
    }

    /// What the variable has to be for a client with so many devices; `None` where the plugin's own
    /// choice is right.
    fn variable(self, cores: usize, devices: usize) -> Option<usize> {
        Some(self.count(cores, devices)).filter(|n| *n != cores)
    }
}

/// Holds the environment as a client of so many devices needs it, until dropped.
pub(crate) struct Prepared<'a> {
    set: bool,
    /// Threads for devices that the client will have.
    threads: usize,
    devices: usize,
    // One client is created at a time: the environment is the process's.
    _policy: MutexGuard<'a, CpuThreads>,
}

/// To be called right before a CPU client is created.
pub(crate) fn prepare(devices: usize) -> Prepared<'static> {
    let policy = policy();
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let users = USERS.iter().find_map(env::var_os);
    let variable = match users {
        Some(_) => None,
        None => policy.variable(cores, devices),
    };
    if let Some(threads) = variable {
        // SAFETY: the variable is read by plugins only, while a client is created, which this
        // thread is about to do and, since it holds the lock, no other does meanwhile. Rust code
        // reads the environment under the standard library's lock.
        unsafe { env::set_var(USERS[0], threads.to_string()) };
    }
    let wanted = variable
        .or_else(|| users?.to_str()?.trim().parse().ok())
        .unwrap_or(cores);
    Prepared {
        set: variable.is_some(),
        threads: wanted.max(devices),
        devices,
        _policy: policy,
    }
}

impl Prepared<'_> {
    /// Notes that the client is there.
    pub(crate) fn created(&self) -> Threads {
        let tight = self.threads <= self.devices;
        TIGHT.fetch_add(usize::from(tight), Ordering::AcqRel);
        Threads {
            tight,
            count: self.threads,
        }
    }
}

impl Drop for Prepared<'_> {
    fn drop(&mut self) {
        if self.set {
            // SAFETY: as where it was set.
            unsafe { env::remove_var(USERS[0]) };
        }
    }
}

/// The threads of a client, until it is gone.
#[derive(Debug)]
pub(crate) struct Threads {
    tight: bool,
    count: usize,
}

impl Threads {
    /// How many work on operators.
    pub(crate) fn count(&self) -> usize {
        self.count
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        TIGHT.fetch_sub(usize::from(self.tight), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_of_the_cores_but_enough_for_calls_that_wait() {
        let variable = |processes, blocking_calls, cores, devices| {
            CpuThreads {
                processes,
                blocking_calls,
            }
            .variable(cores, devices)
        };
        // Alone, and nothing waits: the plugin's own choice.
        assert_eq!(variable(1, false, 16, 4), None);
        assert_eq!(variable(4, false, 16, 1), Some(4));
        assert_eq!(variable(3, false, 2, 1), Some(1));
        assert_eq!(variable(4, true, 16, 1), Some(4));
        assert_eq!(variable(2, true, 16, 4), Some(10));
        assert_eq!(variable(1, true, 2, 4), Some(10));
        assert_eq!(variable(1, true, 64, 4), None);
    }
}
