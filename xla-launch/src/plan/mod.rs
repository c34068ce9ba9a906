//! What a launch will do, as a value: options and surroundings in, a [`Plan`] out, nothing started.
//!
//! What the program asks for goes first, then `XLA_LAUNCH_MODE`, then what is found:
//!
//! | found | what happens |
//! | --- | --- |
//! //! | SPMD (`XLA_USE_SPMD`) | one call in this process |
//! | another launcher (`RANK`, `WORLD_SIZE` and `MASTER_ADDR`; Slurm, Open MPI, Kubernetes) | one replica, or a thread a device where more are asked for; no children |
//! | a notebook (Jupyter, evcxr, Kaggle, Colab) | threads of this process |
//! | otherwise | a thread a device, or as many processes as are asked for with a thread a device each |

mod found;
mod surroundings;

#[cfg(test)]
mod tests;

pub use found::{Found, Notebook};
pub(crate) use surroundings::Inherited;
pub use surroundings::{Harness, Surroundings};

use std::fmt;
use xla_core::config::LaunchMode;
use xla_core::{Config, Device, DeviceKind, Error, Result};
use xla_runtime::context::{Mode, Topology};

/// How replicas are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StartMethod {
    /// As threads of this process.
    Threads,
    /// In processes that run this program from its beginning.
    Spawn,
    /// In forks of this process, which must not have used a device yet: for notebooks, whose
    /// program cannot be run again.
    Fork,
}

/// What the program asked for; what is `None` is decided by the surroundings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// How replicas are started.
    pub start_method: Option<StartMethod>,
    /// How many processes, where this launch is what starts them.
    pub processes: Option<usize>,
    /// How many devices each process uses: the first so many, with a replica each.
    pub devices: Option<usize>,
    /// One replica on the calling thread (`true`), or not, whatever the environment says (`false`).
    pub debug_single_process: Option<bool>,
    /// Whether processes are started by a command of the program's own.
    pub worker_command: bool,
}

/// Which replicas run, how, and why so.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Plan {
    /// How the replicas are run.
    pub mode: Mode,
    /// How this process starts others, where it does.
    pub start: Option<StartMethod>,
    /// What decided it.
    pub found: Found,
    /// Where the replicas are. In a process that starts others, `process_index` is 0.
    pub topology: Topology,
}

impl Plan {
    /// Number of replicas in all processes.
    pub fn world_size(&self) -> usize {
        self.topology.world_size()
    }

    /// That of a process which a launch has started: it does as it is told.
    pub(crate) fn of_child(inherited: &Inherited) -> Self {
        Plan {
            mode: Mode::Processes,
            start: None,
            found: Found::Parent(inherited.parent),
            topology: inherited.topology,
        }
    }

    /// The device of the replica at this position within its process.
    pub fn device(&self, local: usize) -> Device {
        Device::new(local)
    }
}

impl fmt::Display for Plan {
    /// One line: what runs, which of it here, and what decided that.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Topology {
            processes,
            replicas,
            ..
        } = self.topology;
        match (self.mode, self.start) {
            (Mode::Debug, _) => f.write_str("debug: one call on the calling thread")?,
            (Mode::Spmd, _) => f.write_str("spmd: one call, partitioned over all devices")?,
            (Mode::Notebook, _) => write!(f, "notebook: {replicas} thread(s)")?,
            (Mode::External, _) => write!(f, "external: {replicas} thread(s) of this process")?,
            (Mode::Processes, Some(start)) => {
                let how = match start {
                    StartMethod::Fork => "forked",
                    _ => "spawned",
                };
                write!(f, "{processes} {how} process(es) of {replicas} thread(s)")?;
            }
            (Mode::Processes, None) => write!(f, "processes: {replicas} thread(s) of this one")?,
            _ => write!(f, "{replicas} thread(s)")?,
        }
        let world = self.world_size();
        let ranks = match self.start {
            Some(_) => 0..world,
            None => self.topology.local_ranks(),
        };
        match ranks.len() {
            1 => write!(f, ", rank {} of {world}", ranks.start)?,
            _ => write!(f, ", ranks {} to {} of {world}", ranks.start, ranks.end - 1)?,
        }
        write!(f, " ({})", self.found)
    }
}

