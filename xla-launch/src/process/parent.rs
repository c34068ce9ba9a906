//! The parent's side: starts the processes, hosts their store, and waits for what becomes of them.

use super::child::Ticket;
use super::fork;
use super::protocol::{FromChild, FromParent, Socket, receive, send};
use super::verdict::{Next, Verdict};
use crate::failure::Failure;
use crate::plan::{Plan, StartMethod};
use crate::supervise::{Event, Mailbox, Workers, cpu_share, prefix, signal_name, token};
use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};
use xla_core::{Config, DeviceKind, Error, Result};
use xla_runtime::context::Topology;
use xla_store::environment::{LAUNCH_CHILD, variable};
use xla_store::{Server, ServerOptions};

/// How long the last reports of processes that have ended may take to be read.
const LAST_REPORTS: Duration = Duration::from_secs(5);

/// What a program sets for the processes that it has started.
#[derive(Debug, Clone, Default)]
pub(crate) struct Settings {
    /// The program to start instead of this one.
    pub(crate) program: Option<OsString>,
    /// The arguments to give it instead of this one's, if it is this one.
    pub(crate) arguments: Option<Vec<OsString>>,
    /// Whether lines begin with the rank.
    pub(crate) prefix: bool,
}

/// What the threads that listen to children have heard.
enum Heard {
    Ended(usize, std::result::Result<Vec<u8>, Failure>),
    /// A child's socket is closed.
    Closed,
    /// Nobody listens for children any more; so many had come.
    Done(usize),
}

/// Starts the plan's processes, as part of this process's launch with that ordinal, and waits until
/// all have ended. Returns every rank's value, encoded, by rank.
///
/// A forked child calls `child` with its place in the launch, and ends with it.
///
/// # Errors
/// [`Error::ReplicaFailed`] for the failure that came first; [`Error::System`], [`Error::Io`] or
/// [`Error::Store`] where something cannot be started.
pub(crate) fn run(
    plan: &Plan,
    launch: usize,
    history: FromParent,
    settings: &Settings,
    child: &dyn Fn(Ticket, Topology),
) -> Result<Vec<Vec<u8>>> {
    let depth = Ticket::next_depth()?;
    let token = token()?;
    let server = Server::bind(&ServerOptions::default().token(Some(token.clone())))?;
    let socket = Arc::new(Socket::new()?);
    let mut workers = Workers::new()?;
    listen(Arc::clone(&socket), history, workers.mailbox())?;
    let ticket = Ticket {
        parent: std::process::id(),
        launch,
        depth,
        socket: socket.path().to_owned(),
    };
    for process_index in 0..plan.topology.processes {
        let topology = Topology {
            process_index,
            ..plan.topology
        };
        let variables = variables(topology, &ticket, &server, &token)?;
        let prefix = settings.prefix.then(|| prefix(topology.local_ranks()));
        if plan.start == Some(StartMethod::Fork) {
            fork::start(&mut workers, &variables, prefix.as_deref(), &|| {
                child(ticket.clone(), topology)
            })?;
        } else {
            let mut command = program(settings)?;
            command.envs(variables.iter().map(|(name, value)| (name, value)));
            workers.start(command, prefix.as_deref())?;
        }
    }
    supervise(workers, &socket, Verdict::new(plan.topology))
}

/// The program that a spawned process runs.
fn program(settings: &Settings) -> Result<Command> {
    let own = || {
        std::env::current_exe().map_err(|error| Error::system("find this program's file", error))
    };
    let mut command = match &settings.program {
        Some(program) => Command::new(program),
        None => Command::new(own()?),
    };
    match (&settings.arguments, &settings.program) {
        (Some(arguments), _) => command.args(arguments),
        (None, Some(_)) => &mut command,
        (None, None) => command.args(std::env::args_os().skip(1)),
    };
    Ok(command)
}

