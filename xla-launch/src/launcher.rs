//! [`Launcher`]: what a program can say of its launch, and the launch.

use crate::failure::first_failure;
use crate::plan::{self, Options, Plan, StartMethod, Surroundings};
use crate::process::{self, Child, Recorded, Settings, decode, encode};
use crate::{BoxError, external, thread};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::ffi::OsString;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use xla_core::{Config, DeviceKind, Error, Result};
use xla_runtime::Client;
use xla_runtime::context::{self, Mode};
use xla_store::environment;

/// How to run a function on several devices. What is not set here comes from the environment
/// (`XLA_LAUNCH_MODE`, `XLA_LAUNCH_PROCESSES`, `XLA_LAUNCH_DEVICES`, `XLA_LAUNCH_LOG_PREFIX`,
/// `XLA_DEADLINE_SECONDS`), then from what surrounds the program; [`plan`](crate::plan) has the
/// rules.
///
/// ```no_run
/// use xla_launch::Launcher;
/// let squares = Launcher::new()
///     .processes(2)
///     .run_serialized(|rank| Ok::<_, xla_core::Error>(rank * rank))?;
/// assert_eq!(squares, [0, 1]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Clone, Default)]
#[must_use = "nothing runs until `run` is called"]
pub struct Launcher {
    options: Options,
    deadline: Option<Duration>,
    log_prefix: Option<bool>,
    program: Option<OsString>,
    arguments: Option<Vec<OsString>>,
}

/// What a launch is to this process.
enum Part {
    /// Replicas of this process.
    Run(Plan),
    /// Other processes.
    Start(Plan),
    /// Nothing: the process is part of a later one, and this is what the launching process got.
    Repeat(Recorded),
    /// The process is part of this one, and ends with it.
    Join(&'static Child),
}

/// What the launches of this process returned, by ordinal, for processes that later ones start.
static HISTORY: Mutex<Vec<Option<Recorded>>> = Mutex::new(Vec::new());

impl Launcher {
    /// All devices, one thread each, unless the surroundings say otherwise.
    pub fn new() -> Self {
        Launcher::default()
    }

    /// How replicas are started, whatever the surroundings say.
    pub fn start_method(mut self, method: StartMethod) -> Self {
        self.options.start_method = Some(method);
        self
    }

    /// Starts so many processes, each with a thread for each of its devices. Where another launcher
    /// has started this process already, its number of processes counts instead.
    pub fn processes(mut self, n: usize) -> Self {
        self.options.processes = Some(n);
        self
    }

    /// Uses the first `n` devices of each process. Ignored in single-process debug and SPMD mode,
    /// which make one call.
    pub fn devices(mut self, n: usize) -> Self {
        self.options.devices = Some(n);
        self
    }

    /// Whether to call the function once, on the calling thread, as rank 0 of 1 on `xla:0`: for a
    /// debugger, a profiler, or to rule the replicas out as the cause of a bug. `false` means not
    /// so even where `XLA_LAUNCH_MODE=debug` is set.
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

    /// Whether each line that a started process prints begins with its ranks, as in `[2] ` or
    /// `[2-3] `; it does when not set. Without, processes write to this one's output directly, and
    /// the error for one that crashes cannot quote its last words.
    pub fn log_prefix(mut self, prefix: bool) -> Self {
        self.log_prefix = Some(prefix);
        self
    }

    /// The program to start instead of this one, without arguments unless
    /// [`worker_args`](Launcher::worker_args) gives some. It must come to the same launch as this
    /// process, counted from its start, or become (`exec`) a program that does.
    pub fn worker_command(mut self, program: impl Into<OsString>) -> Self {
        self.program = Some(program.into());
        self.options.worker_command = true;
        self
    }

    /// The arguments of started processes instead of this one's. A test that launches processes names
    /// itself: `["its::name", "--exact", "--nocapture"]`.
    pub fn worker_args<A: Into<OsString>>(
        mut self,
        arguments: impl IntoIterator<Item = A>,
    ) -> Self {
        self.arguments = Some(arguments.into_iter().map(Into::into).collect());
        self.options.worker_command = true;
        self
    }

