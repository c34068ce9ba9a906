//! The store as a server: a thread for each connection, and one that watches over them.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use xla_core::{Config, Error, Result};

use crate::handshake::{self, Refusal};
use crate::session;
use crate::table::check;
use crate::watch::{LastSeen, Punctuality, interval};
use crate::wire::{MAX_FRAME, Request, Response, decode, encode, read_frame, write_frame};
use crate::{Node, environment};

/// How long a peer may take for its handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long a client may take to read its answer.
const READING: Duration = Duration::from_secs(60);

/// Most connections at once; more are closed as they come.
const MAX_CONNECTIONS: usize = 8 << 10;

/// Connections need little: the deepest call is a frame's decoding.
const STACK: usize = 256 << 10;

/// How a [`Server`] is set up.
#[derive(Clone)]
#[non_exhaustive]
pub struct ServerOptions {
    /// Where to listen; port 0 takes a free one. The loopback address unless told otherwise, so
    /// that only this machine reaches it.
    pub address: SocketAddr,
    /// What a client must know; `None` lets everyone in who reaches the address.
    pub token: Option<String>,
    /// How long a member may be silent before it is taken for gone; `None` for
    /// `XLA_HEARTBEAT_SECONDS`, or 5 s.
    pub heartbeat: Option<Duration>,
}

impl Default for ServerOptions {
    /// A free port of the loopback address, and the token in `XLA_STORE_TOKEN`.
    fn default() -> Self {
        ServerOptions {
            address: (Ipv4Addr::LOCALHOST, 0).into(),
            token: environment::token(),
            heartbeat: None,
        }
    }
}

impl ServerOptions {
    /// These options with another address.
    #[must_use]
    pub fn address(mut self, address: SocketAddr) -> Self {
        self.address = address;
        self
    }

    /// These options with another token.
    #[must_use]
    pub fn token(mut self, token: Option<String>) -> Self {
        self.token = token;
        self
    }

    /// These options with another [`heartbeat`](Self::heartbeat).
    #[must_use]
    pub fn heartbeat(mut self, heartbeat: Duration) -> Self {
        self.heartbeat = Some(heartbeat);
        self
    }
}

impl fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions")
            .field("address", &self.address)
            .field("token", &self.token.as_ref().map(|_| "***"))
            .field("heartbeat", &self.heartbeat)
            .finish()
    }
}

/// A store that other processes reach over TCP; it stops when dropped.
///
/// Whoever hosts it should outlive everyone who uses it: a launcher, or process 0, which then
/// calls [`close`](Server::close) instead of dropping it.
///
/// ```
/// use xla_store::{ConnectOptions, Server, ServerOptions, Store};
///
/// let server = Server::bind(&ServerOptions::default())?;
/// let store = Store::connect(&server.address().to_string(), &ConnectOptions::default())?;
/// assert_eq!(store.add("arrived", 1)?, 1);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads of a server have in common.
pub(crate) struct Shared {
    pub(crate) node: Node,
    pub(crate) heartbeat: Duration,
    address: SocketAddr,
    token: Option<String>,
    stopping: AtomicBool,
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("address", &self.address)
            .finish_non_exhaustive()
    }
}

/// One peer.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    pub(crate) seen: LastSeen,
    /// Why and whether the connection is watched.
    watched: Mutex<Watched>,
}

enum Watched {
    /// The handshake must be over by then.
    Until(Instant),
    /// A client of the table may be silent.
    No,
    /// A member must give signs of life.
    Member { scope: String, member: usize },
}

