//! How the processes of a run meet: a store that all of them reach, by the URL of a method.
//!
//! | URL | the store is hosted by | rank and world size from |
//! | --- | --- | --- |
//! | `xla://` | whoever the launch says; for a single process, itself | the launch |
//! | `env://` | process 0, at `MASTER_ADDR:MASTER_PORT`; torchrun's agent says where if it has that port | the environment |
//! | `tcp://host:port` | process 0, there | `?rank=0&world_size=2`, or the environment |
//! | `file:///path` | process 0, at an address that it writes there; `&host=` says which | the same |

mod published;

use std::collections::HashMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use url::Url;
use xla_core::{Error, Result};

use self::published::Agent;
use crate::environment::{External, Source, external};
use crate::{ConnectOptions, Server, ServerOptions, Store, environment};

/// What is known of this process before it meets the others.
#[derive(Clone, Default)]
pub struct LaunchInfo {
    /// What the environment says; `None` for a process that nobody launched.
    pub external: Option<External>,
    /// What the stores of this run want to know.
    pub token: Option<String>,
}

impl fmt::Debug for LaunchInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LaunchInfo")
            .field("external", &self.external)
            .field("token", &self.token.as_ref().map(|_| "***"))
            .finish()
    }
}

impl LaunchInfo {
    /// What this process's environment says.
    ///
    /// # Errors
    /// As [`environment::external`].
    pub fn from_environment() -> Result<LaunchInfo> {
        Ok(LaunchInfo {
            external: external(&environment::variable)?,
            token: environment::token(),
        })
    }

    fn connect(&self, deadline: Duration) -> ConnectOptions {
        ConnectOptions::default()
            .deadline(deadline)
            .token(self.token.clone())
    }

    fn attempt(&self) -> u64 {
        self.external
            .as_ref()
            .map_or(0, |external| external.attempt)
    }
}

/// The meeting, as one process sees it.
#[derive(Debug)]
pub struct Rendezvous {
    /// The store that all have in common, with a prefix for this attempt.
    pub store: Store,
    /// This process among all, from 0.
    pub process_index: usize,
    /// How many there are.
    pub processes: usize,
    /// Where this process hosts the store.
    host: Option<Server>,
}

impl Rendezvous {
    /// A meeting in a store that the caller has set up, for methods registered by
    /// [`register_rendezvous_handler`].
    ///
    /// `host` is the store's server where this process hosts it.
    pub fn new(store: Store, process_index: usize, processes: usize, host: Option<Server>) -> Self {
        Rendezvous {
            store,
            process_index,
            processes,
            host,
        }
    }

    /// Whether this process hosts the store, so that the others lose it when this one ends.
    pub fn is_host(&self) -> bool {
        self.host.is_some()
    }

    /// Ends this process's use of the store. The process that hosts it waits until the others have
    /// ended theirs, at most as long as `patience`.
    ///
    /// Clones of [`store`](Self::store) and memberships are to be dropped before.
    pub fn close(self, patience: Duration) {
        drop(self.store);
        if let Some(server) = self.host {
            server.close(patience);
        }
    }
}

type Handler = dyn Fn(&str, &LaunchInfo, Duration) -> Result<Rendezvous> + Send + Sync;

static HANDLERS: LazyLock<Mutex<HashMap<String, Arc<Handler>>>> = LazyLock::new(Mutex::default);

/// Adds a method to [`rendezvous`], by the scheme of its URLs.
///
/// # Errors
/// [`Error::Config`] for a scheme that there is already.
pub fn register_rendezvous_handler(
    scheme: &str,
    handler: impl Fn(&str, &LaunchInfo, Duration) -> Result<Rendezvous> + Send + Sync + 'static,
) -> Result<()> {
    let mut handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
    let built_in = ["xla", "env", "tcp", "file"].contains(&scheme);
    if built_in || handlers.contains_key(scheme) {
        return Err(Error::Config {
            name: "scheme",
            expected: "one that has no rendezvous handler yet".into(),
            got: scheme.into(),
        });
    }
    handlers.insert(scheme.to_owned(), Arc::new(handler));
    Ok(())
}

