//! Who may cut a trace, and when.

use super::Trace;
use crate::sync;
use crate::tensor::Tensor;
use std::cell::Cell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, TryLockError};
use std::time::{Duration, Instant};
use xla_core::{Error, Result};
use xla_runtime::owner_lock::thread_token;

/// What another thread does with a trace that this one waits for.
const BODY: &str = "recording a loop's body on another thread";
const PASS: &str = "a backward pass on another thread";
const START: &str = "starting a program on another thread";

thread_local! {
    /// The backward passes that the thread is in.
    static PASSES: Cell<u32> = const { Cell::new(0) };
}

impl Trace {
    /// The lock under which programs are cut and started.
    ///
    /// # Errors
    /// [`Error::InBody`] while the calling thread records a region, [`Error::Deadline`] when another
    /// one does, goes through the trace backwards, or starts a program, for too long.
    pub(crate) fn serial(&self) -> Result<MutexGuard<'_, ()>> {
        let mut serial = None;
        wait_while(|| {
            match self.region.load(Ordering::Acquire) {
                0 => {}
                thread if thread == thread_token() => return Err(self.in_body()),
                _ => return Ok(Some(BODY)),
            }
            serial = match self.syncing.try_lock() {
                Ok(serial) => Some(serial),
                Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => return Ok(Some(START)),
            };
            // From here on a pass that is about to begin waits for the lock.
            Ok(match self.is_others_pass() {
                true => {
                    serial = None;
                    Some(PASS)
                }
                false => None,
            })
        })?;
        serial.ok_or_else(|| Error::Internal {
            what: "sync",
            expected: "the lock that was waited for".into(),
        })
    }

    /// Whether another thread goes through the trace backwards, and this one can wait for it: two that
    /// are in passes would wait for each other. Then the other's pass is an error.
    fn is_others_pass(&self) -> bool {
        let thread = self.pass.load(Ordering::Acquire);
        thread != 0 && thread != thread_token() && PASSES.get() == 0
    }

    fn in_body(&self) -> Error {
        let state = self.lock();
        let enclosing = state.recording.enclosing.as_ref();
        Error::InBody {
            op: enclosing.map_or("a loop", |e| e.op),
            what: "nothing can be synced or read in it",
            advice: "return what is needed of it",
            at: enclosing.map(|e| e.location.into()).unwrap_or_default(),
        }
    }
}

/// Waits for what another thread does, for as long as `doing` names it.
fn wait_while(mut doing: impl FnMut() -> Result<Option<&'static str>>) -> Result<()> {
    if doing()?.is_none() {
        return Ok(());
    }
    let patience = sync::deadline();
    let end = Instant::now() + patience;
    while let Some(what) = doing()? {
        if Instant::now() > end {
            return Err(Error::Deadline {
                what: what.into(),
                after: patience,
                advice: ": do not wait in it for a thread that reads tensors",
            });
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    Ok(())
}

/// Keeps other threads from cutting a trace while a backward pass of this one goes through it.
pub(crate) struct Undisturbed {
    trace: Arc<Trace>,
    /// Whether it is this that keeps them: not in a pass that is part of another one.
    keeps: bool,
}

impl Undisturbed {
    /// # Errors
    /// [`Error::Deadline`] when another thread goes through the trace backwards, cuts it, or records a
    /// region in it, for too long.
    fn new(trace: Arc<Trace>) -> Result<Self> {
        let thread = thread_token();
        let pass = &trace.pass;
        let mut keeps = false;
        let waited = wait_while(|| {
            if !keeps && pass.load(Ordering::Acquire) == thread {
                return Ok(None);
            }
            let region = trace.region.load(Ordering::Acquire);
            if region != 0 && region != thread {
                // The body may go backwards itself before it ends.
                if std::mem::take(&mut keeps) {
                    pass.store(0, Ordering::Release);
                }
                return Ok(Some(BODY));
            }
            let begin = || pass.compare_exchange(0, thread, Ordering::AcqRel, Ordering::Acquire);
            keeps = keeps || begin().is_ok();
            if !keeps {
                let others = trace.is_others_pass();
                return Ok(others.then_some(PASS));
            }
            // Who is cutting it now may finish. Inside a region nobody is.
            let is_cut = || matches!(trace.syncing.try_lock(), Err(TryLockError::WouldBlock));
            Ok((region == 0 && is_cut()).then_some(START))
        });
        if let Err(error) = waited {
            if keeps {
                pass.store(0, Ordering::Release);
            }
            return Err(error);
        }
        PASSES.set(PASSES.get() + 1);
        Ok(Undisturbed { trace, keeps })
    }

    /// For a pass that begins at this tensor: for the trace that it is pending in, or else the calling
    /// thread's.
    ///
    /// # Errors
    /// [`Error::Deadline`] when another thread goes through the trace backwards, cuts it, or records a
    /// region in it, for too long.
    pub(crate) fn of(tensor: &Tensor) -> Result<Self> {
        loop {
            let pending = tensor.storage.pending_in();
            let trace = pending.unwrap_or_else(|| Trace::of_thread(tensor.device()));
            let undisturbed = Undisturbed::new(trace)?;
            // It may have been computed meanwhile.
            match tensor.storage.pending_in() {
                Some(now) if !Arc::ptr_eq(&now, &undisturbed.trace) => {}
                _ => return Ok(undisturbed),
            }
        }
    }
}

impl Drop for Undisturbed {
    fn drop(&mut self) {
        PASSES.set(PASSES.get() - 1);
        if self.keeps {
            self.trace.pass.store(0, Ordering::Release);
        }
    }
}
