//! Waits for the replicas and decides whose failure is the launch's.

use crossbeam::channel::{Receiver, RecvTimeoutError, Sender, bounded};
use std::any::Any;
use std::error::Error as StdError;
use std::sync::Arc;
use std::time::Duration;
use xla_core::{Error, Result};

/// How one replica ended.
#[derive(Debug)]
pub(crate) struct Outcome<T> {
    pub(crate) rank: usize,
    /// How many replicas had ended before it.
    pub(crate) order: usize,
    pub(crate) result: std::result::Result<T, Failure>,
}

/// Why a replica failed.
#[derive(Debug)]
pub(crate) struct Failure {
    message: String,
    /// The other rank whose end its error speaks of.
    because_of: Option<usize>,
}

impl Failure {
    /// A failure in these words.
    pub(crate) fn new(message: String) -> Self {
        Failure {
            message,
            because_of: None,
        }
    }

    /// The failure of a replica whose function returned `error`.
    pub(crate) fn of(rank: usize, error: &(dyn StdError + Send + Sync + 'static)) -> Self {
        Failure {
            message: error.to_string(),
            because_of: other_rank(error).filter(|other| *other != rank),
        }
    }

    /// The failure of a replica that panicked.
    pub(crate) fn panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<&'static str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Failure::new(match text {
            Some(text) => format!("panicked: {text}"),
            None => "panicked with a value that is no text".into(),
        })
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }
}

