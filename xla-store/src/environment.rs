//! The one contract with launchers: what the variables say of this process's place in the world.
//!
//! | launcher | known by | rank | world size | address |
//! | --- | --- | --- | --- | --- |
//! | torchrun | `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and a `TORCHELASTIC_` variable | `RANK` | `WORLD_SIZE` | `MASTER_ADDR:MASTER_PORT` |
//! | `spawn`, `xlarun` | the same and `XLA_STORE_ADDR` | `RANK` | `WORLD_SIZE` | `XLA_STORE_ADDR` |
//! | by hand, or another | the same alone | `RANK` | `WORLD_SIZE` | `MASTER_ADDR:MASTER_PORT` |
//! | Slurm (`srun`) | `SLURM_PROCID` and `SLURM_STEP_ID` | `SLURM_PROCID` | `SLURM_STEP_NUM_TASKS`, or `SLURM_NTASKS` | the first node of the step, a port from the job's id |
//! | Open MPI (`mpirun`) | `OMPI_COMM_WORLD_RANK` | that | `OMPI_COMM_WORLD_SIZE` | `MASTER_ADDR:MASTER_PORT` |
//! | Kubernetes indexed job | `JOB_COMPLETION_INDEX` and `WORLD_SIZE` | that | `WORLD_SIZE` | `MASTER_ADDR:MASTER_PORT` |
//!
//! `MASTER_ADDR` and `MASTER_PORT` go before what Slurm says. Variables that are empty count as
//! unset. Ranks here count processes: with T replica threads a process, the replicas of process
//! `RANK` have the global ranks `RANK * T` and following.
//!
//! A batch script under Slurm is not a task of its own: `sbatch` sets `SLURM_PROCID` too, but no
//! step, so a program that the script starts without `srun` runs alone.

pub use crate::inherited::{LAUNCH_CHILD, variable, variable_before_launch};
use xla_core::{Error, Result};

/// Port of torchrun and of PyTorch's examples, where a launcher says none.
pub const DEFAULT_PORT: u16 = 29500;

/// What another launcher, or ours, says of this process.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct External {
    /// This process among all, from 0.
    pub rank: usize,
    /// How many processes there are.
    pub world_size: usize,
    /// This process among those of its machine, from 0.
    pub local_rank: usize,
    /// How many processes of the world are on this machine.
    pub local_world_size: usize,
    /// The host of process 0.
    pub master_addr: String,
    /// The port there: of the store that process 0 hosts, or of torchrun's agent.
    pub master_port: u16,
    /// `XLA_STORE_ADDR`: the store that the launcher hosts, as `host:port`.
    pub store_addr: Option<String>,
    /// How often the launcher has started this world again, from 0.
    pub attempt: u64,
    /// Who says it.
    pub source: Source,
}

/// A launcher, by the variables it sets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// torchrun, or another user of PyTorch's elastic agent.
    Torchrun {
        /// Whether the agent itself listens at the address, with PyTorch's store.
        agent_store: bool,
        /// `TORCHELASTIC_RUN_ID`.
        run_id: Option<String>,
    },
    /// This project's own: `spawn` and `xlarun`.
    XlaRun,
    /// Slurm's `srun`.
    Slurm,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// An indexed job of Kubernetes.
    Kubernetes,
    /// `RANK`, `WORLD_SIZE` and `MASTER_ADDR` of unknown origin.
    Plain,
}

/// `XLA_STORE_TOKEN`, unless unset or empty.
pub(crate) fn token() -> Option<String> {
    variable("XLA_STORE_TOKEN").filter(|token| !token.is_empty())
}

