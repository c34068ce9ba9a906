//! Gangs of 1 to 8 members on threads, with made-up proposals.

use super::agree::tests::Fake;
use super::*;
use std::thread;
use std::time::{Duration, Instant};
use xla_runtime::context::Mode;

const SOON: Duration = Duration::from_secs(20);

/// Runs one closure a member, each on its thread; a member whose closure returns has left, one
/// that returns `None` has failed with "out of paper".
fn gang<T: Send>(
    size: usize,
    deadline: Duration,
    member: impl Fn(&ThreadGang, usize) -> Option<T> + Sync,
) -> Vec<Option<T>> {
    let launch = Launch::new(Mode::Threads, size, deadline);
    let shared = Shared::new(
        Arc::clone(&launch),
        (0..size).collect(),
        (0..size).collect(),
    );
    thread::scope(|scope| {
        let threads: Vec<_> = (0..size)
            .map(|rank| {
                let (shared, launch, member) = (Arc::clone(&shared), &launch, &member);
                scope.spawn(move || {
                    let value = member(&ThreadGang::new(shared, rank), rank);
                    let failed = || Standing::Failed("out of paper".into());
                    launch.leave(rank, value.as_ref().map_or_else(failed, |_| Standing::Left));
                    value
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

const STEP: [&str; 3] = ["parameter x", "mul", "all_reduce"];

#[test]
fn many_steps_in_step_with_one_fresh_launch_id_each() {
    for size in [1, 2, 4, 8] {
        let ids = gang(size, SOON, |gang, rank| {
            let mut ids = Vec::new();
            for step in 0..50_u32 {
                // Every rank needs a value of its own, and one rank is ahead now and then.
                let mut fake = Fake {
                    live: vec![2, rank as u32 % 2],
                    ..Fake::of(&STEP)
                };
                if step as usize % size == rank {
                    fake.names.push("exp");
                }
                let expected = if size == 1 {
                    Settlement::Run {
                        len: 4,
                        live: vec![0, 2],
                        donors: vec![],
                    }
                } else {
                    Settlement::Run {
                        len: 3,
                        live: vec![0, 1, 2],
                        donors: vec![],
                    }
                };
                assert_eq!(gang.settle(fake.share()).unwrap(), expected);
                ids.push(gang.vote(Ok(())).unwrap().launch_id);
            }
            Some(ids)
        });
        let first = ids[0].clone().unwrap();
        assert!(ids.iter().all(|other| other.as_ref() == Some(&first)));
        let mut distinct = first.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(distinct.len(), 50);
        assert!(!first.contains(&0));
    }
}

#[test]
fn divergence_is_the_same_error_on_every_rank_and_stays() {
    for size in [2, 4, 8] {
        let errors = gang(size, SOON, |gang, rank| {
            let other = ["parameter x", "div", "all_reduce"];
            let names = if rank == size - 1 { &other } else { &STEP };
            let first = gang.settle(Fake::of(names).share()).unwrap_err();
            let again = gang.settle(Fake::of(&STEP).share()).unwrap_err();
            assert_eq!(first.to_string(), again.to_string());
            Some(first)
        });
        for error in errors {
            match error.unwrap() {
                Error::Divergence {
                    index: 1,
                    rank,
                    left,
                    other_rank: 0,
                    right,
                } => {
                    assert_eq!(rank, size - 1);
                    assert_eq!(left, "div f32[2] at train.rs:7");
                    assert_eq!(right, "mul f32[2] at train.rs:7");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn an_early_reader_is_caught_up_with() {
    for size in [2, 4, 8] {
        gang(size, SOON, |gang, rank| {
            let rest = ["parameter product", "all_reduce"];
            let early: &[&str] = &STEP[..2];
            if rank == 0 {
                let proposal = Fake::of(&rest).after(&[early]).share();
                assert!(matches!(
                    gang.settle(proposal),
                    Ok(Settlement::Run { len: 2, .. })
                ));
            } else {
                let flush = gang.settle(Fake::of(&STEP).share()).unwrap();
                assert_eq!(flush, Settlement::FlushFirst { len: 2 });
                let again = gang.settle(Fake::of(&rest).after(&[early]).share());
                assert!(matches!(again, Ok(Settlement::Run { len: 2, .. })));
            }
            gang.vote(Ok(())).unwrap();
            Some(())
        });
    }
}

#[test]
fn a_member_that_returns_or_fails_wakes_the_others_at_once() {
    for fails in [false, true] {
        let start = Instant::now();
        let errors = gang(4, SOON, |gang, rank| {
            if rank == 2 {
                thread::sleep(Duration::from_millis(50));
                return if fails { None } else { Some(None) };
            }
            Some(gang.settle(Fake::of(&STEP).share()).err())
        });
        assert!(start.elapsed() < SOON / 2);
        for rank in [0, 1, 3] {
            match errors[rank].clone().flatten() {
                Some(Error::ReplicaLeft { rank: 2, .. }) if !fails => {}
                Some(Error::ReplicaFailed { rank: 2, message }) if fails => {
                    assert_eq!(message, "out of paper");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}

#[test]
fn a_member_may_leave_as_soon_as_it_has_its_answer() {
    // Rank 0 leaves while the others may not have fetched their launch id yet.
    for _ in 0..200 {
        let ids = gang(4, SOON, |gang, _| {
            gang.settle(Fake::of(&STEP).share()).unwrap();
            Some(gang.vote(Ok(())).unwrap().launch_id)
        });
        assert!(ids.iter().all(|id| *id == ids[0]));
    }
}

#[test]
fn a_member_that_cannot_run_keeps_its_error_and_the_others_hear_of_it() {
    let errors = gang(4, SOON, |gang, rank| {
        gang.settle(Fake::of(&STEP).share()).unwrap();
        let ready = if rank == 1 {
            Err(Error::BufferDeleted { what: "execute" })
        } else {
            Ok(())
        };
        let error = gang.vote(ready).err().unwrap();
        let later = gang.settle(Fake::of(&STEP).share()).unwrap_err();
        assert!(
            matches!(later, Error::ReplicaFailed { rank: 1, .. }),
            "{later:?}"
        );
        Some(error)
    });
    for (rank, error) in errors.into_iter().enumerate() {
        match error.unwrap() {
            Error::BufferDeleted { what: "execute" } => assert_eq!(rank, 1),
            Error::ReplicaFailed { rank: 1, message } => {
                assert_ne!(rank, 1);
                assert!(message.contains("donated"), "{message}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_deadline_names_who_did_not_come() {
    let errors = gang(4, Duration::from_millis(200), |gang, rank| {
        if rank == 3 {
            // Comes too late: the gang has ended, and it hears why at once.
            thread::sleep(Duration::from_millis(600));
        }
        Some(gang.settle(Fake::of(&STEP).share()).unwrap_err())
    });
    for error in errors {
        match error.unwrap() {
            Error::Deadline { what, .. } => assert!(what.contains("[3]"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_vote_without_settling_is_an_error_for_all() {
    let errors = gang(2, SOON, |gang, rank| {
        Some(if rank == 0 {
            gang.settle(Fake::of(&STEP).share()).unwrap_err()
        } else {
            thread::sleep(Duration::from_millis(50));
            gang.vote(Ok(())).err().unwrap()
        })
    });
    assert!(
        errors
            .iter()
            .all(|e| matches!(e, Some(Error::Internal { .. }))),
        "{errors:?}"
    );
}
