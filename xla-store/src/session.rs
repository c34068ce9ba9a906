//! The server's side of a control channel: one member of one scope.

use std::io;
use std::net::{Shutdown, TcpStream};
use std::thread::Builder;

use crate::hub::{Ending, Notice, Outbox};
use crate::queue::Popped;
use crate::server::{Connection, Shared};
use crate::watch::Watched;
use crate::wire::{Down, MAX_FRAME, Response, Up, decode, encode, read_frame, write_frame};

/// Serves a member until it leaves, fails, or is gone; whichever it was, the others are told.
pub(crate) fn run(
    shared: &Shared,
    connection: &Connection,
    outbox: &Outbox,
    scope: &str,
    member: usize,
) -> io::Result<()> {
    let ending = std::thread::scope(|threads| {
        let mut stream = &connection.stream;
        let ready = encode(&Response::Done).and_then(|body| write_frame(&mut stream, &body));
        let writer = ready.and_then(|()| {
            Builder::new()
                .name("xla-store-tell".into())
                .spawn_scoped(threads, || tell(shared, &connection.stream, outbox))
        });
        let ending = match &writer {
            Ok(_) => listen(shared, connection, scope, member),
            Err(error) => Ending::Failed(error.to_string()),
        };
        // Closes the outbox too, whereupon the writer ends.
        shared.node.hub.end(scope, member, ending.clone());
        ending
    });
    match ending {
        Ending::Left => Ok(()),
        Ending::Failed(reason) => Err(io::Error::other(reason)),
    }
}

/// Takes what the member sends until its time ends.
fn listen(shared: &Shared, connection: &Connection, scope: &str, member: usize) -> Ending {
    let mut stream = Watched {
        reader: &connection.stream,
        seen: &connection.seen,
    };
    loop {
        let body = match read_frame(&mut stream, MAX_FRAME) {
            Ok(Some(body)) => body,
            Ok(None) => {
                return Ending::Failed("its connection closed: the process ended".into());
            }
            Err(error) => {
                return Ending::Failed(format!("its connection broke: {error}"));
            }
        };
        let sent = match decode(&body) {
            Ok(Up::Heartbeat) => Ok(()),
            Ok(Up::Message(bytes)) => shared.node.hub.send(scope, member, bytes),
            Ok(Up::Fail(reason)) => return Ending::Failed(reason.to_owned()),
            Ok(Up::Leave) => return Ending::Left,
            Err(error) => Err(format!("it sent what has no meaning: {error}")),
        };
        if let Err(reason) = sent {
            return Ending::Failed(reason);
        }
    }
}

/// Sends the member what waits for it, and signs of life in between, until its outbox is closed.
fn tell(shared: &Shared, mut stream: &TcpStream, outbox: &Outbox) {
    let mut told = || -> io::Result<()> {
        loop {
            let notice = match outbox.pop(shared.interval()) {
                Popped::Item(notice) => Some(notice),
                Popped::Nothing => None,
                Popped::Closed => return Ok(()),
            };
            write_frame(&mut stream, &encode(&down(notice.as_ref()))?)?;
        }
    };
    // Written out before the connection closes, so that the member learns why.
    let ended = match told() {
        Ok(()) => Shutdown::Write,
        Err(_) => Shutdown::Both,
    };
    let _ = stream.shutdown(ended);
}

fn down(notice: Option<&Notice>) -> Down<'_> {
    // Members fit: a scope has no more than MAX_MEMBERS.
    let index = |member: usize| u32::try_from(member).unwrap_or(u32::MAX);
    match notice {
        None => Down::Heartbeat,
        Some(Notice::Message { from, bytes }) => Down::Message {
            from: index(*from),
            bytes,
        },
        Some(Notice::Failed { member, reason }) => Down::Failed {
            member: index(*member),
            reason,
        },
        Some(Notice::Left { member }) => Down::Left {
            member: index(*member),
        },
        Some(Notice::Expelled { reason }) => Down::Expelled { reason },
    }
}
