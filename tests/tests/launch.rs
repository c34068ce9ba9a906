//! Replicas that fail, and threads that belong to none.

use std::time::{Duration, Instant};
use tests::with_devices;
use xla::dist::{self, ReduceOp};
use xla::{Error, Launcher, Tensor};

/// Waits in a collective as soon as it is called.
fn collective() -> xla::Result<f32> {
    dist::all_reduce(&Tensor::ones([2], ())?, ReduceOp::Sum)?
        .sum((), false)?
        .item()
}

/// Launches four replicas of which one ends by `end` while the others are in a collective, and
/// checks that this is the launch's error, soon, and that the process can go on.
fn one_ends(end: impl Fn() -> Result<(), String> + Sync, message: &str) {
    with_devices(4, || {
        let start = Instant::now();
        let failed = xla::launch(|rank| {
            dist::init_process_group("xla", "xla://").map_err(|e| e.to_string())?;
            if rank == 2 {
                std::thread::sleep(Duration::from_millis(200));
                return end();
            }
            match collective() {
                Err(Error::ReplicaFailed {
                    rank: 2,
                    message: theirs,
                }) => {
                    assert!(theirs.starts_with(message), "{theirs}");
                    Err("a consequence".to_string())
                }
                other => panic!("{other:?}"),
            }
        });
        assert!(start.elapsed() < Duration::from_secs(10));
        match failed {
            Err(Error::ReplicaFailed {
                rank: 2,
                message: theirs,
            }) => assert!(theirs.starts_with(message), "{theirs}"),
            other => panic!("{other:?}"),
        }
        let again = Launcher::new().run(|_| {
            dist::init_process_group("xla", "xla://")?;
            collective()
        });
        assert_eq!(again.unwrap(), [8.0; 4]);
    });
}

#[test]
fn an_error_of_one_replica_is_the_launchs() {
    one_ends(|| Err("disk full".into()), "disk full");
}

#[test]
fn a_panic_of_one_replica_is_the_launchs() {
    one_ends(
        || panic!("out of ideas"),
        "panicked: out of ideas (at tests/tests/launch.rs:",
    );
}

#[test]
fn what_others_say_of_a_failure_hides_it_not() {
    with_devices(4, || {
        for _ in 0..20 {
            let failed = xla::launch(|rank| {
                dist::init_process_group("xla", "xla://")?;
                if rank == 3 {
                    return Err(Box::<dyn std::error::Error + Send + Sync>::from(
                        "disk full",
                    ));
                }
                collective()?;
                Ok(())
            });
            match failed {
                Err(Error::ReplicaFailed { rank: 3, message }) => assert_eq!(message, "disk full"),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_panic_in_debug_mode_is_an_error_too() {
    with_devices(1, || {
        let failed = Launcher::new()
            .debug_single_process(true)
            .run(|_| -> xla::Result<()> {
                panic!("out of ideas");
            });
        assert!(
            matches!(failed, Err(Error::ReplicaFailed { rank: 0, .. })),
            "{failed:?}"
        );
        assert_eq!(collective_of_one(), 2.0);
    });
}

fn collective_of_one() -> f32 {
    dist::init_process_group("xla", "xla://").unwrap();
    collective().unwrap()
}

#[test]
fn a_replica_that_returns_early_is_named() {
    with_devices(4, || {
        let ended = Launcher::new().run(|rank| {
            dist::init_process_group("xla", "xla://")?;
            if rank == 1 {
                return Ok(None);
            }
            Ok::<_, Error>(collective().err())
        });
        for (rank, error) in ended.unwrap().into_iter().enumerate() {
            match error {
                None => assert_eq!(rank, 1),
                Some(Error::ReplicaLeft { rank: 1, .. }) => assert_ne!(rank, 1),
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_replica_that_never_comes_is_named_at_the_deadline() {
    with_devices(2, || {
        let ended = Launcher::new()
            .deadline(Duration::from_millis(500))
            .run(|rank| {
                dist::init_process_group("xla", "xla://")?;
                if rank == 1 {
                    std::thread::sleep(Duration::from_secs(2));
                    return Ok(None);
                }
                Ok::<_, Error>(collective().err())
            });
        match ended.unwrap().swap_remove(0) {
            Some(Error::Deadline { what, .. }) => assert!(what.contains("[1]"), "{what}"),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_launch_inside_a_launch_is_an_error() {
    with_devices(2, || {
        for debug in [false, true] {
            let inner = Launcher::new()
                .debug_single_process(debug)
                .run(|_| Ok::<_, Error>(xla::launch(|_| Ok::<_, Error>(())).err()));
            for error in inner.unwrap() {
                assert!(matches!(error, Some(Error::Launch { .. })), "{error:?}");
            }
        }
    });
}

#[test]
fn a_thread_joins_a_replica_by_its_context() {
    with_devices(2, || {
        let seen = Launcher::new().run(|_| {
            let context = xla::context()?;
            let (without, with) = std::thread::scope(|scope| {
                let without = scope.spawn(|| (xla::device().err(), dist::get_rank().err()));
                let with = scope.spawn(|| {
                    let _replica = context.enter();
                    xla::device().and_then(|d| Ok((d.ordinal().unwrap(), dist::get_rank()?)))
                });
                (without.join().unwrap(), with.join().unwrap())
            });
            assert!(matches!(
                without.0,
                Some(Error::NoReplicaContext { what: "device" })
            ));
            assert!(matches!(without.1, Some(Error::NoReplicaContext { .. })));
            with
        });
        assert_eq!(seen.unwrap(), [(0, 0), (1, 1)]);
    });
}

#[test]
fn replicas_count_in_the_callers_scope() {
    with_devices(2, || {
        let scope = xla::metrics::Scope::new();
        let sums = Launcher::new().run(|_| {
            dist::init_process_group("xla", "xla://")?;
            collective()
        });
        assert_eq!(sums.unwrap(), [4.0; 2]);
        assert_eq!((scope.compiles(), scope.executions()), (1, 2));
    });
}
