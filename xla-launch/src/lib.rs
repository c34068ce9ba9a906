//! Starts the replicas of a program and supervises them.
//!
//! [`launch`] runs one function once for each device, each time on a thread of its own that
//! carries its rank and device ([`xla_runtime::context`]). It returns when every replica has
//! returned, with the error of the replica that failed first, if one did. The function does not
//! know how it is run: [`plan`] decides that from options, environment and device count, without
//! starting anything, and [`Launcher`] does what the plan says.
//!
//! Replicas are threads rather than processes because they then share one PJRT client: one compile
//! serves all of them, and collectives never leave the process. A replica that needs an address
//! space of its own (one that changes the working directory, or links a library with global state)
//! is not served by this crate yet.
//!
//! Nothing here knows what a tensor is: the crate depends on `xla-core` and `xla-runtime` only.
#![forbid(unsafe_code)]

pub mod plan;
mod supervise;
mod thread;

pub use plan::{Options, Plan};

use std::error::Error as StdError;
use std::time::Duration;
use xla_core::{Config, Error, Result};
use xla_runtime::context::{self, Mode};

/// Any error a replica's function may return.
type BoxError = Box<dyn StdError + Send + Sync>;

/// Runs `f(rank)` once for each device and waits for all of them: [`Launcher::run`] with nothing
/// set.
///
/// # Errors
/// As [`Launcher::run`].
pub fn launch<F, E>(f: F) -> Result<()>
where
    F: Fn(usize) -> std::result::Result<(), E> + Send + Sync,
    E: Into<BoxError>,
{
    Launcher::new().run(f).map(drop)
}

/// How to run a function on several devices. What is not set here comes from the environment
/// (`XLA_LAUNCH_MODE`, `XLA_DEADLINE_SECONDS`), then from the defaults.
///
/// ```no_run
/// use xla_launch::Launcher;
/// let squares = Launcher::new()
///     .devices(2)
///     .run(|rank| Ok::<_, xla_core::Error>(rank * rank))?;
/// assert_eq!(squares, [0, 1]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "nothing runs until `run` is called"]
pub struct Launcher {
    options: Options,
    deadline: Option<Duration>,
}

impl Launcher {
    /// All devices, one thread each, unless the environment says otherwise.
    pub fn new() -> Self {
        Launcher::default()
    }

    /// Uses the first `n` devices only. Ignored in single-process debug mode, which uses one.
    pub fn devices(mut self, n: usize) -> Self {
        self.options.devices = Some(n);
        self
    }

    /// Whether to call the function once, on the calling thread, as rank 0 of 1 on `xla:0`: for a
    /// debugger, a profiler, or to rule the replicas out as the cause of a bug. `false` means
    /// threads even where `XLA_LAUNCH_MODE=debug` is set.
    pub fn debug_single_process(mut self, debug: bool) -> Self {
        self.options.debug_single_process = Some(debug);
        self
    }

    /// How long a replica waits for the others in a collective before that is an error;
    /// `XLA_DEADLINE_SECONDS`, or 30 minutes, when not set.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Runs `f(rank)` on every replica and returns what each returned, by rank.
    ///
    /// A replica whose function returns an error or panics ends the launch: replicas that wait for
    /// it in a collective, now or later, get [`Error::ReplicaFailed`] at once. A replica that does
    /// not wait for anyone runs to its own end: its thread cannot be stopped, and this function
    /// returns only when all have ended (meanwhile a warning names those that still run, every
    /// deadline).
    ///
    /// The process is intact afterwards: a panic is caught, and another launch may follow.
    ///
    /// # Errors
    /// [`Error::ReplicaFailed`] with the rank and message of the replica that failed first; one
    /// that failed only because of another never hides that other. [`Error::NoSuchDevice`] for
    /// more devices than there are, [`Error::Argument`] for none, [`Error::Launch`] inside another
    /// launch, [`Error::Config`] for an environment variable without meaning, and whatever keeps
    /// the PJRT client from starting.
    pub fn run<F, T, E>(self, f: F) -> Result<Vec<T>>
    where
        F: Fn(usize) -> std::result::Result<T, E> + Send + Sync,
        T: Send,
        E: Into<BoxError>,
    {
        if context::in_launch() && context::current("launch")?.mode() != Mode::Single {
            return Err(Error::Launch {
                reason: "called inside a replica of another launch".into(),
                advice: "launch once, around the whole program",
            });
        }
        let config = Config::global()?;
        let plan = plan::plan(&self.options, config.launch_mode, || {
            xla_runtime::Client::global().map(|client| client.devices().len())
        })?;
        let deadline = self.deadline.unwrap_or(config.deadline);
        tracing::info!(%plan, ?deadline, "launch");
        supervise::first_failure(thread::run(&plan, deadline, f))
    }
}
