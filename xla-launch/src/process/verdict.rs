//! From reports and ends of processes to the result of a launch.

use crate::failure::{Failure, Outcome, first_failure};
use crate::supervise::Exit;
use std::time::Duration;
use xla_core::{Error, Result};
use xla_runtime::context::Topology;

/// How long a rank that another one blames has to speak for itself, and a report of a process that
/// has ended to arrive.
const SETTLE: Duration = Duration::from_secs(2);

/// How long a process may take to end after its replicas have.
const LINGER: Duration = Duration::from_secs(60);

/// What a supervisor should do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// Wait for what comes.
    Wait,
    /// Wait, but for no longer than this before stopping all.
    WaitFor(Duration),
    /// Stop all.
    Stop,
}

/// What is known so far.
#[derive(Debug)]
pub(crate) struct Verdict {
    topology: Topology,
    outcomes: Vec<Outcome<Vec<u8>>>,
    /// How each process ended, with the number of events before, if it ended by itself.
    ends: Vec<Option<(usize, Exit)>>,
    events: usize,
}

impl Verdict {
    pub(crate) fn new(topology: Topology) -> Self {
        Verdict {
            topology,
            outcomes: Vec::new(),
            ends: vec![None; topology.processes],
            events: 0,
        }
    }

    /// A replica has said how it ended.
    pub(crate) fn reported(
        &mut self,
        rank: usize,
        result: std::result::Result<Vec<u8>, Failure>,
    ) -> Next {
        let order = self.count();
        let known = self.outcomes.iter().any(|outcome| outcome.rank == rank);
        if rank < self.topology.world_size() && !known {
            self.outcomes.push(Outcome {
                rank,
                order,
                result,
            });
        }
        self.next()
    }

    /// A process has ended without having been told to.
    pub(crate) fn ended(&mut self, process: usize, exit: Exit) -> Next {
        let order = self.count();
        if let Some(slot) = self.ends.get_mut(process) {
            *slot = Some((order, exit));
        }
        self.next()
    }

    fn count(&mut self) -> usize {
        self.events += 1;
        self.events
    }

    fn next(&self) -> Next {
        let bad_end = self.ends.iter().flatten().any(|(_, exit)| !exit.success());
        let mut blamed = false;
        for outcome in &self.outcomes {
            if outcome.result.is_ok() {
                continue;
            }
            match self.root(outcome) {
                Some(rank) if self.of(rank).is_none() => blamed = true,
                // Who is at the root of it has spoken, or nobody is.
                _ => return Next::Stop,
            }
        }
        let silent_end = (0..self.topology.processes)
            .any(|process| self.ends[process].is_some() && self.silent(process).is_some());
        if bad_end {
            Next::Stop
        } else if blamed || silent_end {
            Next::WaitFor(SETTLE)
        } else if self.outcomes.len() == self.topology.world_size() {
            Next::WaitFor(LINGER)
        } else {
            Next::Wait
        }
    }

    /// How a rank ended, if it has said so.
    fn of(&self, rank: usize) -> Option<&Outcome<Vec<u8>>> {
        self.outcomes.iter().find(|outcome| outcome.rank == rank)
    }

    /// The rank that a failure is due to in the end: one may blame another that has itself only heard
    /// of a third. `None` where they blame each other.
    fn root(&self, outcome: &Outcome<Vec<u8>>) -> Option<usize> {
        let mut last = outcome;
        for _ in 0..self.topology.world_size() {
            let blamed = last.result.as_ref().err().and_then(Failure::because_of);
            let Some(rank) = blamed else {
                return Some(last.rank);
            };
            match self.of(rank) {
                Some(next) => last = next,
                None => return Some(rank),
            }
        }
        None
    }

    /// The first rank of a process that has not said how it ended.
    fn silent(&self, process: usize) -> Option<usize> {
        self.ranks(process).find(|rank| self.of(*rank).is_none())
    }

    fn ranks(&self, process: usize) -> std::ops::Range<usize> {
        Topology {
            process_index: process,
            ..self.topology
        }
        .local_ranks()
    }

