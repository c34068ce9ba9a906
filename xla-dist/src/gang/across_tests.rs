//! Gangs of processes that are simulated in one: each has a launch of its own, and messages take
//! their way through a thread. Nothing is executed: what is tested is who starts what, and what
//! errors whom.

use super::agree::tests::Fake;
use super::*;
use crate::transport::{Failure, Transport, Work};
use crossbeam::channel::{Sender, unbounded};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};
use xla_lazy::Outcome;
use xla_runtime::context::{Mode, Topology};

const SOON: Duration = Duration::from_secs(20);

/// The outgoing side of one process.
struct Wire(Vec<Sender<(usize, Message)>>, usize);

impl Control for Wire {
    fn tell(&self, message: &Message) {
        // As it would travel.
        let bytes = message.encode().unwrap();
        for (to, wire) in self.0.iter().enumerate() {
            if to != self.1 {
                let _ = wire.send((self.1, Message::decode(&bytes).unwrap()));
            }
        }
    }
}

/// Connections that carry nothing: only their end is looked at.
#[derive(Default)]
struct Connections(OnceLock<String>);

impl Transport for Connections {
    fn index(&self) -> usize {
        0
    }

    fn call<'env>(&self, _: Instant, _: &mut Work<'_, 'env>) -> Result<(), Failure> {
        Err(Failure::Aborted("nothing is connected".into()))
    }

    fn abort(&self, reason: &str) {
        let _ = self.0.set(reason.to_owned());
    }
}

struct Process {
    launch: Arc<Launch>,
    gang: Arc<Shared>,
    wire: Arc<Wire>,
    connections: Arc<Connections>,
}

/// So many processes of so many replicas each, all in one group.
fn world(processes: usize, replicas: usize, deadline: Duration) -> Vec<Process> {
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..processes).map(|_| unbounded()).unzip();
    let ranks: Vec<usize> = (0..processes * replicas).collect();
    let mut all = Vec::new();
    for (own, receiver) in receivers.into_iter().enumerate() {
        let topology = Topology {
            processes,
            process_index: own,
            replicas,
        };
        let launch = Launch::spanning(Mode::External, topology, deadline);
        let wire = Arc::new(Wire(senders.clone(), own));
        let layout = Layout::new(&ranks, |rank| rank / replicas, own).unwrap();
        let connections = Arc::new(Connections::default());
        let across = Across::new(7, Arc::new(layout), wire.clone(), connections.clone());
        let gang = Shared::spanning(
            Arc::clone(&launch),
            topology.local_ranks().collect(),
            (0..replicas).collect(),
            across,
        );
        let (heard, of) = (Arc::downgrade(&gang), Arc::downgrade(&launch));
        thread::spawn(move || {
            for (from, message) in receiver {
                let (Some(gang), Some(launch)) = (heard.upgrade(), of.upgrade()) else {
                    return;
                };
                match message {
                    Message::Group { group: 7, news } => gang.hear(from, news),
                    Message::Group { .. } => {}
                    Message::Hello(_) | Message::Departed { .. } => {}
                    Message::Ended { rank, failure } => {
                        launch.leave(rank, failure.map_or(Standing::Left, Standing::Failed))
                    }
                }
            }
        });
        all.push(Process {
            launch,
            gang,
            wire,
            connections,
        });
    }
    all
}

