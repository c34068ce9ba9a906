//! A process's own side of a control channel.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, ThreadId};
use std::time::{Duration, Instant};

use xla_core::{Error, Result};

use crate::Node;
use crate::client::Client;
use crate::hub::{Ending, ITEM, MAX_BACKLOG, Notice, Outbox};
use crate::queue::{Popped, Queue, Rejected};
use crate::watch::{LastSeen, Punctuality, Watched, interval};
use crate::wire::{
    Down, MAX_FRAME, MAX_VALUE, Request, Response, Up, decode, encode, expect_frame, invalid,
    read_frame, write_frame,
};

/// How long [`Membership::fail`] and [`Membership::leave`] wait for what was sent before to reach
/// the store.
const FLUSH: Duration = Duration::from_secs(2);

/// Most bytes of a reason; longer ones are cut.
const MAX_REASON: usize = 64 << 10;

/// What happens to the other members of a scope.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A member sent something.
    Message {
        /// Which one.
        from: usize,
        /// What.
        bytes: Vec<u8>,
    },
    /// A member said that it failed, or its process is gone; the last event of that member.
    Failed {
        /// Which one.
        member: usize,
        /// Its own words, or how its end was noticed.
        reason: String,
    },
    /// A member left in order; the last event of that member.
    Left {
        /// Which one.
        member: usize,
    },
    /// The store is gone, or has taken this process for failed: nothing more will come.
    Lost {
        /// How that was noticed.
        reason: String,
    },
}

/// A process's place in a scope, from [`Store::join`](crate::Store::join).
///
/// Whoever is done [`leave`](Membership::leave)s. A membership that is dropped without, as when its
/// process ends early, counts as failed.
#[derive(Debug)]
pub struct Membership {
    link: Link,
    life: Arc<Life>,
}

enum Link {
    Local {
        node: Arc<Node>,
        scope: String,
        member: usize,
    },
    Remote {
        address: String,
        stream: Arc<TcpStream>,
        queue: Arc<Queue<Message>>,
    },
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Link::Local { scope, member, .. } => write!(f, "{member} of {scope:?}"),
            Link::Remote { address, .. } => f.write_str(address),
        }
    }
}

/// What waits to be sent.
enum Message {
    Bytes(Vec<u8>),
    Fail(String),
    Leave,
}

/// Where a membership stands.
#[derive(Debug, Default)]
struct Life {
    /// Set by this process: there is nothing more to tell it.
    ended: AtomicBool,
    state: Mutex<LifeState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct LifeState {
    /// Why the channel was given up, by whoever noticed first.
    lost: Option<String>,
    /// The thread that calls the handler; `None` when it has ended.
    listener: Option<ThreadId>,
    over: bool,
}

impl Life {
    fn lock(&self) -> MutexGuard<'_, LifeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, reason: String) {
        self.lock().lost.get_or_insert(reason);
    }

    /// Notes that no event will come any more.
    fn finish(&self) {
        self.lock().over = true;
        self.changed.notify_all();
    }

    /// Waits until no event will come any more. Not on the handler's own thread, which would wait
    /// for itself.
    fn await_end(&self, patience: Duration) {
        let end = Instant::now() + patience;
        let mut state = self.lock();
        while !state.over && state.listener != Some(std::thread::current().id()) {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            state = match self.changed.wait_timeout(state, left) {
                Ok((state, _)) => state,
                Err(poisoned) => poisoned.into_inner().0,
            };
        }
    }
}

