//! What happens to work in flight when the process ends.
//!
//! A plugin whose static objects are destroyed while its threads still compute takes the process down
//! with a segmentation fault. So at exit (return from `main`, a panic in it, `process::exit`) new
//! launches are refused and what runs is waited for, up to [`PATIENCE`]. Nothing is destroyed.
//!
//! Exit handlers run last to first, and plugins register destructors not only when they are loaded but
//! also when a kernel is first used. So the wait starts from two places, whichever comes first:
//! * the end of the main thread's local variables, which precedes all handlers: complete, but only for
//!   an exit on the main thread;
//! * an exit handler, registered with the client and again with every program: for an exit on another
//!   thread, which a destructor that the very last program's first run registered still precedes.

use crate::client::Inner;
use crate::event::Pending;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};
use xla_core::{Error, Result};

/// How long a process that ends waits for its devices.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// More unfinished executions than this on one device, and finished ones are looked for behind an
/// unfinished one too.
const CROWDED: usize = 32;

static EXITING: AtomicBool = AtomicBool::new(false);
static CLIENTS: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// What one client has started and not seen the end of.
pub(crate) struct InFlight {
    /// Calls into the plugin that start something, being made just now.
    calls: AtomicUsize,
    /// Executions by device, oldest first.
    executions: Vec<Mutex<VecDeque<Arc<Pending>>>>,
}

/// A call into the plugin that the end of the process waits for.
pub(crate) struct Running<'a>(&'a InFlight);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Release);
    }
}

/// The same for work on a thread that owns what it needs.
pub(crate) struct Held(Arc<InFlight>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Release);
    }
}

impl InFlight {
    pub(crate) fn new(devices: usize) -> Self {
        InFlight {
            calls: AtomicUsize::new(0),
            executions: (0..devices).map(|_| Mutex::default()).collect(),
        }
    }

    /// To be held around every call that starts work.
    ///
    /// # Errors
    /// [`Error::Launch`] when the process is ending.
    pub(crate) fn begin(&self) -> Result<Running<'_>> {
        // Counted before the flag is read, and read by the hook after the flag is set: one of the two
        // sees the other.
        self.calls.fetch_add(1, Ordering::SeqCst);
        let running = Running(self);
        if EXITING.load(Ordering::SeqCst) {
            return Err(Error::Launch {
                reason: "the process is ending".into(),
                advice: "finish device work before main returns",
            });
        }
        Ok(running)
    }

    /// As [`InFlight::begin`], for another thread.
    ///
    /// # Errors
    /// As [`InFlight::begin`].
    pub(crate) fn hold(self: &Arc<Self>) -> Result<Held> {
        std::mem::forget(self.begin()?);
        Ok(Held(Arc::clone(self)))
    }

    /// Remembers an execution until it is done.
    pub(crate) fn push(&self, device: usize, execution: &Arc<Pending>) {
        let Some(list) = self.executions.get(device) else {
            return;
        };
        let mut list = list.lock().unwrap_or_else(PoisonError::into_inner);
        let done = |e: &Arc<Pending>| !matches!(e.is_ready(), Ok(false));
        while list.front().is_some_and(done) {
            list.pop_front();
        }
        if list.len() > CROWDED {
            list.retain(|e| !done(e));
        }
        list.push_back(Arc::clone(execution));
    }

    /// Waits for everything, and says whether it ended by `end`.
    pub(crate) fn drain(&self, end: Instant) -> bool {
        let left = || end.saturating_duration_since(Instant::now());
        while self.calls.load(Ordering::SeqCst) > 0 {
            if left().is_zero() {
                return false;
            }
            thread::sleep(Duration::from_millis(1));
        }
        let mut all = true;
        for list in &self.executions {
            let mut waiting =
                std::mem::take(&mut *list.lock().unwrap_or_else(PoisonError::into_inner));
            waiting.retain(|e| matches!(e.wait(left()), Err(Error::Deadline { .. })));
            all &= waiting.is_empty();
            // What did not end can be waited for again.
            list.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .extend(waiting);
        }
        all
    }
}

/// Lets the end of the process wait for a client.
pub(crate) fn register(client: &Arc<Inner>) {
    let mut clients = CLIENTS.lock().unwrap_or_else(PoisonError::into_inner);
    clients.retain(|c| c.strong_count() > 0);
    clients.push(Arc::downgrade(client));
    drop(clients);
    renew();
}

/// Whether a client was ever registered.
pub(crate) fn any_client() -> bool {
    !CLIENTS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .is_empty()
}

/// Registers the exit handler once more, so that it precedes every destructor registered before.
pub(crate) fn renew() {
    extern "C" fn handler() {
        wait_for_all();
    }
    // SAFETY: the handler is a plain function that never unwinds.
    if unsafe { libc::atexit(handler) } != 0 {
        tracing::warn!("no exit handler could be registered; wait for all work before exiting");
    }
}

/// What is still to be done when `main` has returned.
static FAREWELLS: Mutex<Vec<fn()>> = Mutex::new(Vec::new());

/// Has `farewell` called on the main thread when `main` has returned, or `process::exit` was called
/// on that thread, after what runs on devices was waited for. A process that ends otherwise does not
/// say farewell. Linux only.
///
/// The same function again does nothing. Thread-local variables of the main thread may be gone by
/// then.
pub fn when_main_ends(farewell: fn()) {
    let mut all = FAREWELLS.lock().unwrap_or_else(PoisonError::into_inner);
    if !all
        .iter()
        .any(|known| std::ptr::fn_addr_eq(*known, farewell))
    {
        all.push(farewell);
    }
}

/// Waits when the main thread's local variables end, which is when the process does.
struct MainThread(());

impl Drop for MainThread {
    fn drop(&mut self) {
        if on_main_thread() {
            wait_for_all();
            let all =
                std::mem::take(&mut *FAREWELLS.lock().unwrap_or_else(PoisonError::into_inner));
            for farewell in all {
                // The destructor of a thread's variable must not unwind.
                let _ = catch_unwind(farewell);
            }
        }
    }
}

thread_local! {
    static MAIN_THREAD: MainThread = const { MainThread(()) };
}

/// Gives the main thread the variable: it may never call this crate, leaving that to other threads,
/// and nobody else can. Run by the loader on the main thread before `main`.
#[cfg(target_os = "linux")]
#[used]
// SAFETY: the section holds pointers to functions without arguments, which is what this is.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = {
    extern "C" fn touch() {
        let _ = MAIN_THREAD.try_with(|_| ());
    }
    touch
};

#[cfg(target_os = "linux")]
fn on_main_thread() -> bool {
    // SAFETY: both take nothing and cannot fail. The main thread is the one whose id is the process's.
    unsafe { libc::gettid() == libc::getpid() }
}

/// Elsewhere the exit handler alone has to do.
#[cfg(not(target_os = "linux"))]
fn on_main_thread() -> bool {
    false
}

fn wait_for_all() {
    // An exit handler must not unwind.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        if EXITING.swap(true, Ordering::SeqCst) {
            return;
        }
        let end = Instant::now() + PATIENCE;
        // A thread that holds the lock for good cannot be waited for: it may be this very one.
        let Ok(clients) = CLIENTS.try_lock() else {
            return;
        };
        for client in clients.iter().filter_map(Weak::upgrade) {
            client.in_flight().drain(end);
            // Should this have become the last owner, its drop would destroy the client.
            std::mem::forget(client);
        }
    }));
}