    /// Every rank's value, or the failure that came first. A process that ended without a word counts
    /// as a failure of its first rank that had not ended.
    ///
    /// # Errors
    /// [`Error::ReplicaFailed`]; [`Error::Launch`] when processes had to be stopped though all had
    /// ended well.
    pub(crate) fn pronounce(mut self) -> Result<Vec<Vec<u8>>> {
        for process in 0..self.topology.processes {
            let ranks = self.ranks(process);
            let failed = self
                .outcomes
                .iter()
                .any(|outcome| ranks.contains(&outcome.rank) && outcome.result.is_err());
            let silent = self.silent(process);
            let Some((order, exit)) = &self.ends[process] else {
                continue;
            };
            if failed || (exit.success() && silent.is_none()) {
                continue;
            }
            let its = match ranks.len() {
                1 => "its process".to_owned(),
                _ => format!(
                    "its process, of ranks {} to {},",
                    ranks.start,
                    ranks.end - 1
                ),
            };
            let before = match silent {
                Some(_) => " before its function had returned",
                None => " after its function had returned",
            };
            let rank = silent.unwrap_or(ranks.start);
            self.outcomes.retain(|outcome| outcome.rank != rank);
            self.outcomes.push(Outcome {
                rank,
                order: *order,
                result: Err(Failure::new(format!(
                    "{its} {}{before}{}",
                    exit.manner(),
                    exit.quote()
                ))),
            });
        }
        let values = first_failure(self.outcomes)?;
        if values.len() == self.topology.world_size() {
            Ok(values)
        } else {
            Err(Error::Launch {
                reason: "processes were stopped from outside before all replicas had returned"
                    .into(),
                advice: "look for who ended them",
            })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_by_two() -> Verdict {
        Verdict::new(Topology {
            processes: 2,
            process_index: 0,
            replicas: 2,
        })
    }

    fn own(text: &str) -> std::result::Result<Vec<u8>, Failure> {
        Err(Failure::new(text.into()))
    }

    fn blames(rank: usize) -> std::result::Result<Vec<u8>, Failure> {
        let error = Error::ReplicaFailed {
            rank,
            message: "gone".into(),
        };
        Err(Failure::of(99, &error))
    }

    fn exit(code: i32) -> Exit {
        Exit {
            code: Some(code),
            ..Exit::default()
        }
    }

    fn failed(verdict: Verdict) -> (usize, String) {
        match verdict.pronounce() {
            Err(Error::ReplicaFailed { rank, message }) => (rank, message),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn values_by_rank_once_all_have_ended() {
        let mut verdict = two_by_two();
        for rank in [3, 0, 1] {
            assert_eq!(verdict.reported(rank, Ok(vec![rank as u8])), Next::Wait);
        }
        assert_eq!(verdict.reported(2, Ok(vec![2])), Next::WaitFor(LINGER));
        verdict.ended(0, exit(0));
        verdict.ended(1, exit(0));
        assert_eq!(
            verdict.pronounce().unwrap(),
            [vec![0], vec![1], vec![2], vec![3]]
        );
    }

    #[test]
    fn an_own_failure_stops_at_once() {
        let mut verdict = two_by_two();
        assert_eq!(verdict.reported(2, own("disk full")), Next::Stop);
        assert_eq!(failed(verdict), (2, "disk full".into()));
    }

    #[test]
    fn who_is_blamed_may_speak_first() {
        let mut verdict = two_by_two();
        assert_eq!(verdict.reported(0, blames(3)), Next::WaitFor(SETTLE));
        assert_eq!(verdict.reported(3, own("disk full")), Next::Stop);
        assert_eq!(failed(verdict), (3, "disk full".into()));
        // One that never speaks is named by who missed it.
        let mut verdict = two_by_two();
        verdict.reported(0, blames(3));
        assert_eq!(failed(verdict), (0, "rank 3 failed: gone".into()));
    }

    #[test]
    fn blame_is_followed_to_who_has_not_spoken() {
        let mut verdict = two_by_two();
        assert_eq!(verdict.reported(0, blames(2)), Next::WaitFor(SETTLE));
        assert_eq!(verdict.reported(1, blames(0)), Next::WaitFor(SETTLE));
        assert_eq!(verdict.ended(1, exit(1)), Next::Stop);
        assert_eq!(failed(verdict).0, 2);
        // Two that blame each other wait for nobody.
        let mut verdict = two_by_two();
        assert_eq!(verdict.reported(0, blames(1)), Next::WaitFor(SETTLE));
        assert_eq!(verdict.reported(1, blames(0)), Next::Stop);
    }

    #[test]
    fn a_process_that_ends_without_a_word_is_a_failure() {
        let mut verdict = two_by_two();
        assert_eq!(verdict.reported(0, blames(2)), Next::WaitFor(SETTLE));
        assert_eq!(verdict.ended(1, exit(1)), Next::Stop);
        let (rank, message) = failed(verdict);
        assert_eq!(rank, 2);
        assert_eq!(
            message,
            "its process, of ranks 2 to 3, ended with exit code 1 before its function had returned"
        );
    }

    #[test]
    fn leaving_with_code_0_is_no_success_and_a_late_report_is_none_less() {
        let mut verdict = two_by_two();
        verdict.reported(2, Ok(Vec::new()));
        assert_eq!(verdict.ended(1, exit(0)), Next::WaitFor(SETTLE));
        verdict.reported(3, own("the last word"));
        assert_eq!(failed(verdict), (3, "the last word".into()));
        // A good one that comes late leaves the other process alone.
        let mut verdict = two_by_two();
        verdict.reported(2, Ok(Vec::new()));
        assert_eq!(verdict.ended(1, exit(0)), Next::WaitFor(SETTLE));
        assert_eq!(verdict.reported(3, Ok(Vec::new())), Next::Wait);
        let mut verdict = two_by_two();
        verdict.reported(2, Ok(Vec::new()));
        verdict.ended(1, exit(0));
        assert_eq!(failed(verdict).0, 3);
    }

    #[test]
    fn an_end_that_follows_from_a_report_adds_nothing() {
        let mut verdict = two_by_two();
        verdict.ended(0, exit(1));
        verdict.reported(1, own("disk full"));
        assert_eq!(failed(verdict), (1, "disk full".into()));
    }

    #[test]
    fn a_crash_after_all_went_well_is_a_failure_too() {
        let mut verdict = two_by_two();
        for rank in 0..4 {
            verdict.reported(rank, Ok(Vec::new()));
        }
        let crash = Exit {
            signal: Some(11),
            last_words: "corrupted heap".into(),
            ..Exit::default()
        };
        assert_eq!(verdict.ended(1, crash), Next::Stop);
        let (rank, message) = failed(verdict);
        assert_eq!(rank, 2);
        assert!(
            message.contains("SIGSEGV") && message.contains("corrupted heap"),
            "{message}"
        );
    }
}