impl Membership {
    /// Sends a message to every other member, those that have not joined yet included.
    ///
    /// Returns at once: a thread sends. Where more than 128 MiB wait to be sent, this member is
    /// failed instead.
    ///
    /// # Errors
    /// [`Error::Store`] when the message is longer than 64 MiB or the membership is over.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        if bytes.len() > MAX_VALUE {
            return Err(self.error(format!(
                "a message of {} bytes; at most {MAX_VALUE}",
                bytes.len()
            )));
        }
        let over = || {
            let lost = self.life.lock().lost.clone();
            self.error(lost.unwrap_or_else(|| "this member has left or failed".into()))
        };
        if self.life.ended.load(Ordering::Acquire) {
            return Err(over());
        }
        match &self.link {
            Link::Local {
                node,
                scope,
                member,
            } => node.hub.send(scope, *member, bytes).map_err(|reason| {
                node.fail(scope, *member, reason.clone());
                self.error(reason)
            }),
            Link::Remote { queue, .. } => {
                match queue.push(ITEM + bytes.len(), Message::Bytes(bytes.to_vec())) {
                    Ok(()) => Ok(()),
                    Err(Rejected::Closed) => Err(over()),
                    Err(Rejected::Full) => {
                        let reason = format!("more than {MAX_BACKLOG} bytes waited to be sent");
                        queue.finish(Message::Fail(reason.clone()));
                        self.life.lose(reason.clone());
                        Err(self.error(reason))
                    }
                }
            }
        }
    }

    /// Ends the membership and tells the others that this member failed, in its own words.
    ///
    /// Waits up to 2 s for the store to have taken that in, so that the process may end next.
    pub fn fail(&self, reason: &str) {
        let reason = reason.get(..floor(reason, MAX_REASON)).unwrap_or_default();
        self.end(Message::Fail(reason.into()), Ending::Failed(reason.into()));
    }

    /// Ends the membership in order. Waits as [`fail`](Membership::fail) does.
    pub fn leave(&self) {
        self.end(Message::Leave, Ending::Left);
    }

    fn end(&self, last: Message, ending: Ending) {
        if self.life.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        match &self.link {
            Link::Local {
                node,
                scope,
                member,
            } => node.hub.end(scope, *member, ending),
            Link::Remote { queue, .. } => {
                // Full: the channel is beyond use, and closing it says so.
                if queue.push(0, last).is_ok() {
                    queue.close();
                    self.life.await_end(FLUSH);
                }
            }
        }
    }

    fn error(&self, reason: String) -> Error {
        Error::Store {
            call: "Membership::send",
            address: match &self.link {
                Link::Local { .. } => "this process".into(),
                Link::Remote { address, .. } => address.clone(),
            },
            reason,
            advice: "",
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let first = !self.life.ended.swap(true, Ordering::AcqRel);
        match &self.link {
            Link::Local {
                node,
                scope,
                member,
            } if first => node.fail(scope, *member, "it ended without leaving".into()),
            Link::Local { .. } => {}
            Link::Remote { stream, queue, .. } => {
                queue.close();
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }
}

/// The longest prefix of at most `most` bytes that ends between characters.
fn floor(text: &str, most: usize) -> usize {
    (0..=most.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0)
}

/// Calls the handler; one that panics ends the membership, not the thread.
fn call(on_event: &impl Fn(Event), event: Event) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(|| on_event(event)))
        .map_err(|_| "its handler of events panicked".to_owned())
}

/// A member of a scope of this process's own store.
pub(crate) fn local(
    node: Arc<Node>,
    outbox: Arc<Outbox>,
    scope: String,
    member: usize,
    on_event: impl Fn(Event) + Send + Sync + 'static,
) -> Result<Membership> {
    let life = Arc::new(Life::default());
    let membership = Membership {
        link: Link::Local {
            node: Arc::clone(&node),
            scope: scope.clone(),
            member,
        },
        life: Arc::clone(&life),
    };
    let listener = Builder::new()
        .name("xla-store-events".into())
        .spawn(move || {
            life.lock().listener = Some(std::thread::current().id());
            loop {
                let event = match outbox.pop(Duration::from_secs(3600)) {
                    Popped::Item(notice) => event(notice),
                    Popped::Nothing => continue,
                    Popped::Closed => break,
                };
                if life.ended.load(Ordering::Acquire) {
                    break;
                }
                if let Event::Lost { reason } = &event {
                    life.lose(reason.clone());
                }
                if let Err(reason) = call(&on_event, event) {
                    node.fail(&scope, member, reason);
                }
            }
            life.finish();
        });
    match listener {
        Ok(_) => Ok(membership),
        Err(error) => Err(membership.error(error.to_string())),
    }
}

fn event(notice: Notice) -> Event {
    match notice {
        Notice::Message { from, bytes } => Event::Message {
            from,
            bytes: bytes.to_vec(),
        },
        Notice::Failed { member, reason } => Event::Failed {
            member,
            reason: reason.to_string(),
        },
        Notice::Left { member } => Event::Left { member },
        Notice::Expelled { reason } => Event::Lost {
            reason: expelled(&reason),
        },
    }
}

fn expelled(reason: &str) -> String {
    format!("the store takes this process for failed: {reason}")
}

/// A member of a scope of a server.
pub(crate) fn remote(
    client: &Client,
    request: &Request<'_>,
    heartbeat: Duration,
    on_event: impl Fn(Event) + Send + Sync + 'static,
) -> Result<Membership> {
    const CALL: &str = "Store::join";
    let stream = client.stream(CALL)?;
    let lost = |error: io::Error| client.lost(CALL, &error);
    let joining = || -> io::Result<Response> {
        let mut stream = &stream;
        write_frame(&mut stream, &encode(request)?)?;
        let body = expect_frame(&mut stream, MAX_FRAME)?;
        let response = decode(&body)?;
        stream.set_read_timeout(None)?;
        stream.set_write_timeout(Some(heartbeat))?;
        Ok(response)
    };
    match joining().map_err(lost)? {
        Response::Done => {}
        Response::Refused(reason) => {
            return Err(Error::Store {
                call: CALL,
                address: client.address().into(),
                reason,
                advice: "",
            });
        }
        _ => return Err(lost(invalid("an answer of another kind"))),
    }
    let channel = Arc::new(Channel {
        stream: Arc::new(stream),
        queue: Arc::new(Queue::new(MAX_BACKLOG)),
        life: Arc::default(),
        seen: LastSeen::now(),
        handling: AtomicBool::new(false),
        heartbeat,
    });
    // Dropped on an early return, which closes the connection.
    let membership = Membership {
        link: Link::Remote {
            address: client.address().into(),
            stream: Arc::clone(&channel.stream),
            queue: Arc::clone(&channel.queue),
        },
        life: Arc::clone(&channel.life),
    };
    let speaking = Arc::clone(&channel);
    let spawn = |name: &str, run: Box<dyn FnOnce() + Send>| {
        Builder::new().name(name.into()).spawn(run).map_err(lost)
    };
    spawn("xla-store-beat", Box::new(move || speaking.speak()))?;
    spawn(
        "xla-store-events",
        Box::new(move || channel.listen(&on_event)),
    )?;
    Ok(membership)
}

