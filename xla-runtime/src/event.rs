//! Completion of asynchronous work, waited for with a deadline.

use crate::call::{Api, Extended};
use crate::client::Client;
use crate::handle::Handle;
use crate::metrics::Metric;
use pjrt_sys as sys;
use std::cell::Cell;
use std::ffi::c_void;
use std::fmt;
use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};
use xla_core::{Error, Result};

/// Something the device finishes later: an execution, or a buffer becoming ready.
///
/// Clones are the same event. Dropping one does not cancel anything.
#[derive(Clone)]
pub struct Event {
    // Before the client: it must go first.
    pending: Arc<Pending>,
    _client: Client,
}

/// The event without the client, for lists that the client itself owns.
pub(crate) struct Pending {
    handle: Handle<sys::PJRT_Event>,
    what: &'static str,
    waiter: OnceLock<Result<Arc<Waiter>>>,
}

/// Where threads sleep until the plugin calls back.
#[derive(Default)]
struct Waiter {
    fired: Mutex<bool>,
    changed: Condvar,
}

/// How long a wait asks again and again before its thread goes to sleep, unless the one before took
/// longer: about what it takes to wake it up. What ends sooner, as most small programs do, is not
/// waited for any longer than it takes.
const ALERT: Duration = Duration::from_micros(100);

impl Event {
    /// Takes ownership of an event of this client; `what` names it in errors.
    ///
    /// # Safety
    /// `raw` must be null or a live event of `client` that nobody else frees.
    pub(crate) unsafe fn new(
        client: &Client,
        what: &'static str,
        raw: *mut sys::PJRT_Event,
    ) -> Result<Self> {
        // SAFETY: the caller vouches for the pointer.
        let handle = unsafe { Handle::new(client.api(), raw) }?;
        Ok(Event::from_handle(client, what, handle))
    }

    /// An event of this client; `what` names it in errors.
    pub(crate) fn from_handle(
        client: &Client,
        what: &'static str,
        handle: Handle<sys::PJRT_Event>,
    ) -> Self {
        let pending = Arc::new(Pending {
            handle,
            what,
            waiter: OnceLock::new(),
        });
        Event {
            pending,
            _client: client.clone(),
        }
    }

    pub(crate) fn handle(&self) -> &Handle<sys::PJRT_Event> {
        &self.pending.handle
    }

    pub(crate) fn pending(&self) -> &Arc<Pending> {
        &self.pending
    }

    /// Whether the work has ended, well or not. Never waits.
    ///
    /// # Errors
    /// The plugin's error when it cannot say.
    pub fn is_ready(&self) -> Result<bool> {
        self.pending.is_ready()
    }

    /// The outcome if the work has ended, without waiting.
    pub fn poll(&self) -> Option<Result<()>> {
        self.pending.poll()
    }

    /// Waits until the work has ended and returns its outcome.
    ///
    /// # Errors
    /// [`Error::Deadline`] when it did not end within `timeout` (it still runs, and can be waited
    /// for again); [`Error::Pjrt`] when the work failed.
    pub fn wait(&self, timeout: Duration) -> Result<()> {
        self.pending.wait(timeout)
    }
}

impl Pending {
    pub(crate) fn is_ready(&self) -> Result<bool> {
        let mut args =
            Extended::<sys::PJRT_Event_IsReady_Args>::new(|a| a.event = self.handle.as_ptr());
        // SAFETY: the handle is live.
        unsafe { self.handle.api().PJRT_Event_IsReady(&mut args) }?;
        Ok(args.is_ready)
    }

    fn poll(&self) -> Option<Result<()>> {
        match self.is_ready() {
            Ok(false) => None,
            Ok(true) => Some(self.outcome()),
            Err(error) => Some(Err(error)),
        }
    }

    /// The outcome if the work ends within a time that is too short to sleep.
    fn poll_for(&self, time: Duration) -> Option<Result<()>> {
        let start = Instant::now();
        let busy = Busy::begin();
        let mut looks = 0_u32;
        loop {
            let outcome = self.poll();
            // Reading the clock takes longer than looking.
            looks = looks.wrapping_add(1);
            let late = || (busy.is_none() || looks.is_multiple_of(8)) && start.elapsed() >= time;
            if outcome.is_some() || late() {
                return outcome;
            }
            match busy {
                Some(_) => hint::spin_loop(),
                // The core may be the one that the work is to run on.
                None => thread::yield_now(),
            }
        }
    }