    /// Runs `f(rank)` on every replica of this process and returns what each returned, by rank.
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
    /// [`Error::ReplicaFailed`] with the rank and message of the replica that failed first, a panic's
    /// with its line (and backtrace, where `RUST_BACKTRACE` is set); one that failed only because of
    /// another never hides that other. [`Error::NoSuchDevice`] for more devices than there are,
    /// [`Error::Argument`] for none, [`Error::Launch`] inside another launch, or where processes are
    /// to be started (their values come back through
    /// [`run_serialized`](Launcher::run_serialized) only), [`Error::Config`] for an environment
    /// variable without meaning, and whatever keeps the PJRT client from starting.
    pub fn run<F, T, E>(self, f: F) -> Result<Vec<T>>
    where
        F: Fn(usize) -> std::result::Result<T, E> + Send + Sync,
        T: Send,
        E: Into<BoxError>,
    {
        let launch = ordinal()?;
        let elsewhere = || {
            Err(Error::Launch {
                reason: "values of any type cannot leave the process that made them, and other \
                         processes are to run the replicas"
                    .into(),
                advice: "use run_serialized, or launch",
            })
        };
        match self.part(launch)? {
            Part::Run(plan) => {
                let values = self.run_here(&plan, f);
                remember(launch, values.as_ref().err().map(recorded_error));
                values
            }
            Part::Repeat(Recorded::Values(_)) | Part::Start(_) | Part::Join(_) => elsewhere(),
            Part::Repeat(failed) => Err(repeated(failed)),
        }
    }

    /// Runs `f(rank)` on every replica and returns what each returned, by rank, also those of
    /// processes that this launch starts.
    ///
    /// A started process is this program, run again from its beginning with the same arguments and
    /// without standard input. What comes before the launch happens in it too, except that earlier
    /// launches return what they returned here; with this launch it ends. Its output comes out here,
    /// line by line. The first failure stops the other processes at once, and so do `SIGINT`,
    /// `SIGTERM` and `SIGHUP`, which then end this process with code 128 + signal. No process
    /// outlives this one.
    ///
    /// Where another launcher has started the processes, each gets the values of its own replicas.
    ///
    /// # Errors
    /// As [`run`](Launcher::run); [`Error::ReplicaFailed`] for a process that ends without having
    /// returned from `f`, with its exit code or signal and its last words; [`Error::Launch`] under a
    /// test harness or in a notebook, where running the program again leads nowhere, unless
    /// [`worker_command`](Launcher::worker_command) or [`worker_args`](Launcher::worker_args) says
    /// what does, and for values that cannot be serialised; [`Error::System`] and [`Error::Io`]
    /// where a process cannot be started.
    pub fn run_serialized<F, T, E>(self, f: F) -> Result<Vec<T>>
    where
        F: Fn(usize) -> std::result::Result<T, E> + Send + Sync,
        T: Serialize + DeserializeOwned + Send,
        E: Into<BoxError>,
    {
        let launch = ordinal()?;
        let encoded = |rank: usize| -> std::result::Result<Vec<u8>, BoxError> {
            let value = f(rank).map_err(Into::into)?;
            Ok(encode(&value)?)
        };
        let part = self.part(launch)?;
        let result = match part {
            Part::Run(plan) => self.run_here(&plan, encoded).map(Recorded::Values),
            Part::Start(plan) => {
                let history = HISTORY
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .clone();
                let settings = self.settings()?;
                process::run(&plan, launch, history, &settings, &|ticket, topology| {
                    match Child::forked(ticket, topology) {
                        Ok(child) => self.be(&child, encoded),
                        Err(error) => {
                            eprintln!("a forked replica cannot start: {error}");
                            std::process::exit(1)
                        }
                    }
                })
                .map(Recorded::Values)
            }
            Part::Join(child) => self.be(child, encoded),
            Part::Repeat(recorded) => Ok(recorded),
        };
        let recorded = match result {
            Ok(recorded) => recorded,
            Err(error) => {
                remember(launch, Some(recorded_error(&error)));
                return Err(error);
            }
        };
        match &recorded {
            Recorded::Values(values) => {
                let decoded = values.iter().map(|value| decode(value)).collect();
                remember(launch, Some(recorded));
                decoded
            }
            _ => Err(repeated(recorded)),
        }
    }