impl Server {
    /// Starts a server.
    ///
    /// # Errors
    /// [`Error::Store`] when the address cannot be bound, for instance because another process
    /// listens there; [`Error::Config`] for a bad `XLA_HEARTBEAT_SECONDS`.
    pub fn bind(options: &ServerOptions) -> Result<Server> {
        let failed = |error: &io::Error| Error::Store {
            call: "Server::bind",
            address: options.address.to_string(),
            reason: error.to_string(),
            advice: match error.kind() {
                io::ErrorKind::AddrInUse => "; choose another port, or 0 for a free one",
                _ => "",
            },
        };
        let heartbeat = match options.heartbeat {
            Some(heartbeat) => heartbeat,
            None => Config::global()?.heartbeat,
        };
        let listener = TcpListener::bind(options.address).map_err(|error| failed(&error))?;
        let shared = Arc::new(Shared {
            node: Node::default(),
            heartbeat,
            address: listener.local_addr().map_err(|error| failed(&error))?,
            token: options.token.clone(),
            stopping: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let mut server = Server {
            shared: Arc::clone(&shared),
            threads: Vec::new(),
        };
        let monitored = Arc::clone(&shared);
        let monitor = Builder::new()
            .name("xla-store-watch".into())
            .spawn(move || monitored.monitor());
        server
            .threads
            .push(monitor.map_err(|error| failed(&error))?);
        let accept = Builder::new()
            .name("xla-store-accept".into())
            .spawn(move || shared.accept(&listener));
        server.threads.push(accept.map_err(|error| failed(&error))?);
        Ok(server)
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.shared.address
    }

    /// Waits until no other process is connected, at most as long as `patience`, then stops.
    ///
    /// For a host that is itself one of the processes: the others may still need the store when
    /// this one is done.
    pub fn close(self, patience: Duration) {
        let end = Instant::now() + patience;
        while !self.shared.connections().is_empty() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        self.shared.node.hub.stop();
        for connection in self.shared.connections().values() {
            let _ = connection.stream.shutdown(Shutdown::Both);
        }
        // A connection is what wakes the thread that accepts them.
        let ip = match self.shared.address.ip() {
            ip if !ip.is_unspecified() => ip,
            ip if ip.is_ipv4() => Ipv4Addr::LOCALHOST.into(),
            _ => Ipv6Addr::LOCALHOST.into(),
        };
        let own = SocketAddr::new(ip, self.shared.address.port());
        let woken = TcpStream::connect_timeout(&own, Duration::from_secs(1)).is_ok();
        for thread in self.threads.drain(..) {
            if woken {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    fn connections(&self) -> MutexGuard<'_, HashMap<u64, Arc<Connection>>> {
        self.connections
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        while !self.stopping() {
            let Ok((stream, peer)) = listener.accept() else {
                // Out of file descriptors, say: some connection will end.
                std::thread::sleep(Duration::from_millis(50));
                continue;
            };
            let connection = Arc::new(Connection {
                stream,
                seen: LastSeen::now(),
                watched: Mutex::new(Watched::Until(Instant::now() + HANDSHAKE)),
            });
            let id = NEXT.fetch_add(1, Ordering::Relaxed);
            {
                let mut connections = self.connections();
                if connections.len() >= MAX_CONNECTIONS || self.stopping() {
                    continue;
                }
                connections.insert(id, Arc::clone(&connection));
            }
            let shared = Arc::clone(self);
            let served = Builder::new()
                .name("xla-store-serve".into())
                .stack_size(STACK)
                .spawn(move || {
                    if let Err(error) = shared.serve(&connection) {
                        tracing::debug!("store: connection from {peer} ended: {error}");
                    }
                    let _ = connection.stream.shutdown(Shutdown::Both);
                    shared.connections().remove(&id);
                });
            if served.is_err() {
                self.connections().remove(&id);
            }
        }
    }

    fn serve(&self, connection: &Connection) -> io::Result<()> {
        let mut stream = &connection.stream;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(READING))?;
        match handshake::accept(&mut stream, self.token.as_deref()) {
            Ok(()) => connection.watch(Watched::No),
            Err(Refusal::Token(reason)) => {
                tracing::warn!("store: a client was refused: its XLA_STORE_TOKEN: {reason}");
                return Ok(());
            }
            Err(Refusal::Io(error)) => return Err(error),
        }
        let gone = || self.stopping() || connection.is_closed();
        while let Some(body) = read_frame(&mut stream, MAX_FRAME)? {
            let request = decode(&body)?;
            if let Request::Join {
                scope,
                member,
                size,
            } = request
            {
                return self.join(connection, scope, member as usize, size as usize);
            }
            let response = self.node.table.answer(&request, gone);
            write_frame(&mut stream, &encode(&response)?)?;
        }
        Ok(())
    }

    fn join(
        &self,
        connection: &Connection,
        scope: &str,
        member: usize,
        size: usize,
    ) -> io::Result<()> {
        let mut stream = &connection.stream;
        let request = Request::Join {
            scope,
            member: 0,
            size: 0,
        };
        let joined = check(&request).and_then(|()| self.node.hub.join(scope, member, size));
        let outbox = match joined {
            Ok(outbox) => outbox,
            Err(reason) => return write_frame(&mut stream, &encode(&Response::Refused(reason))?),
        };
        connection.seen.renew();
        connection.watch(Watched::Member {
            scope: scope.to_owned(),
            member,
        });
        session::run(self, connection, &outbox, scope, member)
    }

    /// Ends connections that give no sign of life.
    fn monitor(&self) {
        let period =
            (self.heartbeat / 20).clamp(Duration::from_millis(5), Duration::from_millis(100));
        let mut punctuality = Punctuality::new(period);
        while !self.stopping() {
            std::thread::sleep(period);
            let connections: Vec<_> = self.connections().values().cloned().collect();
            // Measured before asking for a pause: one that begins in between counts next time.
            let silences: Vec<_> = connections.iter().map(|c| c.seen.silence()).collect();
            let paused = punctuality.was_paused();
            for (connection, silence) in connections.iter().zip(silences) {
                if paused {
                    connection.seen.renew();
                } else {
                    self.look_at(connection, silence);
                }
            }
        }
    }

    fn look_at(&self, connection: &Connection, silence: Duration) {
        let watched = connection.watched();
        match &*watched {
            Watched::No => return,
            Watched::Until(end) if Instant::now() < *end => return,
            Watched::Until(_) => {
                let _ = connection.stream.shutdown(Shutdown::Both);
            }
            Watched::Member { .. } if silence < self.heartbeat => return,
            Watched::Member { scope, member } => {
                let reason = format!(
                    "no sign of life for {:?}: the process is stopped, or its machine is gone",
                    self.heartbeat
                );
                self.node.fail(scope, *member, reason);
            }
        }
        drop(watched);
        connection.watch(Watched::No);
        // What waits for the peer is not lost: the system sends it if the peer comes back.
        let _ = connection.stream.shutdown(Shutdown::Read);
    }

    /// How often members are sent a sign of life.
    pub(crate) fn interval(&self) -> Duration {
        interval(self.heartbeat)
    }
}

impl Connection {
    fn watched(&self) -> MutexGuard<'_, Watched> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, watched: Watched) {
        *self.watched() = watched;
    }

    /// Whether the peer has closed its end, asked without waiting. Only between frames.
    fn is_closed(&self) -> bool {
        let waited = self
            .stream
            .set_read_timeout(Some(Duration::from_millis(1)))
            .and_then(|()| self.stream.peek(&mut [0]));
        let restored = self.stream.set_read_timeout(None);
        restored.is_err()
            || match waited {
                Ok(n) => n == 0,
                Err(error) => !matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock
                        | io::ErrorKind::TimedOut
                        | io::ErrorKind::Interrupted
                ),
            }
    }
}