    /// The outcome of an event that is ready.
    fn outcome(&self) -> Result<()> {
        let mut args =
            Extended::<sys::PJRT_Event_Error_Args>::new(|a| a.event = self.handle.as_ptr());
        // SAFETY: the handle is live, and the event is ready, which this function demands.
        unsafe { self.handle.api().PJRT_Event_Error(&mut args) }
    }

    pub(crate) fn wait(&self, timeout: Duration) -> Result<()> {
        if let Some(outcome) = self.poll() {
            return outcome;
        }
        let start = Instant::now();
        if BRISK.get()
            && let Some(outcome) = self.poll_for(timeout.min(ALERT))
        {
            return outcome;
        }
        let watch = Metric::WaitTime.start();
        let waiter = self
            .waiter
            .get_or_init(|| {
                let waiter = Arc::new(Waiter::default());
                let called = Arc::clone(&waiter);
                on_ready(&self.handle, move || called.fire())?;
                Ok(waiter)
            })
            .as_ref()
            .map_err(Clone::clone)?;
        let ended = waiter.wait(timeout);
        BRISK.set(start.elapsed() < ALERT);
        if ended {
            watch.stop();
            return self.outcome();
        }
        Err(Error::Deadline {
            what: self.what.to_owned(),
            after: timeout,
            advice: "",
        })
    }
}

thread_local! {
    /// Whether what this thread waited for last was soon over. Steps are alike, and where they take
    /// long the cores are theirs.
    static BRISK: Cell<bool> = const { Cell::new(true) };
}

/// A wait that keeps its core, because what it waits for is a small program.
///
/// Were the core given away, the plugin's threads would take it to look for more work, and go to
/// sleep there before the next program is started; waking one up takes many times as long as a small
/// program does. One thread at a time does so, and only where there is another core for the plugin.
struct Busy;

static BUSY: AtomicBool = AtomicBool::new(false);

impl Busy {
    fn begin() -> Option<Busy> {
        static SPARE: LazyLock<bool> =
            LazyLock::new(|| thread::available_parallelism().is_ok_and(|cores| cores.get() > 1));
        let free = *SPARE && !BUSY.swap(true, Ordering::Acquire);
        free.then_some(Busy)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        BUSY.store(false, Ordering::Release);
    }
}

impl Waiter {
    fn fire(&self) {
        *self.fired.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    fn wait(&self, timeout: Duration) -> bool {
        let fired = self.fired.lock().unwrap_or_else(PoisonError::into_inner);
        *self
            .changed
            .wait_timeout_while(fired, timeout, |fired| !*fired)
            .unwrap_or_else(PoisonError::into_inner)
            .0
    }
}

/// Has `then` run once the event is ready, on whichever thread makes it so (this one, if it is ready
/// already). `then` must neither block nor panic.
///
/// # Errors
/// The plugin's, in which case `then` may or may not run later; what it owns is kept alive for ever.
pub(crate) fn on_ready<F: FnOnce() + Send + 'static>(
    event: &Handle<sys::PJRT_Event>,
    then: F,
) -> Result<()> {
    struct Call<F> {
        api: &'static Api,
        then: F,
    }

    extern "C" fn called<F: FnOnce()>(error: *mut sys::PJRT_Error, user: *mut c_void) {
        // SAFETY: `user` is the box given below, and the API calls back exactly once.
        let call = unsafe { Box::from_raw(user.cast::<Call<F>>()) };
        // SAFETY: the API hands the error over to the callback. Its content is asked for again by
        // those who wait, with PJRT_Event_Error.
        unsafe { call.api.destroy_error(error) };
        (call.then)();
    }

    let user = Box::into_raw(Box::new(Call {
        api: event.api(),
        then,
    }));
    let mut args = Extended::<sys::PJRT_Event_OnReady_Args>::new(|a| {
        a.event = event.as_ptr();
        a.callback = Some(called::<F>);
        a.user_arg = user.cast();
    });
    // SAFETY: the event is live; the box behind `user_arg` is freed by the callback alone, so it is
    // there whenever that runs. It is leaked rather than freed here when registering failed.
    unsafe { event.api().PJRT_Event_OnReady(&mut args) }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("what", &self.pending.what)
            .field("ready", &self.is_ready().unwrap_or(false))
            .finish()
    }
}
