//! What goes over a connection: frames of a length and a body, and the bodies' meaning.
//!
//! A connection starts with a handshake ([`crate::handshake`]). Then the client sends [`Request`]s
//! and gets one [`Response`] each, until it joins a scope: from there on it sends [`Up`]s and is
//! sent [`Down`]s, each as it pleases.
//!
//! Everything here comes from a peer that may be broken or hostile. A frame's length is checked
//! before anything is allocated, and memory is taken only as bytes arrive.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// First bytes of a connection, both ways.
pub(crate) const MAGIC: [u8; 4] = *b"XLAS";

/// Version of everything in this module; both ends must be the same.
pub(crate) const VERSION: u16 = 1;

/// Most bytes of a key, a prefix or a scope's name.
pub const MAX_KEY: usize = 4 << 10;

/// Most bytes of a value or a message.
pub const MAX_VALUE: usize = 64 << 20;

/// Most keys that one call waits for.
pub const MAX_KEYS: usize = 64 << 10;

/// Most bytes of a frame: two values (compare and set), a key, and what is around them.
pub(crate) const MAX_FRAME: usize = 2 * MAX_VALUE + MAX_KEY + 64;

/// Memory taken before the bytes that need it have arrived.
const AHEAD: usize = 64 << 10;

/// What a client asks of the key-value store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Request<'a> {
    Set {
        key: &'a str,
        #[serde(with = "serde_bytes")]
        value: &'a [u8],
    },
    Get {
        key: &'a str,
        milliseconds: u64,
    },
    TryGet {
        key: &'a str,
    },
    Wait {
        #[serde(borrow)]
        keys: Vec<&'a str>,
        milliseconds: u64,
    },
    Add {
        key: &'a str,
        amount: i64,
    },
    CompareAndSet {
        key: &'a str,
        #[serde(borrow, with = "serde_bytes")]
        expected: Option<&'a [u8]>,
        #[serde(with = "serde_bytes")]
        desired: &'a [u8],
    },
    Keys {
        prefix: &'a str,
    },
    Delete {
        key: &'a str,
    },
    /// The connection becomes a member's control channel.
    Join {
        scope: &'a str,
        member: u32,
        size: u32,
    },
}

/// What the store answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Response {
    Done,
    Value(ByteBuf),
    Absent,
    Number(i64),
    Keys(Vec<String>),
    Flag(bool),
    /// The time is over and these keys are not set.
    Missing(Vec<String>),
    /// The request has no meaning, or the store is full.
    Refused(String),
}

/// From a member to the hub.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Up<'a> {
    Heartbeat,
    Message(#[serde(with = "serde_bytes")] &'a [u8]),
    Fail(&'a str),
    Leave,
}

/// From the hub to a member.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Down<'a> {
    Heartbeat,
    Message {
        from: u32,
        #[serde(with = "serde_bytes")]
        bytes: &'a [u8],
    },
    Failed {
        member: u32,
        reason: &'a str,
    },
    Left {
        member: u32,
    },
    /// The member itself is taken for failed; the connection ends.
    Expelled {
        reason: &'a str,
    },
}

/// A body as it goes over the connection.
pub(crate) fn encode(body: &impl Serialize) -> io::Result<Vec<u8>> {
    postcard::to_stdvec(body).map_err(|error| io::Error::other(error.to_string()))
}

/// The meaning of a body; an error for one that has none, or more bytes than it needs.
pub(crate) fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> io::Result<T> {
    match postcard::take_from_bytes(body) {
        Ok((value, [])) => Ok(value),
        Ok(_) => Err(invalid("bytes after the end of a body")),
        Err(error) => Err(invalid(&error.to_string())),
    }
}

/// Sends one frame.
pub(crate) fn write_frame(to: &mut impl Write, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len()).map_err(|_| invalid("a frame above 4 GiB"))?;
    // One write for what fits a packet: two would wait for each other's acknowledgement.
    if body.len() <= AHEAD {
        let mut frame = Vec::with_capacity(4 + body.len());
        frame.extend_from_slice(&length.to_le_bytes());
        frame.extend_from_slice(body);
        to.write_all(&frame)?;
    } else {
        to.write_all(&length.to_le_bytes())?;
        to.write_all(body)?;
    }
    to.flush()
}

/// Receives one frame of at most `limit` bytes; `None` when the connection ended between frames.
pub(crate) fn read_frame(from: &mut impl Read, limit: usize) -> io::Result<Option<Vec<u8>>> {
    let mut length = [0; 4];
    let mut filled = 0;
    while let Some(rest) = length.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match from.read(rest) {
            Ok(0) if filled == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => filled += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > limit {
        return Err(invalid(&format!(
            "a frame of {length} bytes where at most {limit} are allowed"
        )));
    }
    let mut body = Vec::with_capacity(length.min(AHEAD));
    from.take(length as u64).read_to_end(&mut body)?;
    match body.len() == length {
        true => Ok(Some(body)),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Receives one frame where the connection must not end before it.
pub(crate) fn expect_frame(from: &mut impl Read, limit: usize) -> io::Result<Vec<u8>> {
    read_frame(from, limit)?.ok_or(io::ErrorKind::UnexpectedEof.into())
}

pub(crate) fn invalid(reason: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Any bytes are a frame, the end, or an error; and no more memory than arrived is taken.
        #[test]
        fn garbage_is_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut rest = bytes.as_slice();
            while let Ok(Some(body)) = read_frame(&mut rest, MAX_FRAME) {
                prop_assert!(body.len() <= bytes.len());
                let _ = decode::<Request<'_>>(&body);
                let _ = decode::<Response>(&body);
                let _ = decode::<Up<'_>>(&body);
                let _ = decode::<Down<'_>>(&body);
            }
        }

        #[test]
        fn a_body_survives(key in ".{0,40}", value in proptest::collection::vec(any::<u8>(), 0..99)) {
            let sent = Request::CompareAndSet { key: &key, expected: Some(&value), desired: &value };
            let mut stream = Vec::new();
            write_frame(&mut stream, &encode(&sent).unwrap()).unwrap();
            let body = read_frame(&mut stream.as_slice(), MAX_FRAME).unwrap().unwrap();
            prop_assert_eq!(decode::<Request<'_>>(&body).unwrap(), sent);
        }

        /// A body cut short, or with one more byte, has no meaning.
        #[test]
        fn a_body_of_another_length_is_an_error(value in proptest::collection::vec(any::<u8>(), 1..99)) {
            let mut body = encode(&Up::Message(&value)).unwrap();
            prop_assert!(decode::<Up<'_>>(&body[..body.len() - 1]).is_err());
            body.push(0);
            prop_assert!(decode::<Up<'_>>(&body).is_err());
        }
    }

    #[test]
    fn a_length_alone_takes_no_memory_and_a_longer_one_is_refused() {
        let limit = MAX_FRAME as u32;
        let cut = read_frame(&mut limit.to_le_bytes().as_slice(), MAX_FRAME);
        assert_eq!(cut.unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        let long = read_frame(&mut (limit + 1).to_le_bytes().as_slice(), MAX_FRAME);
        assert_eq!(long.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
