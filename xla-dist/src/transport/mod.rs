//! Bytes between the processes of one set: connected once, then messages from any to any.
//!
//! There is one implementation, over Gloo's TCP transport (cargo feature `gloo`). Its own collectives
//! are not used: a thread that waits in one cannot be woken, and a peer that dies in the middle of a
//! message leaves it waiting until its deadline. What is built here on single messages
//! ([`collectives`]) fails at once in both cases, and copies less.
//!
//! A transport that failed once stays failed: bytes may be missing anywhere.

#[cfg(feature = "gloo")]
pub mod bench;
pub(crate) mod collectives;
#[cfg(feature = "gloo")]
mod gloo;
#[cfg(feature = "gloo")]
mod peers;
pub(crate) mod reduce;
#[cfg(all(test, feature = "gloo"))]
pub(crate) mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xla_core::Result;
use xla_store::Store;

/// Why bytes did not arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Failure {
    /// A process did not do its part before the deadline.
    Late {
        /// Its index in the set.
        process: usize,
    },
    /// The connection to a process is gone, in most cases because the process is.
    #[cfg_attr(not(feature = "gloo"), allow(dead_code))] // made by the implementation
    Lost {
        /// Its index in the set.
        process: usize,
        /// The system's words.
        reason: String,
    },
    /// Somebody called [`Transport::abort`], for this reason.
    Aborted(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Late { process } => {
                write!(f, "process {process} did not answer before the deadline")
            }
            Failure::Lost { process, reason } => {
                write!(f, "the connection to process {process} is lost: {reason}")
            }
            Failure::Aborted(reason) => f.write_str(reason),
        }
    }
}

/// What the messages of one collective have in common. Two messages meet only if their channels are
/// equal *and* they are of one length: Gloo ends the process when a message is longer than the
/// memory that waits for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Channel {
    tag: u32,
    words: u64,
}

impl Channel {
    /// `tag` is the collective's, different from those of all others under way; `words` say what it
    /// does (kind, sizes), equal in all processes that do the same.
    pub(crate) fn new(tag: u32, words: &[u64]) -> Self {
        // FNV-1a, the same in every process.
        let fold = |hash: u64, word: &u64| {
            word.to_le_bytes().iter().fold(hash, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
            })
        };
        Channel {
            tag,
            words: words.iter().fold(0xcbf2_9ce4_8422_2325, fold),
        }
    }

    /// The same, with one more word.
    pub(crate) fn part(self, word: u64) -> Self {
        Channel::new(self.tag, &[self.words, word])
    }

    /// Where messages of this length meet.
    #[cfg_attr(not(feature = "gloo"), allow(dead_code))] // read by the implementation
    fn slot(self, len: usize) -> u64 {
        let words = self.part(len as u64).words;
        // The upper half of what a tag leaves is the transport's own.
        u64::from(self.tag) << 32 | (words ^ words >> 32) & 0x7fff_ffff
    }
}

/// A message under way; `None` for an empty one, which needs none.
#[derive(Debug)]
#[must_use = "a message has to be waited for"]
#[cfg_attr(not(feature = "gloo"), allow(dead_code))] // read by the implementation
pub(crate) struct Ticket(Option<usize>);

/// The messages of one call. They are done or given up when the call ends, so `'env` memory is the
/// caller's again.
///
/// Messages between two processes with one channel and length arrive in the order sent. None has to
/// be waited for in that order.
pub(crate) trait Messages<'env> {
    /// Starts to send to a process (its index). An empty message is not sent.
    fn send(
        &mut self,
        process: usize,
        channel: Channel,
        data: &'env [u8],
    ) -> Result<Ticket, Failure>;

    /// [`Messages::send`] of memory that [`Messages::wait`] gives back.
    fn lend(
        &mut self,
        process: usize,
        channel: Channel,
        data: &'env mut [u8],
    ) -> Result<Ticket, Failure>;

    /// Starts to receive exactly this many bytes.
    fn receive(
        &mut self,
        process: usize,
        channel: Channel,
        into: &'env mut [u8],
    ) -> Result<Ticket, Failure>;

    /// Waits for a message, and returns the memory that was received into or lent. What was sent has
    /// left this process; it need not have arrived.
    fn wait(&mut self, ticket: Ticket) -> Result<&'env mut [u8], Failure>;
}

/// What a call does with its messages.
pub(crate) type Work<'w, 'env> = dyn FnMut(&mut dyn Messages<'env>) -> Result<(), Failure> + 'w;

/// The processes of one set, connected. Many threads may use it at once, each with its own channels.
pub(crate) trait Transport: Send + Sync {
    /// Which of the processes this is.
    fn index(&self) -> usize;

    /// Calls `work` once. None of its waits goes beyond `end`. An error of it is the transport's end,
    /// here and with its peers.
    fn call<'env>(&self, end: Instant, work: &mut Work<'_, 'env>) -> Result<(), Failure>;

    /// Ends the transport: every call that waits, in any thread, fails at once with this reason, and
    /// so do those of the peers when they notice.
    fn abort(&self, reason: &str);
}

/// Connects this process with the others of a set: all call it with the same `processes` and stores
/// that are prefixed alike, for this set only.
///
/// The connections are made between the addresses at which the processes reach the store, or those
/// of the interface that `GLOO_SOCKET_IFNAME` names.
///
/// # Errors
/// [`xla_core::Error::Deadline`] when a process does not come in time; [`xla_core::Error::Transport`]
/// when it cannot be reached; [`xla_core::Error::MissingFeature`] in a build without the feature
/// `gloo`.
#[cfg(feature = "gloo")]
pub(crate) fn connect(
    store: &Store,
    index: usize,
    processes: usize,
    deadline: Duration,
) -> Result<Arc<dyn Transport>> {
    Ok(Arc::new(peers::Peers::connect(
        store, index, processes, deadline,
    )?))
}

/// Without the feature `gloo` there is nothing that connects processes.
#[cfg(not(feature = "gloo"))]
pub(crate) fn connect(_: &Store, _: usize, _: usize, _: Duration) -> Result<Arc<dyn Transport>> {
    Err(xla_core::Error::MissingFeature {
        what: "a process group that spans processes, on CPU,",
        feature: "gloo",
        commands: "apt-get install libgloo-dev; cargo add xla --features gloo",
    })
}