/// What a set of variables says; `None` when no launcher has set them.
///
/// # Errors
/// [`Error::Config`] naming the variable: one that is missing beside others of its launcher, no
/// number, or in contradiction to another.
///
/// ```
/// use xla_store::environment::external;
/// let variables = [("RANK", "3"), ("WORLD_SIZE", "4"), ("MASTER_ADDR", "10.0.0.7"), ("MASTER_PORT", "29500")];
/// let lookup = |name: &str| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| v.to_string());
/// let external = external(&lookup)?.ok_or_else(|| xla_core::Error::Internal { what: "example", expected: "a launcher".into() })?;
/// assert_eq!((external.rank, external.world_size), (3, 4));
/// # Ok::<(), xla_core::Error>(())
/// ```
pub fn external(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Option<External>> {
    let read = Read(lookup);
    let usual = read.has("RANK") && read.has("WORLD_SIZE");
    if usual && (read.has("MASTER_ADDR") || read.has("XLA_STORE_ADDR")) {
        read.usual().map(Some)
    } else if read.has("SLURM_PROCID") && (read.has("SLURM_STEP_ID") || read.has("SLURM_STEPID")) {
        read.slurm().map(Some)
    } else if read.has("OMPI_COMM_WORLD_RANK") {
        read.open_mpi().map(Some)
    } else if read.has("JOB_COMPLETION_INDEX") && read.has("WORLD_SIZE") {
        read.kubernetes().map(Some)
    } else if usual {
        Err(missing("MASTER_ADDR", "RANK and WORLD_SIZE are set"))
    } else {
        Ok(None)
    }
}

/// Variables, with empty ones as unset.
struct Read<'a>(&'a dyn Fn(&str) -> Option<String>);

