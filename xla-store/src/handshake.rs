//! The start of a connection: same protocol, same token.
//!
//! The server sends a nonce, the client answers with its own and an HMAC-SHA256 of both under the
//! token, and the server proves the same of itself. The token never goes over the wire, and a
//! recorded handshake opens nothing.

use std::io::{self, Read, Write};

use hmac::{Hmac, Mac};
use serde::{Deserialize, Serialize};
use sha2::Sha256;

use crate::wire::{MAGIC, VERSION, decode, encode, expect_frame, invalid, write_frame};

/// Most bytes of a handshake's frame: a peer has shown nothing yet.
const MAX_HELLO: usize = 512;

type Nonce = [u8; 32];
type Proof = [u8; 32];

#[derive(Serialize, Deserialize)]
struct Hello {
    magic: [u8; 4],
    version: u16,
    /// Whether the server wants a token.
    token: bool,
    nonce: Nonce,
}

#[derive(Serialize, Deserialize)]
struct Answer {
    magic: [u8; 4],
    version: u16,
    nonce: Nonce,
    /// `None` from a client without a token.
    proof: Option<Proof>,
}

#[derive(Serialize, Deserialize)]
enum Verdict {
    Welcome(Option<Proof>),
    TokenMissing,
    TokenWrong,
}

/// Why a handshake failed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The tokens do not agree, in words.
    Token(String),
    /// The connection failed, or the peer speaks something else.
    Io(io::Error),
}

impl From<io::Error> for Refusal {
    fn from(error: io::Error) -> Self {
        Refusal::Io(error)
    }
}

/// The server's side.
pub(crate) fn accept(stream: &mut (impl Read + Write), token: Option<&str>) -> Result<(), Refusal> {
    let nonce = nonce()?;
    let hello = Hello {
        magic: MAGIC,
        version: VERSION,
        token: token.is_some(),
        nonce,
    };
    write_frame(stream, &encode(&hello)?)?;
    let body = expect_frame(stream, MAX_HELLO)?;
    let answer: Answer = decode(&body)?;
    if (answer.magic, answer.version) != (MAGIC, VERSION) {
        return Err(invalid("the client speaks another protocol").into());
    }
    let refused = |stream: &mut _, verdict, reason: &str| {
        write_frame(stream, &encode(&verdict)?)?;
        Err(Refusal::Token(reason.into()))
    };
    let proof = match (token, answer.proof) {
        (None, _) => None,
        (Some(_), None) => return refused(stream, Verdict::TokenMissing, "the client has none"),
        (Some(token), Some(proof)) => {
            if !holds(token, b"client", [&nonce, &answer.nonce], &proof) {
                return refused(stream, Verdict::TokenWrong, "the client's is another one");
            }
            Some(prove(token, b"server", [&answer.nonce, &nonce]))
        }
    };
    Ok(write_frame(stream, &encode(&Verdict::Welcome(proof))?)?)
}

/// The client's side.
pub(crate) fn request(
    stream: &mut (impl Read + Write),
    token: Option<&str>,
) -> Result<(), Refusal> {
    let body = expect_frame(stream, MAX_HELLO)?;
    let hello: Hello = decode(&body)?;
    if hello.magic != MAGIC {
        return Err(invalid("what listens there is no store").into());
    }
    if hello.version != VERSION {
        let reason = format!("it speaks version {}, not {VERSION}", hello.version);
        return Err(invalid(&reason).into());
    }
    let nonce = nonce()?;
    let answer = Answer {
        magic: MAGIC,
        version: VERSION,
        nonce,
        proof: token.map(|token| prove(token, b"client", [&hello.nonce, &nonce])),
    };
    write_frame(stream, &encode(&answer)?)?;
    let body = expect_frame(stream, MAX_HELLO)?;
    let refused = |reason: &str| Err(Refusal::Token(reason.into()));
    match (decode(&body)?, token) {
        (Verdict::TokenMissing, _) => {
            refused("the store asks for a token and this process has none")
        }
        (Verdict::TokenWrong, _) => refused("this process's token is not the store's"),
        (Verdict::Welcome(None), Some(_)) => {
            refused("this process has a token and the store has none")
        }
        (Verdict::Welcome(Some(proof)), Some(token))
            if !holds(token, b"server", [&nonce, &hello.nonce], &proof) =>
        {
            refused("the store does not know this process's token")
        }
        (Verdict::Welcome(_), _) => Ok(()),
    }
}

fn nonce() -> io::Result<Nonce> {
    let mut nonce = [0; 32];
    getrandom::fill(&mut nonce).map_err(|error| io::Error::other(error.to_string()))?;
    Ok(nonce)
}

/// The role keeps one side's proof from being sent back as the other's.
fn keyed(token: &str, role: &[u8], nonces: [&Nonce; 2]) -> Hmac<Sha256> {
    let mut mac = match Hmac::<Sha256>::new_from_slice(token.as_bytes()) {
        Ok(mac) => mac,
        Err(_) => unreachable!("HMAC takes keys of every length"),
    };
    mac.update(role);
    mac.update(nonces[0]);
    mac.update(nonces[1]);
    mac
}

fn prove(token: &str, role: &[u8], nonces: [&Nonce; 2]) -> Proof {
    keyed(token, role, nonces).finalize().into_bytes().into()
}

/// Compares in constant time.
fn holds(token: &str, role: &[u8], nonces: [&Nonce; 2], proof: &Proof) -> bool {
    keyed(token, role, nonces).verify_slice(proof).is_ok()
}
