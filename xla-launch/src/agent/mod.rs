//! What `xlarun` does: starts the same program several times on each of several machines, as
//! torchrun does.
//!
//! One agent runs on each machine. That of node 0 hosts the store through which agents and workers
//! meet. An attempt begins when every agent is ready; the first worker that fails anywhere ends it
//! everywhere, and the next attempt begins, until one succeeds or there are no more. Workers find
//! torchrun's variables and this project's own ([`xla_store::environment`]), so that
//! [`launch`](crate::launch) in them sees another launcher.

mod peers;
mod worker;

use crate::supervise::{Event, Exit, Mailbox, Workers, prefix, signal_name, token};
use peers::{Peers, Setback, Word};
use std::ffi::OsString;
use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use worker::Place;
use xla_core::{Config, Error, Result};
use xla_store::{ConnectOptions, Membership, Server, ServerOptions, Store};

/// The scope of the store in which agents talk.
const SCOPE: &str = "xlarun";

/// How long the agent of node 0 waits for the others to go before it takes the store with it.
const PARTING: Duration = Duration::from_secs(10);

/// What an agent is to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOptions {
    /// Workers on this machine.
    pub nproc_per_node: usize,
    /// Machines.
    pub nnodes: usize,
    /// Which of them this is, from 0.
    pub node_rank: usize,
    /// `host:port` on node 0 where its agent hosts the store; a free port of the loopback address
    /// where there is one machine only.
    pub endpoint: Option<String>,
    /// How often to start again after a failure.
    pub max_restarts: u64,
    /// Devices of each worker, with a replica each; one, where not given.
    pub devices_per_process: Option<usize>,
    /// How long to wait for the other machines at the start of each attempt; `XLA_DEADLINE_SECONDS`,
    /// or 30 minutes, where not given.
    pub deadline: Option<Duration>,
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// How an agent's work ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// All workers of the last attempt ended with code 0.
    Well,
    /// The last attempt failed.
    Badly {
        /// What a shell would say of the worker that failed first.
        code: i32,
        /// Which it was, and how it ended.
        reason: String,
    },
    /// This process was told to end by a signal, and has ended its workers.
    Told(i32),
}

impl Ended {
    /// What the agent's process should return.
    pub fn exit_code(&self) -> i32 {
        match self {
            Ended::Well => 0,
            Ended::Badly { code, .. } => *code,
            Ended::Told(signal) => 128 + signal,
        }
    }
}

/// Runs the program's workers on this machine, together with the agents of the others, to their end.
/// No worker is left when this returns.
///
/// # Errors
/// [`Error::Argument`] for counts that make no sense, [`Error::Rendezvous`] naming the nodes that
/// did not come in time or were lost, [`Error::Store`] when the endpoint cannot be bound or reached,
/// [`Error::Io`] when the program cannot be started.
pub fn run(options: &AgentOptions) -> Result<Ended> {
    check(options)?;
    let connection = Connection::open(options)?;
    let mut workers = Workers::new()?;
    let mailbox: Mailbox<xla_store::Event> = workers.mailbox();
    let membership =
        connection
            .store
            .join(SCOPE, options.node_rank, options.nnodes, move |event| {
                mailbox.send(event)
            })?;
    let errors = TempDir::with_prefix("xlarun-").map_err(|e| Error::io(std::env::temp_dir(), e))?;
    let mut agent = Agent {
        options,
        connection: &connection,
        membership: &membership,
        peers: Peers::new(options.node_rank, options.nnodes),
        workers: &mut workers,
        errors,
    };
    let ended = agent.run();
    match &ended {
        Ok(Ended::Told(signal)) => membership.fail(&signal_name(*signal)),
        Ok(_) => membership.leave(),
        Err(error) => membership.fail(&error.to_string()),
    }
    drop(membership);
    connection.close();
    ended
}

fn check(options: &AgentOptions) -> Result<()> {
    let wrong = |argument, expected: &str, got: usize| {
        Err(Error::argument("xlarun", argument, expected, got))
    };
    if options.nproc_per_node == 0 {
        return wrong("nproc-per-node", "at least 1", 0);
    }
    if options.nnodes == 0 {
        return wrong("nnodes", "at least 1", 0);
    }
    if options.devices_per_process == Some(0) {
        return wrong("devices-per-process", "at least 1", 0);
    }
    if options.node_rank >= options.nnodes {
        return wrong("node-rank", "a number below nnodes", options.node_rank);
    }
    if options.nnodes > 1 && options.endpoint.is_none() {
        return Err(Error::argument(
            "xlarun",
            "rdzv-endpoint",
            "host:port on node 0, since there are several nodes",
            "nothing",
        ));
    }
    Ok(())
}