impl Read<'_> {
    fn get(&self, name: &str) -> Option<String> {
        let value = (self.0)(name)?.trim().to_owned();
        (!value.is_empty()).then_some(value)
    }

    fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    fn number(&self, name: &'static str) -> Result<Option<u64>> {
        let Some(text) = self.get(name) else {
            return Ok(None);
        };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(wrong(name, "a whole number", text)),
        }
    }

    fn required(&self, name: &'static str, because: &str) -> Result<u64> {
        self.number(name)?.ok_or_else(|| missing(name, because))
    }

    /// `RANK`, `WORLD_SIZE` and company.
    fn usual(&self) -> Result<External> {
        let store_addr = self.get("XLA_STORE_ADDR");
        if let Some(address) = &store_addr
            && !is_host_and_port(address)
        {
            return Err(wrong("XLA_STORE_ADDR", "host:port", address.clone()));
        }
        let elastic = [
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
            "TORCHELASTIC_USE_AGENT_STORE",
        ]
        .iter()
        .any(|name| self.has(name));
        let source = match elastic {
            _ if store_addr.is_some() => Source::XlaRun,
            true => Source::Torchrun {
                agent_store: self.get("TORCHELASTIC_USE_AGENT_STORE").as_deref() == Some("True"),
                run_id: self.get("TORCHELASTIC_RUN_ID"),
            },
            false => Source::Plain,
        };
        let because = "RANK and WORLD_SIZE are set";
        let (master_addr, master_port) = match (&store_addr, self.get("MASTER_ADDR")) {
            (Some(address), None) => split(address, "XLA_STORE_ADDR")?,
            (_, None) => return Err(missing("MASTER_ADDR", because)),
            (Some(address), Some(host)) if !self.has("MASTER_PORT") => {
                (host, split(address, "XLA_STORE_ADDR")?.1)
            }
            (_, Some(host)) => (host, self.port(None)?),
        };
        self.world(World {
            rank: ("RANK", self.required("RANK", because)?),
            size: ("WORLD_SIZE", self.required("WORLD_SIZE", because)?),
            local_rank: ("LOCAL_RANK", self.number("LOCAL_RANK")?),
            local_size: ("LOCAL_WORLD_SIZE", self.number("LOCAL_WORLD_SIZE")?),
            address: (master_addr, master_port),
            store_addr,
            source,
        })
    }

    fn slurm(&self) -> Result<External> {
        let because = "SLURM_PROCID is set";
        let size = match self.number("SLURM_STEP_NUM_TASKS")? {
            Some(size) => ("SLURM_STEP_NUM_TASKS", size),
            None => ("SLURM_NTASKS", self.required("SLURM_NTASKS", because)?),
        };
        let nodes = [
            "SLURM_STEP_NODELIST",
            "SLURM_JOB_NODELIST",
            "SLURM_NODELIST",
        ]
        .iter()
        .find_map(|name| self.get(name));
        let host = match (self.get("MASTER_ADDR"), nodes) {
            (Some(host), _) => host,
            (None, Some(nodes)) => first_node(&nodes)
                .ok_or_else(|| wrong("SLURM_STEP_NODELIST", "a list of nodes", nodes))?,
            (None, None) => self
                .get("SLURM_LAUNCH_NODE_IPADDR")
                .ok_or_else(|| missing("SLURM_STEP_NODELIST", because))?,
        };
        let job = self.number("SLURM_JOB_ID")?.or(self.number("SLURM_JOBID")?);
        // Jobs that share a node get ports of their own, all processes of one job the same.
        let derived = job.and_then(|job| u16::try_from(61_440 + job % 4_096).ok());
        let step = self
            .get("SLURM_STEP_TASKS_PER_NODE")
            .or(self.get("SLURM_TASKS_PER_NODE"));
        let node = self.number("SLURM_NODEID")?.unwrap_or(0);
        self.world(World {
            rank: ("SLURM_PROCID", self.required("SLURM_PROCID", because)?),
            size,
            local_rank: ("SLURM_LOCALID", self.number("SLURM_LOCALID")?),
            local_size: (
                "SLURM_STEP_TASKS_PER_NODE",
                step.and_then(|tasks| tasks_of_node(&tasks, node)),
            ),
            address: (host, self.port(derived)?),
            store_addr: None,
            source: Source::Slurm,
        })
    }

    fn open_mpi(&self) -> Result<External> {
        let because = "OMPI_COMM_WORLD_RANK is set";
        self.world(World {
            rank: (
                "OMPI_COMM_WORLD_RANK",
                self.required("OMPI_COMM_WORLD_RANK", because)?,
            ),
            size: (
                "OMPI_COMM_WORLD_SIZE",
                self.required("OMPI_COMM_WORLD_SIZE", because)?,
            ),
            local_rank: (
                "OMPI_COMM_WORLD_LOCAL_RANK",
                self.number("OMPI_COMM_WORLD_LOCAL_RANK")?,
            ),
            local_size: (
                "OMPI_COMM_WORLD_LOCAL_SIZE",
                self.number("OMPI_COMM_WORLD_LOCAL_SIZE")?,
            ),
            address: self.master(because)?,
            store_addr: None,
            source: Source::OpenMpi,
        })
    }

    fn kubernetes(&self) -> Result<External> {
        let because = "JOB_COMPLETION_INDEX and WORLD_SIZE are set";
        self.world(World {
            rank: (
                "JOB_COMPLETION_INDEX",
                self.required("JOB_COMPLETION_INDEX", because)?,
            ),
            size: ("WORLD_SIZE", self.required("WORLD_SIZE", because)?),
            // A pod is a machine of its own.
            local_rank: ("LOCAL_RANK", Some(0)),
            local_size: ("LOCAL_WORLD_SIZE", Some(1)),
            address: self.master(because)?,
            store_addr: None,
            source: Source::Kubernetes,
        })
    }

    fn master(&self, because: &str) -> Result<(String, u16)> {
        let host = self.get("MASTER_ADDR");
        Ok((
            host.ok_or_else(|| missing("MASTER_ADDR", because))?,
            self.port(None)?,
        ))
    }

    fn port(&self, default: Option<u16>) -> Result<u16> {
        match (self.get("MASTER_PORT"), default) {
            (None, Some(port)) => Ok(port),
            (None, None) => Err(missing("MASTER_PORT", "MASTER_ADDR is")),
            (Some(text), _) => match text.parse() {
                Ok(port) if port > 0 => Ok(port),
                _ => Err(wrong("MASTER_PORT", "a port, 1 to 65535", text)),
            },
        }
    }

    /// Checks what was read against itself.
    fn world(&self, world: World) -> Result<External> {
        let (size_name, size) = world.size;
        let (rank_name, rank) = world.rank;
        if size == 0 {
            return Err(wrong(size_name, "at least 1", size.to_string()));
        }
        if rank >= size {
            let expected = format!("a rank below {size_name}, which is {size}");
            return Err(wrong(rank_name, &expected, rank.to_string()));
        }
        // Without word of the machine: no more processes there than are known to be.
        let local_size = match world.local_size {
            (name, Some(local)) if local == 0 || local > size => {
                let expected = format!("1 to {size_name}, which is {size}");
                return Err(wrong(name, &expected, local.to_string()));
            }
            (_, Some(local)) => local,
            (_, None) => world.local_rank.1.map_or(1, |rank| rank + 1).min(size),
        };
        let local_rank = match world.local_rank {
            (name, Some(local)) if local >= local_size => {
                let expected =
                    format!("a rank below {}, which is {local_size}", world.local_size.0);
                return Err(wrong(name, &expected, local.to_string()));
            }
            (_, local) => local.unwrap_or(0),
        };
        let attempt = match self.number("TORCHELASTIC_RESTART_COUNT")? {
            Some(attempt) => attempt,
            None => self.number("XLA_RESTART_COUNT")?.unwrap_or(0),
        };
        let count = |name, number: u64| {
            usize::try_from(number)
                .map_err(|_| wrong(name, "a number of processes", number.to_string()))
        };
        Ok(External {
            rank: count(rank_name, rank)?,
            world_size: count(size_name, size)?,
            local_rank: count(world.local_rank.0, local_rank)?,
            local_world_size: count(world.local_size.0, local_size)?,
            master_addr: world.address.0,
            master_port: world.address.1,
            store_addr: world.store_addr,
            attempt,
            source: world.source,
        })
    }
}

