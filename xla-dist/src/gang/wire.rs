//! What the processes of a world tell each other over the control channel.

use super::compare::Announcement;
use serde::{Deserialize, Serialize};
use std::time::Duration;
use xla_core::{Error, Result};

/// A message to all other processes of the world.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Message {
    /// About a group; processes without members in it take no notice.
    Group {
        /// Its number, the same in all processes.
        group: u64,
        news: News,
    },
    /// The first of every process.
    Hello(Hello),
    /// A replica has destroyed its default group.
    Departed {
        /// Its global rank.
        rank: usize,
    },
    /// A replica has ended.
    Ended {
        /// Its global rank.
        rank: usize,
        /// Its error; `None` for one whose function returned.
        failure: Option<String>,
    },
}

/// What a process says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Hello {
    /// Tells its machine from others.
    pub(crate) machine: String,
    /// Replicas that it drives.
    pub(crate) replicas: usize,
    /// Version of this library. What processes tell each other differs between versions.
    pub(crate) version: String,
}

/// What a process tells the others of one group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum News {
    /// It has made the group, of these global ranks.
    Formed(Vec<usize>),
    /// It is about to start a program.
    Announced(Announcement),
    /// It cannot go on, for this reason.
    Broken(Reason),
}

/// Why a group cannot go on, as it is told to other processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Reason {
    Diverged {
        index: usize,
        rank: usize,
        left: String,
        other_rank: usize,
        right: String,
    },
    Failed {
        rank: usize,
        message: String,
    },
    Left {
        rank: usize,
        what: String,
    },
    Late {
        what: String,
        after: Duration,
    },
}

impl Reason {
    /// Why `rank` cannot go on.
    pub(crate) fn of(error: &Error, rank: usize) -> Reason {
        match error.clone() {
            Error::Divergence {
                index,
                rank,
                left,
                other_rank,
                right,
            } => Reason::Diverged {
                index,
                rank,
                left,
                other_rank,
                right,
            },
            Error::ReplicaFailed { rank, message } => Reason::Failed { rank, message },
            Error::ReplicaLeft { rank, what } => Reason::Left { rank, what },
            Error::Deadline { what, after, .. } => Reason::Late { what, after },
            other => Reason::Failed {
                rank,
                message: other.to_string(),
            },
        }
    }

    pub(crate) fn into_error(self) -> Error {
        match self {
            Reason::Diverged {
                index,
                rank,
                left,
                other_rank,
                right,
            } => Error::Divergence {
                index,
                rank,
                left,
                other_rank,
                right,
            },
            Reason::Failed { rank, message } => Error::ReplicaFailed { rank, message },
            Reason::Left { rank, what } => Error::ReplicaLeft { rank, what },
            Reason::Late { what, after } => Error::Deadline {
                what,
                after,
                advice: "; a rank may be stuck, or set a longer deadline",
            },
        }
    }
}

impl Message {
    /// # Errors
    /// [`Error::Internal`]; there is none for these types.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(|error| Error::Internal {
            what: "control channel",
            expected: format!("a message that can be written ({error})"),
        })
    }

    /// `None` for bytes that are no message.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Message> {
        postcard::from_bytes(bytes).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_arrives_as_the_error_it_was() {
        for error in [
            Error::Divergence {
                index: 3,
                rank: 1,
                left: "all_reduce f32[2] at a.rs:1".into(),
                other_rank: 0,
                right: "broadcast f32[2] at a.rs:2".into(),
            },
            Error::ReplicaFailed {
                rank: 2,
                message: "disk full".into(),
            },
            Error::ReplicaLeft {
                rank: 2,
                what: "a collective".into(),
            },
            Error::Deadline {
                what: "a collective that rank(s) [1] did not come to".into(),
                after: Duration::from_secs(10),
                advice: "; a rank may be stuck, or set a longer deadline",
            },
        ] {
            let message = Message::Group {
                group: 7,
                news: News::Broken(Reason::of(&error, 5)),
            };
            let bytes = message.encode().unwrap();
            let Some(Message::Group {
                group: 7,
                news: News::Broken(reason),
            }) = Message::decode(&bytes)
            else {
                panic!("{bytes:?}");
            };
            assert_eq!(reason.into_error().to_string(), error.to_string());
        }
        let own = Error::BufferDeleted { what: "execute" };
        assert!(matches!(
            Reason::of(&own, 5),
            Reason::Failed { rank: 5, .. }
        ));
        assert_eq!(Message::decode(&[250, 1]), None);
    }
}