/// The store that all agents and workers share.
struct Connection {
    store: Store,
    host: Option<Server>,
    /// Where workers find it.
    address: String,
    token: Option<String>,
}

impl Connection {
    fn open(options: &AgentOptions) -> Result<Self> {
        let given = std::env::var("XLA_STORE_TOKEN")
            .ok()
            .filter(|token| !token.is_empty());
        let token = match given {
            // Nobody else needs to know it.
            None if options.nnodes == 1 => Some(token()?),
            given => given,
        };
        let mut host = None;
        let mut address = options.endpoint.clone().unwrap_or_default();
        if options.node_rank == 0 {
            let mut server = ServerOptions::default().token(token.clone());
            if let Some(endpoint) = &options.endpoint {
                server = server.address(resolve(endpoint)?);
            }
            let server = Server::bind(&server)?;
            if options
                .endpoint
                .as_deref()
                .is_none_or(|endpoint| endpoint.ends_with(":0"))
            {
                address = server.address().to_string();
            }
            host = Some(server);
        }
        let reached = host
            .as_ref()
            .map_or(address.clone(), |host| host.address().to_string());
        let connect = ConnectOptions::default()
            .deadline(patience(options)?)
            .token(token.clone());
        Ok(Connection {
            store: Store::connect(&reached, &connect)?,
            host,
            address,
            token,
        })
    }

    /// Leaves the store, the host when all others have.
    fn close(self) {
        drop(self.store);
        if let Some(host) = self.host {
            host.close(PARTING);
        }
    }
}

/// The address of this machine that an endpoint means; IPv4 first, as PyTorch's stores have it.
fn resolve(endpoint: &str) -> Result<SocketAddr> {
    let wrong = |reason: String| Error::Store {
        call: "xlarun",
        address: endpoint.into(),
        reason,
        advice: "; --rdzv-endpoint must be a name or address of node 0, and a port",
    };
    let found: Vec<SocketAddr> = endpoint
        .to_socket_addrs()
        .map_err(|error| wrong(error.to_string()))?
        .collect();
    let four = found.iter().find(|address| address.is_ipv4());
    four.or(found.first())
        .copied()
        .ok_or_else(|| wrong("the name has no address".into()))
}

fn patience(options: &AgentOptions) -> Result<Duration> {
    Ok(options.deadline.unwrap_or(Config::global()?.deadline))
}

/// An agent at work.
struct Agent<'a> {
    options: &'a AgentOptions,
    connection: &'a Connection,
    membership: &'a Membership,
    peers: Peers,
    workers: &'a mut Workers<xla_store::Event>,
    /// Where workers leave word of their errors.
    errors: TempDir,
}

/// What comes after waiting.
enum Flow {
    Go,
    Failed(Setback),
    Told(i32),
}