/// Meets the other processes of the run; called once in each, it returns when all have.
///
/// # Errors
/// [`Error::Rendezvous`] naming the processes that did not come in time, [`Error::Deadline`] when
/// nobody hosts the store, [`Error::Config`] for a URL or environment that does not say what is
/// needed, and as [`Store::connect`] and [`Server::bind`].
///
/// ```
/// use std::time::Duration;
/// use xla_store::{LaunchInfo, rendezvous};
/// let alone = rendezvous("xla://", &LaunchInfo::default(), Duration::from_secs(1))?;
/// assert_eq!((alone.process_index, alone.processes), (0, 1));
/// # Ok::<(), xla_core::Error>(())
/// ```
pub fn rendezvous(url: &str, launch: &LaunchInfo, deadline: Duration) -> Result<Rendezvous> {
    let parsed = Url::parse(url).map_err(|error| malformed(url, &error.to_string()))?;
    let end = Instant::now() + deadline;
    match parsed.scheme() {
        "xla" => match &launch.external {
            Some(external) => by_environment(url, launch, external, end),
            None => Ok(Rendezvous::new(Store::local(), 0, 1, None)),
        },
        "env" => match &launch.external {
            Some(external) => by_environment(url, launch, external, end),
            None => Err(Error::Config {
                name: "RANK",
                expected: "set, as WORLD_SIZE, MASTER_ADDR and MASTER_PORT, for env://".into(),
                got: "nothing: it is not set".into(),
            }),
        },
        "tcp" => {
            let place = Place::of(url, &parsed, launch)?;
            let address = parsed.host_str().zip(parsed.port());
            let (host, port) = address.ok_or_else(|| malformed(url, "no host:port"))?;
            at(url, &place, host, port, launch, end)
        }
        "file" => {
            let place = Place::of(url, &parsed, launch)?;
            let path = parsed
                .to_file_path()
                .map_err(|()| malformed(url, "no absolute path of this machine"))?;
            let mut pairs = parsed.query_pairs();
            let bind_to = match pairs.find(|(key, _)| key == "host") {
                Some((_, host)) => bindable(&host, 0)?,
                None => (Ipv4Addr::LOCALHOST, 0).into(),
            };
            let file = published::File { path, bind_to };
            published::meet(url, &place, file, launch, end)
        }
        scheme => {
            let handlers = HANDLERS.lock().unwrap_or_else(PoisonError::into_inner);
            let handler = handlers.get(scheme).cloned();
            drop(handlers);
            match handler {
                Some(handler) => handler(url, launch, deadline),
                None => Err(malformed(url, "no method has this scheme")),
            }
        }
    }
}

/// Which process this is, of how many.
struct Place {
    rank: usize,
    size: usize,
}

impl Place {
    /// As the URL's query says, else as the environment.
    fn of(url: &str, parsed: &Url, launch: &LaunchInfo) -> Result<Place> {
        let asked = |name: &str| {
            let mut pairs = parsed.query_pairs();
            let value = pairs.find(|(key, _)| key == name).map(|(_, value)| value);
            value
                .map(|text| {
                    text.parse::<usize>()
                        .map_err(|_| malformed(url, &format!("{name}={text} is no whole number")))
                })
                .transpose()
        };
        let known = launch.external.as_ref();
        let rank = asked("rank")?.or(known.map(|external| external.rank));
        let size = asked("world_size")?.or(known.map(|external| external.world_size));
        match (rank, size) {
            (Some(rank), Some(size)) if rank < size => Ok(Place { rank, size }),
            (Some(rank), Some(size)) => Err(malformed(
                url,
                &format!("rank {rank} is not below the world size, {size}"),
            )),
            (None, _) => Err(malformed(
                url,
                "neither ?rank= nor the environment says the rank",
            )),
            (_, None) => Err(malformed(
                url,
                "neither ?world_size= nor the environment says the world size",
            )),
        }
    }
}

fn malformed(url: &str, reason: &str) -> Error {
    Error::Rendezvous {
        url: url.into(),
        reason: reason.into(),
        advice: "use xla://, env://, tcp://host:port?rank=0&world_size=2, file:///path?rank=0&world_size=2, or a registered scheme",
    }
}

/// What is left until then.
fn left(end: Instant) -> Duration {
    end.saturating_duration_since(Instant::now())
}