/// Decides how to launch.
///
/// `device_count` is called only where the answer depends on it, because it starts the client.
///
/// # Errors
/// [`Error::Argument`] for no device or process, [`Error::NoSuchDevice`] for more devices than are
/// known to exist, [`Error::Config`] for variables without meaning, [`Error::Launch`] where
/// processes are asked for that cannot be had, and `device_count`'s own error.
///
/// ```
/// use xla_launch::plan::{Options, Surroundings, plan};
/// let lookup = |name: &str| (name == "XLA_LAUNCH_PROCESSES").then(|| "2".to_owned());
/// let plan = plan(&Options::default(), &Surroundings::new(&lookup), || Ok(1))?;
/// assert_eq!(
///     plan.to_string(),
///     "2 spawned process(es) of 1 thread(s), ranks 0 to 1 of 2 (XLA_LAUNCH_PROCESSES)",
/// );
/// # Ok::<(), xla_core::Error>(())
/// ```
pub fn plan(
    options: &Options,
    surroundings: &Surroundings<'_>,
    device_count: impl FnOnce() -> Result<usize>,
) -> Result<Plan> {
    for (argument, value) in [
        ("devices", options.devices),
        ("processes", options.processes),
    ] {
        if value == Some(0) {
            return Err(Error::argument("launch", argument, "at least 1", 0));
        }
    }
    let config = Config::from_lookup(|name| surroundings.get(name))?;
    let planner = Planner {
        options,
        surroundings,
        config: &config,
    };
    match planner.asked() {
        Some((mode, by)) => planner.carry_out(mode, by, device_count),
        None => planner.discover(device_count),
    }
}

/// What a plan is made from.
struct Planner<'a> {
    options: &'a Options,
    surroundings: &'a Surroundings<'a>,
    config: &'a Config,
}

/// A mode that was asked for, before it is known whether it can be had.
#[derive(Clone, Copy)]
enum Asked {
    Threads,
    Debug,
    Start(StartMethod),
    External,
    Notebook,
    Spmd,
}