/// Runs one closure a replica, each on its thread; one that returns `None` has failed.
fn run<T: Send>(
    all: &[Process],
    member: impl Fn(&ThreadGang, usize) -> Option<T> + Sync,
) -> Vec<Option<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = all
            .iter()
            .flat_map(|process| {
                process
                    .launch
                    .local_ranks()
                    .map(move |rank| (process, rank))
            })
            .map(|(process, rank)| {
                let member = &member;
                scope.spawn(move || {
                    let local = rank - process.launch.local_ranks().start;
                    let gang = ThreadGang::new(Arc::clone(&process.gang), local);
                    let value = member(&gang, rank);
                    let standing = match value {
                        Some(_) => Standing::Left,
                        None => Standing::Failed("out of paper".into()),
                    };
                    process.launch.leave(rank, standing);
                    process.wire.tell(&Message::Ended {
                        rank,
                        failure: value.is_none().then(|| "out of paper".into()),
                    });
                    value
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// One program: settled, voted for, and over at once.
fn step(gang: &ThreadGang, names: &[&'static str]) -> Result<Start> {
    gang.settle(Fake::of(names).share())?;
    gang.vote(Ok(()))
}

fn land(start: &Start) -> Arc<dyn Outcome> {
    let outcome = start.outcome.clone().unwrap();
    outcome.over();
    outcome
}

#[test]
fn programs_may_be_cut_differently_in_each_process() {
    for (processes, replicas) in [(2, 1), (2, 2), (4, 1), (3, 2)] {
        let all = world(processes, replicas, SOON);
        run(&all, |gang, rank| {
            for _ in 0..20 {
                // The first process reads its loss before the gradients are reduced.
                let cuts: &[&[&'static str]] = match rank / replicas {
                    0 => &[
                        &["x", "all_reduce loss"],
                        &["y", "all_reduce a", "all_reduce b"],
                    ],
                    1 => &[&["x", "all_reduce loss", "y", "all_reduce a", "all_reduce b"]],
                    _ => &[
                        &["x", "all_reduce loss", "y", "all_reduce a"],
                        &["all_reduce b"],
                    ],
                };
                for names in cuts {
                    let outcome = land(&step(gang, names).unwrap());
                    assert!(!matches!(outcome.poll(), Some(Err(_))));
                }
            }
            Some(())
        });
        for process in &all {
            assert_eq!(process.connections.0.get(), None);
        }
    }
}

#[test]
fn divergence_at_first_use_is_one_error_everywhere_and_nothing_is_started() {
    for (processes, replicas) in [(2, 1), (2, 2), (4, 1)] {
        let all = world(processes, replicas, SOON);
        let errors = run(&all, |gang, rank| {
            let last = rank / replicas == processes - 1;
            let names = [
                "x",
                if last {
                    "all_reduce max"
                } else {
                    "all_reduce sum"
                },
            ];
            let first = step(gang, &names).err().unwrap();
            let again = step(gang, &names).err().unwrap();
            assert_eq!(first.to_string(), again.to_string());
            Some(first)
        });
        for error in errors {
            match error.unwrap() {
                Error::Divergence {
                    index: 0,
                    rank,
                    left,
                    other_rank,
                    right,
                } => {
                    assert!(rank > other_rank);
                    assert_eq!(rank, (processes - 1) * replicas);
                    assert_eq!(left, "all_reduce max f32[2] at train.rs:7");
                    assert_eq!(right, "all_reduce sum f32[2] at train.rs:7");
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(
            all.iter()
                .all(|process| process.connections.0.get().is_some())
        );
    }
}

#[test]
fn divergence_in_a_known_program_ends_what_is_started() {
    let all = world(2, 1, SOON);
    let errors = run(&all, |gang, rank| {
        let (a, b) = (["all_reduce a"], ["all_reduce b"]);
        land(&step(gang, &a).unwrap());
        land(&step(gang, &b).unwrap());
        // Both are known by now, so neither waits before it starts.
        let started = step(gang, if rank == 0 { &a } else { &b });
        let outcome = match started {
            Err(error) => return Some(error),
            Ok(start) => start.outcome.unwrap(),
        };
        let begin = Instant::now();
        loop {
            match outcome.poll() {
                Some(Err(error)) => return Some(error),
                Some(Ok(())) => return None,
                None => assert!(begin.elapsed() < SOON),
            }
            thread::yield_now();
        }
    });
    for error in errors {
        let Some(Error::Divergence {
            index: 2, rank: 1, ..
        }) = error
        else {
            panic!("{error:?}");
        };
    }
}

#[test]
fn who_waits_for_a_replica_of_another_process_hears_of_its_end() {
    for fails in [false, true] {
        let all = world(2, 2, SOON);
        let begin = Instant::now();
        let errors = run(&all, |gang, rank| {
            if rank == 3 {
                thread::sleep(Duration::from_millis(50));
                return if fails { None } else { Some(None) };
            }
            Some(step(gang, &["all_reduce"]).err())
        });
        assert!(begin.elapsed() < SOON / 2);
        for error in &errors[..3] {
            match error.clone().flatten() {
                Some(Error::ReplicaLeft { rank: 3, .. }) if !fails => {}
                Some(Error::ReplicaFailed { rank: 3, message }) if fails => {
                    assert_eq!(message, "out of paper");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn the_end_of_a_replica_ends_what_still_needs_it_and_nothing_else() {
    let all = world(2, 1, SOON);
    let ends = run(&all, |gang, rank| {
        land(&step(gang, &["all_reduce"]).unwrap());
        let done = land(&step(gang, &["all_reduce"]).unwrap());
        if rank == 1 {
            return Some(None);
        }
        // A third that the other process does not come to: this one does not wait to start it.
        let started = step(gang, &["all_reduce"]);
        let error = match started {
            Err(error) => error,
            Ok(start) => {
                let outcome = start.outcome.unwrap();
                let begin = Instant::now();
                loop {
                    if let Some(ended) = outcome.poll() {
                        break ended.unwrap_err();
                    }
                    assert!(begin.elapsed() < SOON);
                    thread::yield_now();
                }
            }
        };
        assert_eq!(done.poll().unwrap().err().map(|e| e.to_string()), None);
        Some(Some(error))
    });
    let Some(Some(Error::ReplicaLeft { rank: 1, .. })) = &ends[0] else {
        panic!("{ends:?}");
    };
}

#[test]
fn the_deadline_names_the_ranks_that_did_not_come() {
    let all = world(2, 2, Duration::from_millis(500));
    let errors = run(&all, |gang, rank| {
        if rank / 2 == 1 {
            thread::sleep(Duration::from_millis(3000));
        }
        Some(step(gang, &["all_reduce"]).err().unwrap())
    });
    for error in errors {
        match error.unwrap() {
            Error::Deadline { what, .. } => assert!(what.contains("[2, 3]"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_refused_vote_is_an_error_in_every_process() {
    let all = world(2, 2, SOON);
    let errors = run(&all, |gang, rank| {
        // The other process may hear of the refusal before it has settled.
        if let Err(error) = gang.settle(Fake::of(&["all_reduce"]).share()) {
            return Some(error);
        }
        let ready = match rank {
            1 => Err(Error::BufferDeleted { what: "execute" }),
            _ => Ok(()),
        };
        Some(gang.vote(ready).err().unwrap())
    });
    for (rank, error) in errors.into_iter().enumerate() {
        match error.unwrap() {
            Error::BufferDeleted { .. } => assert_eq!(rank, 1),
            Error::ReplicaFailed { rank: 1, .. } => assert_ne!(rank, 1),
            other => panic!("{other:?}"),
        }
    }
}