/// What the two threads of a member have in common.
struct Channel {
    stream: Arc<TcpStream>,
    queue: Arc<Queue<Message>>,
    life: Arc<Life>,
    /// When the server was last heard of.
    seen: LastSeen,
    /// Whether the handler runs: then nobody reads, and silence means nothing.
    handling: AtomicBool,
    heartbeat: Duration,
}

impl Channel {
    /// Sends what waits, and signs of life in between; and looks for the server's. User code never
    /// runs on this thread.
    fn speak(&self) {
        let period = interval(self.heartbeat);
        let mut punctuality = Punctuality::new(period);
        let mut spoken = || -> Result<(), String> {
            loop {
                let message = match self.queue.pop(period) {
                    Popped::Item(message) => Some(message),
                    Popped::Nothing => None,
                    Popped::Closed => return Ok(()),
                };
                let sent = encode(&up(message.as_ref()))
                    .and_then(|body| write_frame(&mut &*self.stream, &body));
                sent.map_err(|error| format!("the connection broke: {error}"))?;
                if punctuality.was_paused() || self.handling.load(Ordering::Acquire) {
                    self.seen.renew();
                }
                if self.seen.silence() >= self.heartbeat {
                    return Err(format!(
                        "no sign of life for {:?}: the process that hosts it is stopped, or its machine is gone",
                        self.heartbeat
                    ));
                }
            }
        };
        let ended = match spoken() {
            // The server closes its side when it has read everything.
            Ok(()) => Shutdown::Write,
            Err(reason) => {
                self.life.lose(reason);
                self.queue.close();
                Shutdown::Both
            }
        };
        let _ = self.stream.shutdown(ended);
    }

    /// Calls the handler with what comes, until nothing more will.
    fn listen(&self, on_event: &impl Fn(Event)) {
        self.life.lock().listener = Some(std::thread::current().id());
        let mut stream = Watched {
            reader: &*self.stream,
            seen: &self.seen,
        };
        let reason = loop {
            let body = match read_frame(&mut stream, MAX_FRAME) {
                Ok(Some(body)) => body,
                Ok(None) => break "it closed the connection".into(),
                Err(error) => break format!("the connection broke: {error}"),
            };
            let event = match decode(&body) {
                Ok(Down::Heartbeat) => continue,
                Ok(Down::Message { from, bytes }) => Event::Message {
                    from: from as usize,
                    bytes: bytes.to_vec(),
                },
                Ok(Down::Failed { member, reason }) => Event::Failed {
                    member: member as usize,
                    reason: reason.into(),
                },
                Ok(Down::Left { member }) => Event::Left {
                    member: member as usize,
                },
                Ok(Down::Expelled { reason }) => break expelled(reason),
                Err(error) => break format!("it sent what has no meaning: {error}"),
            };
            if let Err(reason) = self.handle(on_event, event) {
                self.queue.finish(Message::Fail(reason.clone()));
                break reason;
            }
        };
        self.life.lose(reason);
        self.queue.close();
        if !self.life.ended.load(Ordering::Acquire) {
            let reason = self.life.lock().lost.clone().unwrap_or_default();
            let _ = self.handle(on_event, Event::Lost { reason });
        }
        self.life.finish();
    }

    fn handle(&self, on_event: &impl Fn(Event), event: Event) -> Result<(), String> {
        if self.life.ended.load(Ordering::Acquire) {
            return Ok(());
        }
        self.handling.store(true, Ordering::Release);
        let handled = call(on_event, event);
        self.seen.renew();
        self.handling.store(false, Ordering::Release);
        handled
    }
}

fn up(message: Option<&Message>) -> Up<'_> {
    match message {
        None => Up::Heartbeat,
        Some(Message::Bytes(bytes)) => Up::Message(bytes),
        Some(Message::Fail(reason)) => Up::Fail(reason),
        Some(Message::Leave) => Up::Leave,
    }
}