/// The rank that an error blames, however deeply the caller has wrapped it.
fn other_rank(error: &(dyn StdError + 'static)) -> Option<usize> {
    let mut next = Some(error);
    while let Some(error) = next {
        let ours = error
            .downcast_ref::<Error>()
            .or_else(|| error.downcast_ref::<Arc<Error>>().map(|error| &**error));
        if let Some(Error::ReplicaFailed { rank, .. } | Error::ReplicaLeft { rank, .. }) = ours {
            return Some(*rank);
        }
        next = error.source();
    }
    None
}

/// A replica's end of the channel to the supervisor.
#[derive(Debug)]
pub(crate) struct Report<T>(Sender<Outcome<T>>);

impl<T> Clone for Report<T> {
    fn clone(&self) -> Self {
        Report(self.0.clone())
    }
}

impl<T> Report<T> {
    /// Reports how a replica ended.
    pub(crate) fn send(&self, outcome: Outcome<T>) {
        // The supervisor waits until every sender is gone; a failed send means that it panicked,
        // and then nobody is left to tell.
        let _ = self.0.send(outcome);
    }
}

/// Collects the outcomes.
#[derive(Debug)]
pub(crate) struct Supervisor<T> {
    outcomes: Receiver<Outcome<T>>,
    world_size: usize,
    patience: Duration,
}

impl<T> Supervisor<T> {
    /// One for so many replicas, which names those that still run each time `patience` has passed
    /// since a replica failed.
    pub(crate) fn new(world_size: usize, patience: Duration) -> (Report<T>, Self) {
        let (sender, outcomes) = bounded(world_size);
        (
            Report(sender),
            Supervisor {
                outcomes,
                world_size,
                patience,
            },
        )
    }

    /// Waits for every replica.
    pub(crate) fn collect(self) -> Vec<Outcome<T>> {
        let mut ended: Vec<Outcome<T>> = Vec::with_capacity(self.world_size);
        loop {
            // A healthy program may run for weeks; only after a failure is waiting suspicious.
            let failed = ended.iter().any(|outcome| outcome.result.is_err());
            let next = if failed {
                self.outcomes.recv_timeout(self.patience)
            } else {
                self.outcomes.recv().map_err(RecvTimeoutError::from)
            };
            match next {
                Ok(outcome) => ended.push(outcome),
                Err(RecvTimeoutError::Disconnected) => return ended,
                Err(RecvTimeoutError::Timeout) => {
                    let running: Vec<usize> = (0..self.world_size)
                        .filter(|rank| ended.iter().all(|outcome| outcome.rank != *rank))
                        .collect();
                    tracing::warn!(?running, "a replica has failed; these still run");
                }
            }
        }
    }
}

/// Every replica's value by rank, or the failure that came first. A failure that speaks of another
/// rank's end is that rank's consequence: it counts only if the other did not fail itself.
pub(crate) fn first_failure<T>(mut outcomes: Vec<Outcome<T>>) -> Result<Vec<T>> {
    let failed: Vec<usize> = outcomes
        .iter()
        .filter(|o| o.result.is_err())
        .map(|o| o.rank)
        .collect();
    let first = outcomes
        .iter()
        .filter_map(|o| o.result.as_ref().err().map(|failure| (o, failure)))
        .min_by_key(|(o, failure)| {
            let consequence = failure
                .because_of
                .is_some_and(|rank| failed.contains(&rank));
            (consequence, o.order)
        });
    if let Some((outcome, failure)) = first {
        return Err(Error::ReplicaFailed {
            rank: outcome.rank,
            message: failure.message.clone(),
        });
    }
    outcomes.sort_by_key(|o| o.rank);
    Ok(outcomes.into_iter().filter_map(|o| o.result.ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(rank: usize, order: usize, result: std::result::Result<u8, Error>) -> Outcome<u8> {
        Outcome {
            rank,
            order,
            result: result.map_err(|error| Failure::of(rank, &error)),
        }
    }

    fn blames(rank: usize) -> Error {
        Error::ReplicaFailed {
            rank,
            message: "disk full".into(),
        }
    }

    fn own(text: &str) -> Error {
        Error::Internal {
            what: "a test",
            expected: text.into(),
        }
    }

    fn failed_rank(outcomes: Vec<Outcome<u8>>) -> (usize, String) {
        match first_failure(outcomes) {
            Err(Error::ReplicaFailed { rank, message }) => (rank, message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_come_by_rank() {
        let all = vec![
            ended(2, 0, Ok(12)),
            ended(0, 1, Ok(10)),
            ended(1, 2, Ok(11)),
        ];
        assert_eq!(first_failure(all).unwrap(), [10, 11, 12]);
    }

    #[test]
    fn the_first_of_two_own_failures_decides() {
        let all = vec![
            ended(0, 1, Err(own("late"))),
            ended(1, 0, Err(own("early"))),
        ];
        let (rank, message) = failed_rank(all);
        assert_eq!(rank, 1);
        assert!(message.contains("expected early"), "{message}");
    }

    #[test]
    fn a_consequence_that_ends_first_hides_nothing() {
        let all = vec![
            ended(0, 0, Err(blames(1))),
            ended(1, 1, Err(own("disk full"))),
            ended(2, 2, Ok(0)),
        ];
        assert_eq!(failed_rank(all).0, 1);
    }

    #[test]
    fn who_waited_for_a_rank_that_returned_well_has_a_failure_of_its_own() {
        let left = Error::ReplicaLeft {
            what: "a collective".into(),
            rank: 1,
        };
        assert_eq!(
            failed_rank(vec![ended(1, 0, Ok(0)), ended(0, 1, Err(left))]).0,
            0
        );
    }

    #[test]
    fn blame_is_found_under_wrappers() {
        let step = Error::Step {
            step: 3,
            op: "add",
            at: xla_core::Site::NONE,
            source: Arc::new(blames(2)),
        };
        assert_eq!(Failure::of(0, &step).because_of, Some(2));
        assert_eq!(Failure::of(2, &blames(2)).because_of, None);
        assert_eq!(Failure::of(0, &own("x")).because_of, None);
    }

    #[test]
    fn panics_keep_their_words() {
        assert_eq!(Failure::panic(&"plain").message(), "panicked: plain");
        assert_eq!(
            Failure::panic(&String::from("built")).message(),
            "panicked: built"
        );
        assert_eq!(
            Failure::panic(&7_u8).message(),
            "panicked with a value that is no text"
        );
    }
}
