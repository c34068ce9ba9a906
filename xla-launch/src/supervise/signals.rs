//! `SIGINT`, `SIGTERM` and `SIGHUP`, while somebody supervises workers.
//!
//! Handlers belong to the process and cannot be taken back, so they are installed once, at the
//! first supervision. While nobody supervises, they do what would have happened without them: the
//! process ends, if that was the signal's default; a handler that the program has installed is
//! called in either case; and a signal that it ignores stays ignored.

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag::register_conditional_default;
use signal_hook::iterator::Signals;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use xla_core::{Error, Result};

type Listener = Box<dyn Fn(i32) + Send>;

/// The process's handlers.
struct Hub {
    idle: Arc<AtomicBool>,
    listeners: Mutex<Vec<(u64, Listener)>>,
}

static HUB: OnceLock<Hub> = OnceLock::new();

/// Hears of signals until it is dropped.
pub(crate) struct Subscription(u64);

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Subscription").field(&self.0).finish()
    }
}

/// Has `listener` called with each signal that should end this process, which then does not end it.
///
/// # Errors
/// [`Error::System`] when handlers cannot be installed.
pub(crate) fn subscribe(listener: impl Fn(i32) + Send + 'static) -> Result<Subscription> {
    static INSTALLING: Mutex<()> = Mutex::new(());
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let installing = INSTALLING.lock().unwrap_or_else(PoisonError::into_inner);
    let hub = match HUB.get() {
        Some(hub) => hub,
        None => {
            let hub = install().map_err(|error| Error::system("install signal handlers", error))?;
            HUB.get_or_init(|| hub)
        }
    };
    drop(installing);
    let id = NEXT.fetch_add(1, Ordering::Relaxed);
    let mut listeners = hub.lock();
    listeners.push((id, Box::new(listener)));
    hub.idle.store(false, Ordering::SeqCst);
    Ok(Subscription(id))
}

/// To be called in the child of a fork, which has the handlers but not the thread that serves them.
pub(crate) fn after_fork() {
    if let Some(hub) = HUB.get() {
        hub.idle.store(true, Ordering::SeqCst);
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(hub) = HUB.get() {
            let mut listeners = hub.lock();
            listeners.retain(|(id, _)| *id != self.0);
            hub.idle.store(listeners.is_empty(), Ordering::SeqCst);
        }
    }
}

impl Hub {
    fn lock(&self) -> MutexGuard<'_, Vec<(u64, Listener)>> {
        self.listeners
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn install() -> std::io::Result<Hub> {
    let before = Dispositions::of_process();
    let idle = Arc::new(AtomicBool::new(true));
    let wanted: Vec<i32> = [SIGINT, SIGTERM, SIGHUP]
        .into_iter()
        .filter(|signal| !before.ignores(*signal))
        .collect();
    for signal in &wanted {
        if !before.catches(*signal) {
            register_conditional_default(*signal, Arc::clone(&idle))?;
        }
    }
    let mut signals = Signals::new(&wanted)?;
    thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            for signal in signals.forever() {
                if let Some(hub) = HUB.get() {
                    for (_, listener) in hub.lock().iter() {
                        listener(signal);
                    }
                }
            }
        })?;
    Ok(Hub {
        idle,
        listeners: Mutex::new(Vec::new()),
    })
}

/// Which signals a process ignores, and which it handles itself, as bit masks.
#[derive(Debug, Default, PartialEq, Eq)]
struct Dispositions {
    ignored: u64,
    caught: u64,
}

impl Dispositions {
    /// Those of this process, or none where the system does not say.
    fn of_process() -> Self {
        std::fs::read_to_string("/proc/self/status")
            .map(|status| Self::parse(&status))
            .unwrap_or_default()
    }

    /// What `/proc/<pid>/status` says.
    fn parse(status: &str) -> Self {
        let mask = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name))
                .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
                .unwrap_or(0)
        };
        Dispositions {
            ignored: mask("SigIgn:"),
            caught: mask("SigCgt:"),
        }
    }

    fn ignores(&self, signal: i32) -> bool {
        self.ignored & (1 << (signal - 1)) != 0
    }

    fn catches(&self, signal: i32) -> bool {
        self.caught & (1 << (signal - 1)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_system_says_of_signals_is_read() {
        // nohup ignores SIGHUP (1); the second mask has SIGINT (2) and SIGSEGV (11).
        let text = "Name:\tx\nSigIgn:\t0000000000000001\nSigCgt:\t0000000000000402\n";
        let parsed = Dispositions::parse(text);
        assert!(parsed.ignores(SIGHUP) && !parsed.ignores(SIGINT));
        assert!(parsed.catches(SIGINT) && !parsed.catches(SIGTERM));
        assert_eq!(Dispositions::parse(""), Dispositions::default());
    }
}