impl Agent<'_> {
    fn run(&mut self) -> Result<Ended> {
        for attempt in 0.. {
            let flow = match self.meet(attempt)? {
                Flow::Go => {
                    self.start(attempt)?;
                    self.supervise(attempt)?
                }
                other => other,
            };
            match flow {
                Flow::Go => return Ok(Ended::Well),
                Flow::Told(signal) => return Ok(Ended::Told(signal)),
                Flow::Failed(setback) => {
                    tracing::warn!(attempt, reason = %setback.reason, "an attempt failed");
                    if attempt == self.options.max_restarts {
                        return Ok(Ended::Badly {
                            code: setback.code,
                            reason: setback.reason,
                        });
                    }
                }
            }
        }
        Ok(Ended::Well)
    }

    /// Waits until every agent is ready for the attempt.
    fn meet(&mut self, attempt: u64) -> Result<Flow> {
        let patience = patience(self.options)?;
        let until = Instant::now() + patience;
        self.say(Word::Ready {
            attempt,
            workers: self.options.nproc_per_node,
        })?;
        loop {
            let absent = self.peers.absent(attempt);
            if absent.is_empty() {
                return Ok(Flow::Go);
            }
            match self.workers.next(Some(until)) {
                Event::Signal(signal) => return Ok(Flow::Told(signal)),
                Event::Other(event) => self.peers.hear(event)?,
                Event::Ended(..) => {}
                Event::Timeout => {
                    let absent: Vec<String> = absent.iter().map(usize::to_string).collect();
                    return Err(Error::Rendezvous {
                        url: self.connection.address.clone(),
                        reason: format!(
                            "within {patience:?} there came no agent of node {}",
                            absent.join(", ")
                        ),
                        advice: "start xlarun on every node, with the same --nnodes and \
                                 --rdzv-endpoint",
                    });
                }
            }
        }
    }

    fn start(&mut self, attempt: u64) -> Result<()> {
        self.workers.reset();
        let prefixed = Config::global()?.launch_log_prefix;
        for local_rank in 0..self.options.nproc_per_node {
            let place = self.place(local_rank, attempt);
            let prefix = prefixed.then(|| prefix(self.ranks(place.rank)));
            let command = worker::command(self.options, self.connection, &place);
            self.workers.start(command, prefix.as_deref())?;
        }
        Ok(())
    }

    /// Global ranks of the replicas in a worker.
    fn ranks(&self, worker: usize) -> Range<usize> {
        let each = self.options.devices_per_process.unwrap_or(1);
        worker * each..(worker + 1) * each
    }

    fn place(&self, local_rank: usize, attempt: u64) -> Place {
        let first = self.peers.workers_before(self.options.node_rank);
        let rank = first + local_rank;
        Place {
            rank,
            local_rank,
            world_size: self.peers.workers_before(self.options.nnodes),
            attempt,
            error_file: self.errors.path().join(format!("{attempt}-{rank}.json")),
        }
    }

    /// Waits until the attempt is over everywhere, and no worker of it is left here.
    fn supervise(&mut self, attempt: u64) -> Result<Flow> {
        let mut told = None;
        let mut setback: Option<Setback> = None;
        let mut done = false;
        loop {
            if setback.is_none() {
                setback = self.peers.setback(attempt);
            }
            if setback.is_some() && !self.workers.stopping() {
                self.workers.stop();
            }
            if self.workers.running() == 0 {
                match (told, setback.take()) {
                    (Some(signal), _) => return Ok(Flow::Told(signal)),
                    (None, Some(setback)) => return Ok(Flow::Failed(setback)),
                    (None, None) if !done => {
                        done = true;
                        self.say(Word::Done { attempt })?;
                    }
                    (None, None) => {}
                }
                if self.peers.all_done(attempt) {
                    return Ok(Flow::Go);
                }
            }
            match self.workers.next(None) {
                Event::Ended(..) if self.workers.stopping() => {}
                Event::Ended(_, exit) if exit.success() => {}
                Event::Ended(local_rank, exit) => {
                    let own = self.describe(local_rank, attempt, &exit);
                    self.say(Word::Failed {
                        attempt,
                        setback: own.clone(),
                    })?;
                    setback.get_or_insert(own);
                }
                Event::Signal(signal) => {
                    told.get_or_insert(signal);
                    self.workers.pass_on(signal);
                }
                Event::Other(event) => {
                    if let Err(lost) = self.peers.hear(event) {
                        self.end_all();
                        return Err(lost);
                    }
                }
                Event::Timeout => {}
            }
        }
    }

    /// Ends what still runs here, since the others cannot be waited for.
    fn end_all(&mut self) {
        self.workers.stop();
        while self.workers.running() > 0 {
            self.workers.next(None);
        }
    }

    /// A worker's failure, in its own words if it has left any.
    fn describe(&self, local_rank: usize, attempt: u64, exit: &Exit) -> Setback {
        let place = self.place(local_rank, attempt);
        let who = format!("rank {} (node {})", place.rank, self.options.node_rank);
        let reason = match worker::own_words(&place.error_file) {
            Some(words) => format!("{who} ended with exit code {}: {words}", exit.shell_code()),
            None => format!("{who} {exit}"),
        };
        Setback {
            code: exit.shell_code(),
            reason,
        }
    }

    /// Tells all agents, this one included.
    fn say(&mut self, word: Word) -> Result<()> {
        self.membership.send(&crate::process::encode(&word)?)?;
        self.peers.note(self.options.node_rank, word);
        Ok(())
    }
}