/// Waits for all processes, and stops them when one fails or when this process is to end.
fn supervise(
    mut workers: Workers<Heard>,
    socket: &Socket,
    mut verdict: Verdict,
) -> Result<Vec<Vec<u8>>> {
    let mut told_to_end = None;
    // What is waited for no longer than that, and when that is over.
    let mut waiting: Option<(Duration, Instant)> = None;
    let mut closed = 0;
    while workers.running() > 0 {
        let next = match workers.next(waiting.map(|(_, until)| until)) {
            // Whoever was told to end has not failed.
            Event::Ended(..) if workers.stopping() => continue,
            Event::Ended(process, exit) => verdict.ended(process, exit),
            Event::Other(Heard::Ended(rank, result)) => verdict.reported(rank, result),
            Event::Other(Heard::Closed) => {
                closed += 1;
                continue;
            }
            Event::Other(Heard::Done(_)) => continue,
            Event::Signal(signal) => {
                tracing::info!("{}: stopping all processes", signal_name(signal));
                told_to_end.get_or_insert(signal);
                workers.pass_on(signal);
                continue;
            }
            Event::Timeout => Next::Stop,
        };
        waiting = match next {
            Next::WaitFor(time) => match waiting {
                Some((same, until)) if same == time => Some((same, until)),
                _ => Some((time, Instant::now() + time)),
            },
            Next::Wait => None,
            Next::Stop => {
                if !workers.stopping() {
                    workers.stop();
                }
                None
            }
        };
    }
    if let Some(signal) = told_to_end {
        drop(workers);
        std::process::exit(128 + signal);
    }
    // The last words of processes that are gone may still be on their way; no others follow.
    socket.close();
    let end = Instant::now() + LAST_REPORTS;
    let mut opened = None;
    while opened.is_none_or(|opened| closed < opened) {
        match workers.next(Some(end)) {
            Event::Other(Heard::Ended(rank, result)) => {
                verdict.reported(rank, result);
            }
            Event::Other(Heard::Closed) => closed += 1,
            Event::Other(Heard::Done(count)) => opened = Some(count),
            Event::Timeout => break,
            Event::Signal(signal) => std::process::exit(128 + signal),
            Event::Ended(..) => {}
        }
    }
    verdict.pronounce()
}

/// Listens to every child, each on a thread, until the socket is closed.
fn listen(socket: Arc<Socket>, history: FromParent, mailbox: Mailbox<Heard>) -> Result<()> {
    let history = Arc::new(history);
    let named = |name: &str| thread::Builder::new().name(name.into());
    named("children")
        .spawn(move || {
            let mut count = 0;
            while let Some(stream) = socket.accept() {
                let (history, own) = (Arc::clone(&history), mailbox.clone());
                if named("child")
                    .spawn(move || hear(&stream, &history, &own))
                    .is_ok()
                {
                    count += 1;
                }
            }
            mailbox.send(Heard::Done(count));
        })
        .map(drop)
        .map_err(|error| Error::system("start a thread", error))
}

/// Passes on what one child says.
fn hear(stream: &UnixStream, history: &FromParent, mailbox: &Mailbox<Heard>) {
    if let Ok(Some(FromChild::Here(_))) = receive(stream)
        && send(stream, history).is_ok()
    {
        while let Ok(Some(FromChild::Ended(rank, result))) = receive(stream) {
            mailbox.send(Heard::Ended(rank, result));
        }
    }
    mailbox.send(Heard::Closed);
}

/// What a process of the launch finds in its environment.
fn variables(
    topology: Topology,
    ticket: &Ticket,
    server: &Server,
    token: &str,
) -> Result<Vec<(&'static str, String)>> {
    let config = Config::global()?;
    let address = server.address();
    let (rank, size) = (topology.process_index, topology.processes);
    let mut variables = vec![
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("WORLD_SIZE", size.to_string()),
        ("LOCAL_WORLD_SIZE", size.to_string()),
        ("MASTER_ADDR", address.ip().to_string()),
        ("MASTER_PORT", address.port().to_string()),
        ("XLA_STORE_ADDR", address.to_string()),
        ("XLA_STORE_TOKEN", token.to_owned()),
        ("XLA_LAUNCH_DEVICES", topology.replicas.to_string()),
        (LAUNCH_CHILD, ticket.to_string()),
    ];
    if config.device == DeviceKind::Cpu {
        variables.push(("CPU_NUM_DEVICES", topology.replicas.to_string()));
        variables.extend(cpu_share(variable, size, topology.replicas));
    }
    Ok(variables)
}
