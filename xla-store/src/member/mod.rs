//! A process's own side of a control channel.

pub(crate) mod local;
pub(crate) mod remote;

use std::net::{Shutdown, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use xla_core::{Error, Result};

use crate::Node;
use crate::hub::{Ending, ITEM, MAX_BACKLOG};
use crate::queue::{Queue, Rejected};
use crate::wire::MAX_VALUE;

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

fn expelled(reason: &str) -> String {
    format!("the store takes this process for failed: {reason}")
}