impl Planner<'_> {
    /// What the program's options ask for, else `XLA_LAUNCH_MODE`.
    fn asked(&self) -> Option<(Asked, Found)> {
        let options = self.options;
        if options.debug_single_process == Some(true) {
            return Some((Asked::Debug, Found::Option("debug_single_process")));
        }
        if let Some(method) = options.start_method {
            let mode = match method {
                StartMethod::Threads => Asked::Threads,
                method => Asked::Start(method),
            };
            return Some((mode, Found::Option("start_method")));
        }
        let mode = match self.config.launch_mode? {
            LaunchMode::Debug if options.debug_single_process == Some(false) => return None,
            LaunchMode::Debug => Asked::Debug,
            LaunchMode::Processes => Asked::Start(StartMethod::Spawn),
            LaunchMode::External => Asked::External,
            LaunchMode::Notebook => Asked::Notebook,
            LaunchMode::Spmd => Asked::Spmd,
            _ => Asked::Threads,
        };
        Some((mode, Found::Variable("XLA_LAUNCH_MODE")))
    }

    fn carry_out(
        &self,
        asked: Asked,
        by: Found,
        device_count: impl FnOnce() -> Result<usize>,
    ) -> Result<Plan> {
        match asked {
            Asked::Threads => self.threads(Mode::Threads, by, device_count),
            Asked::Notebook => self.threads(Mode::Notebook, by, device_count),
            Asked::Debug => Ok(here(Mode::Debug, by, 1)),
            Asked::Spmd => Ok(here(Mode::Spmd, by, 1)),
            Asked::External => {
                match xla_store::environment::external(&|n| self.surroundings.get(n))? {
                    Some(external) => self.external(&external),
                    None => Err(Error::Config {
                        name: "XLA_LAUNCH_MODE",
                        expected: "a launcher's RANK, WORLD_SIZE and MASTER_ADDR beside external"
                            .into(),
                        got: "external".into(),
                    }),
                }
            }
            Asked::Start(method) => self.processes(method, by, self.asked_processes()?),
        }
    }

    /// What the surroundings suggest.
    fn discover(&self, device_count: impl FnOnce() -> Result<usize>) -> Result<Plan> {
        if self.surroundings.partitioned {
            return Ok(here(Mode::Spmd, Found::Option("spmd::enable"), 1));
        }
        if self.config.use_spmd {
            return Ok(here(Mode::Spmd, Found::Variable("XLA_USE_SPMD"), 1));
        }
        if let Some(external) = xla_store::environment::external(&|n| self.surroundings.get(n))? {
            return self.external(&external);
        }
        let asked = match (self.options.processes, self.config.launch_processes) {
            (Some(n), _) => Some((n, Found::Option("processes"))),
            (None, Some(n)) => Some((n, Found::Variable("XLA_LAUNCH_PROCESSES"))),
            (None, None) => None,
        };
        match (asked, self.surroundings.notebook()) {
            (Some((n, by)), _) if n > 1 => self.processes(StartMethod::Spawn, by, n),
            (_, Some(kind)) => self.threads(Mode::Notebook, Found::Notebook(kind), device_count),
            (_, None) => self.threads(Mode::Threads, Found::Nothing, device_count),
        }
    }

    fn threads(
        &self,
        mode: Mode,
        found: Found,
        device_count: impl FnOnce() -> Result<usize>,
    ) -> Result<Plan> {
        let count = device_count()?;
        let replicas = self.devices().unwrap_or(count);
        if replicas > count {
            return Err(no_such_device(replicas, count));
        }
        Ok(here(mode, found, replicas))
    }

    /// Another launcher has started this process, and the others.
    fn external(&self, external: &xla_store::External) -> Result<Plan> {
        let replicas = self.devices().unwrap_or(1);
        // A client that would know better may have to be told of the other processes first.
        let count = self.config.cpu_num_devices.unwrap_or(1);
        if self.config.device == DeviceKind::Cpu && replicas > count {
            return Err(no_such_device(replicas, count));
        }
        Ok(Plan {
            mode: Mode::External,
            start: None,
            found: Found::Launcher(external.source.clone()),
            topology: Topology {
                processes: external.world_size,
                process_index: external.rank,
                replicas,
            },
        })
    }

    fn processes(&self, method: StartMethod, found: Found, processes: usize) -> Result<Plan> {
        if method == StartMethod::Spawn && !self.options.worker_command {
            self.surroundings.can_be_run_again()?;
        }
        let on_cpu = self.config.device == DeviceKind::Cpu;
        let each = match self.devices() {
            Some(n) => n,
            None if on_cpu && self.counted_by_devices() => 1,
            None if on_cpu => self.config.cpu_num_devices.unwrap_or(1),
            None => 1,
        };
        Ok(Plan {
            mode: Mode::Processes,
            start: Some(method),
            found,
            topology: Topology {
                processes,
                process_index: 0,
                replicas: each,
            },
        })
    }

    /// How many processes there are to be where it is clear that there are to be some.
    fn asked_processes(&self) -> Result<usize> {
        let asked = self.options.processes.or(self.config.launch_processes);
        match (asked, self.config.device) {
            (Some(n), _) => Ok(n),
            (None, DeviceKind::Cpu) => Ok(self.config.cpu_num_devices.unwrap_or(1)),
            (None, _) => Err(Error::Launch {
                reason: "processes are asked for without their number, which is not known before \
                         the runtime has started"
                    .into(),
                advice: "set Launcher::processes or XLA_LAUNCH_PROCESSES",
            }),
        }
    }

    /// Whether the number of processes is that of the CPU's devices: then each has one of them.
    fn counted_by_devices(&self) -> bool {
        self.options.processes.is_none() && self.config.launch_processes.is_none()
    }

    /// How many devices are asked for in each process.
    fn devices(&self) -> Option<usize> {
        self.options.devices.or(self.config.launch_devices)
    }
}

/// A plan for this process alone.
fn here(mode: Mode, found: Found, replicas: usize) -> Plan {
    Plan {
        mode,
        start: None,
        found,
        topology: Topology::one_process(replicas),
    }
}

fn no_such_device(replicas: usize, count: usize) -> Error {
    Error::NoSuchDevice {
        asked: replicas - 1,
        count,
    }
}