/// Numbers with the names of the variables that they come from.
struct World {
    rank: (&'static str, u64),
    size: (&'static str, u64),
    local_rank: (&'static str, Option<u64>),
    local_size: (&'static str, Option<u64>),
    address: (String, u16),
    store_addr: Option<String>,
    source: Source,
}

fn missing(name: &'static str, because: &str) -> Error {
    Error::Config {
        name,
        expected: format!("a value, since {because}"),
        got: "nothing: it is not set".into(),
    }
}

fn wrong(name: &'static str, expected: &str, got: String) -> Error {
    Error::Config {
        name,
        expected: expected.into(),
        got,
    }
}

fn is_host_and_port(address: &str) -> bool {
    split(address, "").is_ok()
}

fn split(address: &str, name: &'static str) -> Result<(String, u16)> {
    let parts = address.rsplit_once(':').and_then(|(host, port)| {
        let port: u16 = port.parse().ok()?;
        (!host.is_empty()).then(|| (host.to_owned(), port))
    });
    parts.ok_or_else(|| wrong(name, "host:port", address.into()))
}

/// The first host of Slurm's compressed list: `gpu[007-010,12]-a,login` begins with `gpu007-a`.
fn first_node(nodes: &str) -> Option<String> {
    let end = nodes.find(['[', ',']).unwrap_or(nodes.len());
    let (stem, rest) = nodes.split_at(end);
    let node = match rest.strip_prefix('[') {
        None => stem.to_owned(),
        Some(rest) => {
            let (ranges, rest) = rest.split_once(']')?;
            let first = ranges
                .split(['-', ','])
                .next()
                .filter(|first| !first.is_empty())?;
            let suffix = rest.split(',').next().unwrap_or_default();
            format!("{stem}{first}{suffix}")
        }
    };
    (!node.is_empty()).then_some(node)
}

/// Tasks on a node by Slurm's compressed list: `2(x3),1` is 2, 2, 2, 1.
fn tasks_of_node(tasks: &str, node: u64) -> Option<u64> {
    let mut before = 0_u64;
    for part in tasks.split(',') {
        let (count, times) = match part.split_once("(x") {
            None => (part, 1),
            Some((count, times)) => (count, times.strip_suffix(')')?.parse().ok()?),
        };
        before = before.checked_add(times)?;
        if node < before {
            return count.parse().ok();
        }
    }
    None
}
