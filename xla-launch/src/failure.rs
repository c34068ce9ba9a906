//! How replicas end, and whose failure is the launch's.

use crate::panics;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::error::Error as StdError;
use std::sync::Arc;
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
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Failure {
    message: String,
    /// Of a panic, where the environment asks for it.
    backtrace: Option<String>,
    /// The other rank whose end its error speaks of.
    because_of: Option<usize>,
}

impl Failure {
    /// A failure in these words.
    pub(crate) fn new(message: String) -> Self {
        Failure {
            message,
            backtrace: None,
            because_of: None,
        }
    }

    /// The failure of a replica whose function returned `error`.
    pub(crate) fn of(rank: usize, error: &(dyn StdError + Send + Sync + 'static)) -> Self {
        Failure {
            message: in_full(error),
            backtrace: None,
            because_of: other_rank(error).filter(|other| *other != rank),
        }
    }

    /// The failure of the calling thread's replica, which panicked: the words, the line, and the
    /// backtrace if there is one.
    pub(crate) fn panic(payload: &(dyn Any + Send)) -> Self {
        let text = payload
            .downcast_ref::<&'static str>()
            .copied()
            .or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let (place, backtrace) = panics::take().unwrap_or_default();
        Failure {
            backtrace,
            ..Failure::new(match text {
                Some(text) => format!("panicked: {text}{place}"),
                None => format!("panicked with a value that is no text{place}"),
            })
        }
    }

    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The backtrace, where there is one.
    pub(crate) fn backtrace(&self) -> Option<&str> {
        self.backtrace.as_deref()
    }

    /// The other rank whose end it comes from, if it does.
    pub(crate) fn because_of(&self) -> Option<usize> {
        self.because_of
    }
}

/// An error's words, and those of its causes that it does not say itself.
fn in_full(error: &(dyn StdError + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            text = format!("{text}: {words}");
        }
        next = cause.source();
    }
    text
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
            message: match failure.backtrace() {
                Some(backtrace) => format!("{}\n{backtrace}", failure.message),
                None => failure.message.clone(),
            },
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
    fn an_error_brings_its_causes() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot load the model")]
        struct Outer(#[source] std::fmt::Error);
        let failure = Failure::of(0, &Outer(std::fmt::Error));
        assert_eq!(
            failure.message(),
            format!("cannot load the model: {}", std::fmt::Error)
        );
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
