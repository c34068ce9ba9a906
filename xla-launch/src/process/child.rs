//! The child's side: whose child this process is, and how it tells its parent what became of it.

use super::protocol::{FromChild, FromParent, Recorded, receive, send};
use crate::failure::Outcome;
use crate::plan::Inherited;
use std::fmt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Mutex, OnceLock, PoisonError};
use xla_core::{Config, Error, Result};
use xla_runtime::context::Topology;
use xla_store::environment::{LAUNCH_CHILD, external, variable};

/// As many launches may be inside each other: a worker command that makes the launch anew instead of
/// becoming part of it would go on for ever.
const DEEPEST: usize = 3;

/// What the variable says: `parent:launch:depth:socket`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Ticket {
    pub(crate) parent: u32,
    pub(crate) launch: usize,
    pub(crate) depth: usize,
    pub(crate) socket: PathBuf,
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Ticket {
            parent,
            launch,
            depth,
            socket,
        } = self;
        write!(f, "{parent}:{launch}:{depth}:{}", socket.display())
    }
}

impl Ticket {
    fn parse(text: &str) -> Result<Ticket> {
        let mut parts = text.splitn(4, ':');
        let mut number = || parts.next().and_then(|part| part.parse::<usize>().ok());
        let numbers = (number(), number(), number());
        match (numbers, parts.next()) {
            ((Some(parent), Some(launch), Some(depth)), Some(socket)) => Ok(Ticket {
                parent: u32::try_from(parent).unwrap_or_default(),
                launch,
                depth,
                socket: socket.into(),
            }),
            _ => Err(Error::Config {
                name: LAUNCH_CHILD,
                expected: "to be unset, or as a launch has set it".into(),
                got: text.into(),
            }),
        }
    }

    /// The one that this process inherited, its own or not.
    fn found() -> Result<Option<Ticket>> {
        match std::env::var(LAUNCH_CHILD) {
            Ok(text) if !text.is_empty() => Ticket::parse(&text).map(Some),
            _ => Ok(None),
        }
    }

    fn is_own(&self) -> bool {
        self.parent == std::os::unix::process::parent_id()
    }

    /// How deep a launch of this process would be.
    ///
    /// # Errors
    /// [`Error::Launch`] when launches start each other without end.
    pub(crate) fn next_depth() -> Result<usize> {
        match Ticket::found()?.map_or(0, |ticket| ticket.depth + 1) {
            depth if depth < DEEPEST => Ok(depth),
            depth => Err(Error::Launch {
                reason: format!("this would be launch {depth} inside another"),
                advice: "a worker command must become the program (exec), so that it is a child of \
                         the launch and not a launch of its own",
            }),
        }
    }
}

/// This process as the child of a launch.
#[derive(Debug)]
pub(crate) struct Child {
    /// The launch that it is part of, counted as its parent counts.
    pub(crate) launch: usize,
    pub(crate) inherited: Inherited,
    parent: UnixStream,
    /// What the parent's earlier launches returned; each is taken once.
    history: Mutex<FromParent>,
}

impl Child {
    /// This process as a child, if it is one.
    ///
    /// # Errors
    /// [`Error::Config`] for variables that no launch has set, [`Error::Io`] when the parent does not
    /// answer; the same at every call.
    pub(crate) fn of_process() -> Result<Option<&'static Child>> {
        static CHILD: OnceLock<Result<Option<Child>>> = OnceLock::new();
        CHILD
            .get_or_init(|| match Ticket::found()? {
                Some(ticket) if ticket.is_own() => {
                    let topology = topology(&ticket)?;
                    Child::meet(&ticket, topology).map(Some)
                }
                _ => Ok(None),
            })
            .as_ref()
            .map(Option::as_ref)
            .map_err(Clone::clone)
    }

    /// This process as the forked child that it has just become.
    ///
    /// # Errors
    /// [`Error::Io`] when the parent does not answer.
    pub(crate) fn forked(ticket: Ticket, topology: Topology) -> Result<Child> {
        Child::meet(&ticket, topology)
    }

    /// Introduces this process to its parent.
    fn meet(ticket: &Ticket, topology: Topology) -> Result<Child> {
        let failed = |error| Error::io(&ticket.socket, error);
        let stream = UnixStream::connect(&ticket.socket).map_err(failed)?;
        send(&stream, &FromChild::Here(topology.process_index))?;
        let history: FromParent = receive(&stream)?
            .ok_or_else(|| failed(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)))?;
        Ok(Child {
            launch: ticket.launch,
            inherited: Inherited {
                parent: ticket.parent,
                topology,
            },
            parent: stream,
            history: Mutex::new(history),
        })
    }

    /// What the parent's launch with this ordinal returned.
    pub(crate) fn recorded(&self, launch: usize) -> Option<Recorded> {
        let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
        history.get_mut(launch)?.take()
    }

    /// Tells the parent how a replica ended. A parent that is gone has no use for it: this process
    /// then ends too.
    pub(crate) fn report(&self, outcome: &Outcome<Vec<u8>>) {
        static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
        let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = send(&self.parent, &FromChild::of(outcome)) {
            tracing::warn!(%error, "the launching process is gone");
        }
    }
}

/// The replicas that the variables beside the ticket give to this process.
fn topology(ticket: &Ticket) -> Result<Topology> {
    match external(&variable)? {
        Some(external) => Ok(Topology {
            processes: external.world_size,
            process_index: external.rank,
            replicas: Config::global()?.launch_devices.unwrap_or(1),
        }),
        None => Err(Error::Config {
            name: LAUNCH_CHILD,
            expected: "RANK and WORLD_SIZE beside it".into(),
            got: ticket.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ticket_is_read_as_it_was_written() {
        let ticket = Ticket {
            parent: 17,
            launch: 2,
            depth: 0,
            socket: "/tmp/a:b/socket".into(),
        };
        assert_eq!(Ticket::parse(&ticket.to_string()).unwrap(), ticket);
        for wrong in ["1", "1:2:3", "x:2:3:/tmp", "1:-2:3:/tmp"] {
            assert!(
                matches!(Ticket::parse(wrong), Err(Error::Config { .. })),
                "{wrong}"
            );
        }
    }
}
