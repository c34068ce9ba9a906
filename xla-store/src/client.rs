//! Connections to a server: one for each request under way, kept for the next.

use std::io;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use xla_core::{Error, Result};

use crate::handshake::{self, Refusal};
use crate::wire::{MAX_FRAME, Request, Response, decode, encode, expect_frame, write_frame};

/// How long the server may take for what it does not wait for.
pub(crate) const PROMPT: Duration = Duration::from_secs(30);

/// How long one attempt to connect may take.
const ATTEMPT: Duration = Duration::from_secs(10);

/// Pause between attempts.
const AGAIN: Duration = Duration::from_millis(50);

/// Most connections kept while nothing is under way.
const MOST_IDLE: usize = 16;

pub(crate) struct Client {
    address: String,
    token: Option<String>,
    idle: Mutex<Vec<TcpStream>>,
}

impl Client {
    /// A client with one connection, tried again until the deadline while nobody listens.
    pub(crate) fn connect(
        address: &str,
        token: Option<String>,
        deadline: Duration,
    ) -> Result<Client> {
        let client = Client {
            address: address.to_owned(),
            token,
            idle: Mutex::default(),
        };
        let end = Instant::now() + deadline;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            match client.dial("connect", left) {
                Ok(stream) => {
                    client.put_back(stream);
                    return Ok(client);
                }
                Err(Attempt::Final(error)) => return Err(error),
                Err(Attempt::Failed(reason)) if Instant::now() + AGAIN >= end => {
                    return Err(Error::Deadline {
                        what: format!("connecting to the store at {address} ({reason})"),
                        after: deadline,
                        advice: "; is the process that hosts it running, and its address right?",
                    });
                }
                Err(Attempt::Failed(_)) => std::thread::sleep(AGAIN),
            }
        }
    }

    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Sends a request and returns the answer, which the server may wait for as long as `wait`.
    pub(crate) fn call(
        &self,
        call: &'static str,
        request: &Request<'_>,
        wait: Duration,
    ) -> Result<Response> {
        let lost = |error: &io::Error| self.lost(call, error);
        let body = encode(request).map_err(|error| lost(&error))?;
        let mut stream = self.stream(call)?;
        let mut answer = || -> io::Result<Vec<u8>> {
            stream.set_read_timeout(Some(wait.saturating_add(PROMPT)))?;
            write_frame(&mut stream, &body)?;
            expect_frame(&mut stream, MAX_FRAME)
        };
        let body = answer().map_err(|error| lost(&error))?;
        let response = decode(&body).map_err(|error| lost(&error))?;
        self.put_back(stream);
        Ok(response)
    }

    /// A connection for one request, or for a member.
    pub(crate) fn stream(&self, call: &'static str) -> Result<TcpStream> {
        let kept = self.lock().pop();
        match kept {
            Some(stream) => Ok(stream),
            None => self.dial(call, ATTEMPT).map_err(|attempt| match attempt {
                Attempt::Final(error) => error,
                Attempt::Failed(reason) => self.gone(call, reason),
            }),
        }
    }

    pub(crate) fn lost(&self, call: &'static str, error: &io::Error) -> Error {
        let reason = match error.kind() {
            io::ErrorKind::UnexpectedEof => "it closed the connection".to_owned(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "it does not answer".to_owned(),
            _ => error.to_string(),
        };
        self.gone(call, reason)
    }

    fn gone(&self, call: &'static str, reason: String) -> Error {
        Error::Store {
            call,
            address: self.address.clone(),
            reason,
            advice: "; the process that hosts it has probably ended: look for its error first",
        }
    }

    fn put_back(&self, stream: TcpStream) {
        let mut idle = self.lock();
        if idle.len() < MOST_IDLE {
            idle.push(stream);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<TcpStream>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One attempt to connect.
    fn dial(&self, call: &'static str, left: Duration) -> Result<TcpStream, Attempt> {
        let mut stream = open(&self.address, left.min(ATTEMPT))
            .map_err(|error| Attempt::Failed(error.to_string()))?;
        match handshake::request(&mut stream, self.token.as_deref()) {
            Ok(()) => Ok(stream),
            Err(Refusal::Token(reason)) => Err(Attempt::Final(Error::StoreToken {
                address: self.address.clone(),
                reason,
            })),
            Err(Refusal::Io(error)) if error.kind() == io::ErrorKind::InvalidData => {
                Err(Attempt::Final(Error::Store {
                    call,
                    address: self.address.clone(),
                    reason: format!("what listens there is none of this version: {error}"),
                    advice: "; check the address and that every process runs the same build",
                }))
            }
            Err(Refusal::Io(error)) => Err(Attempt::Failed(error.to_string())),
        }
    }
}

enum Attempt {
    /// Another attempt would fail too.
    Final(Error),
    /// Another attempt may succeed.
    Failed(String),
}

/// A connection with its options, to the first address of a `host:port` that answers.
pub(crate) fn open(address: &str, timeout: Duration) -> io::Result<TcpStream> {
    let timeout = timeout.max(Duration::from_millis(1));
    let mut last = io::Error::other("the name has no address");
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, timeout) {
            Ok(stream) if is_own(&stream, address) => {
                last = io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => {
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(timeout))?;
                stream.set_write_timeout(Some(PROMPT))?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A loopback connection to a port that nobody listens at can meet itself, when the system gives
/// it that very port as its own.
fn is_own(stream: &TcpStream, peer: SocketAddr) -> bool {
    stream.local_addr().is_ok_and(|own| own == peer)
}