    /// What this launch is to this process.
    fn part(&self, launch: usize) -> Result<Part> {
        let config = Config::global()?;
        let child = Child::of_process()?;
        let mut lookup: &dyn Fn(&str) -> Option<String> = &environment::variable;
        match child {
            Some(child) if child.launch == launch => return Ok(Part::Join(child)),
            Some(child) => {
                if let Some(recorded) = child.recorded(launch) {
                    return Ok(Part::Repeat(recorded));
                }
                lookup = &environment::variable_before_launch;
            }
            None => {}
        }
        let surroundings = Surroundings::of_process(lookup);
        let plan = plan::plan(&self.options, &surroundings, || {
            Client::global().map(|client| client.devices().len())
        })?;
        tracing::info!(%plan, deadline = ?self.deadline.unwrap_or(config.deadline), "launch");
        if plan.start.is_none() {
            return Ok(Part::Run(plan));
        }
        // The processor is for everybody; other devices belong to one process at a time.
        if config.device != DeviceKind::Cpu {
            Client::release_global(self.patience()?)?;
        }
        Ok(Part::Start(plan))
    }

    fn run_here<F, T, E>(&self, plan: &Plan, f: F) -> Result<Vec<T>>
    where
        F: Fn(usize) -> std::result::Result<T, E> + Send + Sync,
        T: Send,
        E: Into<BoxError>,
    {
        if plan.mode == Mode::External {
            external::share_cores();
        }
        let outcomes = thread::run(plan, self.patience()?, f, |_| ());
        let result = first_failure(outcomes);
        if plan.mode == Mode::External
            && let Err(error) = &result
        {
            external::report(error);
        }
        result
    }

    /// Runs the replicas of a started process, which then ends.
    fn be<F, E>(&self, child: &Child, f: F) -> !
    where
        F: Fn(usize) -> std::result::Result<Vec<u8>, E> + Send + Sync,
        E: Into<BoxError>,
    {
        let plan = Plan::of_child(&child.inherited);
        tracing::info!(%plan, "launch");
        let deadline = self
            .patience()
            .unwrap_or(xla_core::config::DEFAULT_DEADLINE);
        let outcomes = thread::run(&plan, deadline, f, |outcome| child.report(outcome));
        let failed = outcomes.iter().any(|outcome| outcome.result.is_err());
        std::process::exit(i32::from(failed))
    }

    fn patience(&self) -> Result<Duration> {
        Ok(self.deadline.unwrap_or(Config::global()?.deadline))
    }

    fn settings(&self) -> Result<Settings> {
        let config = Config::global()?;
        Ok(Settings {
            program: self.program.clone(),
            arguments: self.arguments.clone(),
            prefix: self.log_prefix.unwrap_or(config.launch_log_prefix),
        })
    }
}

/// Numbers the launches of this process.
///
/// # Errors
/// [`Error::Launch`] inside a replica of another launch.
fn ordinal() -> Result<usize> {
    static LAUNCHES: AtomicUsize = AtomicUsize::new(0);
    if context::in_launch() && context::current("launch")?.mode() != Mode::Single {
        return Err(Error::Launch {
            reason: "called inside a replica of another launch".into(),
            advice: "launch once, around the whole program",
        });
    }
    Ok(LAUNCHES.fetch_add(1, Ordering::Relaxed))
}

/// Keeps what a launch returned, for processes of later ones.
fn remember(launch: usize, recorded: Option<Recorded>) {
    let mut history = HISTORY.lock().unwrap_or_else(PoisonError::into_inner);
    if history.len() <= launch {
        history.resize(launch + 1, None);
    }
    if let Some(slot) = history.get_mut(launch) {
        *slot = recorded;
    }
}

fn recorded_error(error: &Error) -> Recorded {
    match error {
        Error::ReplicaFailed { rank, message } => Recorded::Failed(*rank, message.clone()),
        other => Recorded::Refused(other.to_string()),
    }
}

fn repeated(recorded: Recorded) -> Error {
    match recorded {
        Recorded::Failed(rank, message) => Error::ReplicaFailed { rank, message },
        Recorded::Refused(reason) => Error::Launch {
            reason,
            advice: "this is what the launching process was told",
        },
        Recorded::Values(_) => Error::Internal {
            what: "launch",
            expected: "an error to repeat".into(),
        },
    }
}