fn by_environment(
    url: &str,
    launch: &LaunchInfo,
    external: &External,
    end: Instant,
) -> Result<Rendezvous> {
    let place = Place {
        rank: external.rank,
        size: external.world_size,
    };
    match (&external.store_addr, &external.source) {
        (Some(address), _) => {
            let store = Store::connect(address, &launch.connect(left(end)))?;
            join(url, &place, store, None, launch, end, || Ok(()))
        }
        (None, Source::Torchrun { agent_store, .. }) if *agent_store => {
            let (host, port) = (&external.master_addr, external.master_port);
            let agent = Agent::connect(host, port, external.attempt, end)?;
            published::meet(url, &place, agent, launch, end)
        }
        (None, _) => {
            let (host, port) = (&external.master_addr, external.master_port);
            at(url, &place, host, port, launch, end)
        }
    }
}

/// Process 0 hosts the store at an address that all know.
fn at(
    url: &str,
    place: &Place,
    host: &str,
    port: u16,
    launch: &LaunchInfo,
    end: Instant,
) -> Result<Rendezvous> {
    let server = match place.rank {
        0 => Some(serve(&bindable(host, port)?, launch)?),
        _ => None,
    };
    let address = match &server {
        Some(server) => server.address().to_string(),
        None => format!("{host}:{port}"),
    };
    let store = Store::connect(&address, &launch.connect(left(end)))?;
    join(url, place, store, server, launch, end, || Ok(()))
}

fn serve(address: &SocketAddr, launch: &LaunchInfo) -> Result<Server> {
    let options = ServerOptions::default().address(*address);
    Server::bind(&options.token(launch.token.clone()))
}

/// The address of this machine that a name means; IPv4 first, as PyTorch's stores have it.
fn bindable(host: &str, port: u16) -> Result<SocketAddr> {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let unknown = |reason: String| Error::Store {
        call: "rendezvous",
        address: format!("{host}:{port}"),
        reason,
        advice: "; MASTER_ADDR must be a name or address of the machine of process 0",
    };
    let found: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|error| unknown(error.to_string()))?
        .collect();
    let four = found.iter().find(|address| address.is_ipv4());
    four.or(found.first())
        .copied()
        .ok_or_else(|| unknown("the name has no address".into()))
}

/// Meets the others in a store: returns when all are there. Process 0 says when, after a last act
/// of its own.
fn join(
    url: &str,
    place: &Place,
    store: Store,
    host: Option<Server>,
    launch: &LaunchInfo,
    end: Instant,
    last: impl FnOnce() -> Result<()>,
) -> Result<Rendezvous> {
    const OPEN: &str = "rendezvous/open";
    let store = store.prefixed(&format!("attempt-{}", launch.attempt()));
    let meeting = Rendezvous::new(store, place.rank, place.size, host);
    let name = |process| format!("rendezvous/{process}");
    meeting.store.set(&name(place.rank), b"here")?;
    let names: Vec<String> = (0..place.size).map(name).collect();
    let keys: Vec<&str> = names.iter().map(String::as_str).collect();
    let absent = |patience| meeting.store.missing("rendezvous", &keys, patience);
    let verdict = match place.rank {
        0 => {
            let absent = absent(left(end))?;
            let processes: Vec<_> = absent
                .iter()
                .filter_map(|key| key.rsplit('/').next())
                .collect();
            let verdict = processes.join(", ");
            if verdict.is_empty() {
                last()?;
            }
            meeting.store.set(OPEN, verdict.as_bytes())?;
            verdict
        }
        _ => match meeting.store.get(OPEN, left(end)) {
            Ok(verdict) => String::from_utf8_lossy(&verdict).into_owned(),
            Err(late @ Error::Deadline { .. }) => {
                let absent = absent(Duration::ZERO)?;
                let processes: Vec<_> = absent
                    .iter()
                    .filter_map(|key| key.rsplit('/').next())
                    .collect();
                match processes.is_empty() {
                    true => return Err(late),
                    false => processes.join(", "),
                }
            }
            Err(error) => return Err(error),
        },
    };
    if verdict.is_empty() {
        return Ok(meeting);
    }
    // Those that have come learn it from the store, which is therefore not ended at once.
    meeting.close(Duration::from_secs(2));
    Err(Error::Rendezvous {
        url: url.into(),
        reason: format!(
            "of {} processes these did not come in time: {verdict}",
            place.size
        ),
        advice: "look for their errors, and whether the world size is right",
    })
}
