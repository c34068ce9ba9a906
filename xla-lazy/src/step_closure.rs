//! Closures that run after the next sync, when what they look at is being computed.

use crate::sync;
use crossbeam::channel::{self, RecvTimeoutError, SendTimeoutError, Sender};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use xla_core::{Error, Result};
use xla_runtime::context;

type Closure = Box<dyn FnOnce() -> Result<()> + Send>;

/// Closures that may wait for the thread that runs them: as many as PyTorch/XLA's.
const WAITING: usize = 100;

thread_local! {
    static CLOSURES: RefCell<Closures> = const { RefCell::new(Closures::new()) };
}

/// The closures of one thread.
struct Closures {
    here: Vec<Closure>,
    elsewhere: Vec<Closure>,
    worker: Option<Worker>,
}

impl Closures {
    const fn new() -> Self {
        Closures {
            here: Vec::new(),
            elsewhere: Vec::new(),
            worker: None,
        }
    }
}

/// The thread that runs a thread's asynchronous closures, one after the other. It ends when the last
/// is run after its owner has ended.
#[derive(Clone)]
struct Worker {
    jobs: Sender<Closure>,
    /// The first error of a closure that nobody has been told yet.
    failed: Arc<Mutex<Option<Error>>>,
}

/// Has `closure` run once, after the next [`sync`](crate::sync) or call of a compiled function, on
/// the calling thread: as PyTorch/XLA's `xm.add_step_closure`. To print a loss in the middle of a step
/// without cutting it:
///
/// ```no_run
/// # fn step() -> xla_core::Result<xla_lazy::Tensor> { xla_lazy::Tensor::zeros((), ()) }
/// # fn demo() -> xla_core::Result<()> {
/// let loss = step()?;
/// xla_lazy::add_step_closure(loss.detach()?, |loss| {
///     println!("loss {}", loss.item::<f32>()?);
///     Ok(())
/// });
/// xla_lazy::sync()?;
/// # Ok(())
/// # }
/// ```
///
/// Closures run in the order in which they were added. The first error becomes that of the sync; the
/// others run nevertheless. A sync that fails keeps the closures for the next one.
pub fn add_step_closure<A: Send + 'static>(
    arguments: A,
    closure: impl FnOnce(A) -> Result<()> + Send + 'static,
) {
    let closure = Box::new(move || closure(arguments));
    CLOSURES.with_borrow_mut(|all| all.here.push(closure));
}

/// [`add_step_closure`] with the closure run on another thread, which belongs to the same replica:
/// reading a value there does not keep the next step from being recorded. As PyTorch/XLA's
/// `run_async=True`.
///
/// Such closures run one after the other. An error is that of a later sync, or of
/// [`SyncHandle::wait`](crate::SyncHandle::wait), which waits for them.
pub fn add_step_closure_async<A: Send + 'static>(
    arguments: A,
    closure: impl FnOnce(A) -> Result<()> + Send + 'static,
) {
    let closure = Box::new(move || closure(arguments));
    CLOSURES.with_borrow_mut(|all| all.elsewhere.push(closure));
}

/// Runs what has been added on this thread since the last time.
///
/// # Errors
/// The first of the closures; [`Error::Deadline`] when the other thread does not keep up.
pub(crate) fn run() -> Result<()> {
    let (here, elsewhere) = CLOSURES.with_borrow_mut(|all| {
        (
            std::mem::take(&mut all.here),
            std::mem::take(&mut all.elsewhere),
        )
    });
    let mut outcome = Ok(());
    if !elsewhere.is_empty() {
        outcome =
            worker().and_then(|worker| elsewhere.into_iter().try_for_each(|c| worker.send(c)));
    }
    for closure in here {
        outcome = outcome.and(closure());
    }
    let worker = CLOSURES.with_borrow(|all| all.worker.clone());
    outcome.and(worker.map_or(Ok(()), |worker| worker.outcome()))
}

/// Waits for the asynchronous closures that were started on behalf of this thread.
///
/// # Errors
/// The first of them; [`Error::Deadline`].
pub(crate) fn wait() -> Result<()> {
    let Some(worker) = CLOSURES.with_borrow(|all| all.worker.clone()) else {
        return Ok(());
    };
    let (done, ended) = channel::bounded(1);
    worker.send(Box::new(move || {
        // Nobody listens any more only after the deadline.
        let _ = done.send(());
        Ok(())
    }))?;
    match ended.recv_timeout(sync::deadline()) {
        Ok(()) => worker.outcome(),
        Err(RecvTimeoutError::Timeout) => Err(overdue(sync::deadline())),
        Err(RecvTimeoutError::Disconnected) => worker.outcome().and(Err(gone())),
    }
}

fn worker() -> Result<Worker> {
    if let Some(known) = CLOSURES.with_borrow(|all| all.worker.clone()) {
        return Ok(known);
    }
    let replica = context::current("add_step_closure_async")?;
    let (jobs, waiting) = channel::bounded::<Closure>(WAITING);
    let failed = Arc::new(Mutex::new(None));
    let told = Arc::clone(&failed);
    thread::Builder::new()
        .name("step closures".into())
        .spawn(move || {
            let _replica = replica.enter();
            for job in waiting {
                let ran = catch_unwind(AssertUnwindSafe(job)).unwrap_or_else(|_| Err(panicked()));
                if let Err(error) = ran {
                    let mut failed = told.lock().unwrap_or_else(PoisonError::into_inner);
                    failed.get_or_insert(error);
                }
            }
        })
        .map_err(|error| Error::system("spawn", error))?;
    let new = Worker { jobs, failed };
    CLOSURES.with_borrow_mut(|all| all.worker = Some(new.clone()));
    Ok(new)
}

impl Worker {
    fn send(&self, closure: Closure) -> Result<()> {
        let sent = self.jobs.send_timeout(closure, sync::deadline());
        sent.map_err(|error| match error {
            SendTimeoutError::Timeout(_) => overdue(sync::deadline()),
            SendTimeoutError::Disconnected(_) => gone(),
        })
    }

    fn outcome(&self) -> Result<()> {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.take().map_or(Ok(()), Err)
    }
}

fn overdue(after: Duration) -> Error {
    Error::Deadline {
        what: "asynchronous step closures".into(),
        after,
        advice: "; one waits for something, or they take longer than the steps",
    }
}

/// The panic itself has been printed.
fn panicked() -> Error {
    let op = "add_step_closure_async";
    Error::argument(op, "closure", "one that does not panic", "a panic")
}

fn gone() -> Error {
    Error::Internal {
        what: "asynchronous step closures",
        expected: "their thread to live as long as it has an owner".into(),
    }
}
