//! A member of a scope of a server: a thread that sends, and one that calls the handler.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Builder;
use std::time::Duration;

use xla_core::{Error, Result};

use super::{Event, Life, Link, Membership, Message, call, expelled};
use crate::client::Client;
use crate::hub::MAX_BACKLOG;
use crate::queue::{Popped, Queue};
use crate::watch::{LastSeen, Punctuality, Watched, interval};
use crate::wire::{
    Down, MAX_FRAME, Request, Response, Up, decode, encode, expect_frame, invalid, read_frame,
    write_frame,
};

/// A member of a scope of a server.
pub(crate) fn join(
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
        // This thread may have begun late: what was missed before is not the server's silence.
        self.seen.renew();
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
                // Measured before asking for a pause: one that begins in between counts next time.
                let silence = self.seen.silence();
                if punctuality.was_paused() || self.handling.load(Ordering::Acquire) {
                    self.seen.renew();
                } else if silence >= self.heartbeat {
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
