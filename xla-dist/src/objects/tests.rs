//! Exchanges among threads: with one launch and a store in the process, as replica threads have
//! them, and each with a launch and a client of its own, as processes do.

use crate::group::ProcessGroup;
use crate::world::World;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};
use xla_core::{Device, Error, Result};
use xla_runtime::context::{Launch, Mode, ReplicaContext, Standing, Topology};
use xla_store::{ConnectOptions, Server, ServerOptions, Store};

const LONG: Duration = Duration::from_secs(60);

/// Runs `f` on every rank of a world.
fn world<T: Send + Debug>(
    launches: &[Arc<Launch>],
    stores: &[Store],
    f: impl Fn(&ProcessGroup) -> T + Sync,
) -> Vec<T> {
    let n = launches.len();
    let run = |rank: usize| {
        let device = Device::new(0);
        let context = ReplicaContext::new(Arc::clone(&launches[rank]), device, rank);
        let _entered = context.enter();
        let world = World::within(&launches[rank], stores[rank].clone());
        f(&ProcessGroup::new(
            &context,
            world,
            (0, 0),
            (0..n).collect(),
            None,
        ))
    };
    std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = (0..n).map(|rank| scope.spawn(move || run(rank))).collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    })
}

/// The same with a deadline, among the threads of a process and among processes; afterwards the
/// store is as empty as before.
fn everywhere<T: Send + Debug>(
    n: usize,
    deadline: Duration,
    f: impl Fn(&ProcessGroup) -> T + Sync,
    check: impl Fn(Vec<T>),
) {
    let store = Store::local().prefixed("threads");
    let launch = Launch::new(Mode::Threads, n, deadline);
    check(world(&vec![launch; n], &vec![store.clone(); n], &f));
    assert_eq!(store.keys("").unwrap(), [""; 0]);

    let server = Server::bind(&ServerOptions::default()).unwrap();
    let address = server.address().to_string();
    let launches: Vec<_> = (0..n)
        .map(|process_index| {
            let topology = Topology {
                processes: n,
                process_index,
                replicas: 1,
            };
            Launch::spanning(Mode::Processes, topology, deadline)
        })
        .collect();
    let connect = || Store::connect(&address, &ConnectOptions::default()).unwrap();
    let stores: Vec<_> = (0..n).map(|_| connect()).collect();
    check(world(&launches, &stores, &f));
    assert_eq!(stores[0].keys("").unwrap(), [""; 0]);
}

#[derive(Debug, Clone, Serialize, Deserialize)]
struct Report {
    rank: usize,
    loss: f32,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    note: Option<String>,
    best: Score,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Score {
    None,
    Some(Vec<i64>),
}

fn report(rank: usize) -> Report {
    Report {
        rank,
        loss: if rank == 1 { f32::NAN } else { -0.0 },
        note: (rank == 2).then(|| "späť".to_owned()),
        best: match rank {
            0 => Score::None,
            _ => Score::Some(vec![i64::MIN, rank as i64]),
        },
    }
}

#[test]
fn every_object_reaches_whom_it_should() {
    let run = |group: &ProcessGroup| -> Result<()> {
        let rank = group.rank();
        for (from, came) in group.all_gather_object(&report(rank))?.iter().enumerate() {
            let sent = report(from);
            assert_eq!(
                (came.rank, &came.note, &came.best),
                (from, &sent.note, &sent.best)
            );
            assert_eq!(came.loss.to_bits(), sent.loss.to_bits());
        }
        let gathered = group.gather_object(&(rank as u64 * 10), 2)?;
        assert_eq!(gathered, (rank == 2).then(|| vec![0, 10, 20, 30]));
        let own = format!("from {rank}");
        assert_eq!(group.broadcast_object(Some(&own), 3)?, "from 3");
        assert_eq!(
            group.broadcast_object((rank == 1).then_some(&own), 1)?,
            "from 1"
        );
        let mut list = [rank, rank + 1];
        group.broadcast_object_list(&mut list, 0)?;
        assert_eq!(list, [0, 1]);
        let parts = ["a", "b", "c", "d"].map(String::from);
        let part = group.scatter_object((rank == 3).then_some(&parts[..]), 3)?;
        assert_eq!(part, parts[rank]);
        // Many in a row: no exchange meets another's.
        for i in 0..20 {
            assert_eq!(group.all_gather_object(&(i, rank))?[2], (i, 2));
        }
        Ok(())
    };
    everywhere(4, LONG, run, |results| {
        results.into_iter().for_each(Result::unwrap);
    });
}

/// Two ranks of which the second does something else than to take part.
fn with_a_stranger(what: impl Fn(&Launch) + Sync, check: impl Fn(Error)) {
    let launch = Launch::new(Mode::Threads, 2, LONG);
    let store = Store::local();
    let start = Instant::now();
    let results = world(
        &vec![launch.clone(); 2],
        &vec![store; 2],
        |group| match group.rank() {
            0 => group.all_gather_object(&1_i32).map(drop),
            _ => {
                std::thread::sleep(Duration::from_millis(100));
                what(&launch);
                Ok(())
            }
        },
    );
    assert!(start.elapsed() < Duration::from_secs(10));
    for result in results.into_iter().take(1) {
        check(result.unwrap_err());
    }
}

#[test]
fn a_rank_that_ends_is_noticed_at_once() {
    with_a_stranger(
        |launch| launch.leave(1, Standing::Left),
        |error| {
            assert!(
                matches!(error, Error::ReplicaLeft { rank: 1, .. }),
                "{error}"
            )
        },
    );
    with_a_stranger(
        |launch| launch.leave(1, Standing::Failed("loss is NaN".into())),
        |error| match error {
            Error::ReplicaFailed { rank: 1, message } => assert_eq!(message, "loss is NaN"),
            other => panic!("{other}"),
        },
    );
}

#[test]
fn a_rank_may_end_when_it_has_left_its_object() {
    let launch = Launch::new(Mode::Threads, 2, LONG);
    let store = Store::local();
    let results = world(&vec![launch.clone(); 2], &vec![store; 2], |group| {
        if group.rank() == 1 {
            let left = group.gather_object(&7, 0);
            launch.leave(1, Standing::Left);
            return left;
        }
        while launch.standings()[1] == Standing::Running {
            std::thread::yield_now();
        }
        group.gather_object(&6, 0)
    });
    assert_eq!(results[0].as_ref().unwrap(), &Some(vec![6, 7]));
}

#[test]
fn what_does_not_fit_together_is_an_error_that_says_how() {
    let fails = |results: Vec<Result<()>>, text: &str| {
        let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
        assert!(
            errors.iter().any(|e| e.to_string().contains(text)),
            "{text}: {errors:?}"
        );
    };
    let run = |f: &(dyn Fn(&ProcessGroup) -> Result<()> + Sync), text: &str| {
        let launch = Launch::new(Mode::Threads, 2, Duration::from_secs(2));
        fails(world(&vec![launch; 2], &vec![Store::local(); 2], f), text);
    };
    // Each world has a store of its own, so nothing comes: the deadline names who is missing.
    let launches = [0, 1].map(|_| Launch::new(Mode::Threads, 2, Duration::from_millis(300)));
    let alone = world(&launches, &[Store::local(), Store::local()], |group| {
        group.all_gather_object(&0).map(drop)
    });
    fails(alone, "all_gather_object that rank 1 did not come to");
    run(
        &|group| match group.rank() {
            0 => group.all_gather_object(&0).map(drop),
            _ => group.gather_object(&0, 0).map(drop),
        },
        "rank 0 recorded all_gather_object (at xla-dist/src/objects/tests.rs:",
    );
    run(
        &|group| match group.rank() {
            0 => group.all_gather_object(&0).map(drop),
            _ => group.all_gather_object(&"text".to_owned()).map(drop),
        },
        "expected from rank 0 a alloc::string::String",
    );
    run(
        &|group| group.broadcast_object(None::<&i32>, 1).map(drop),
        "a value on rank 1, the source, got None",
    );
    run(
        &|group| group.scatter_object(Some(&[1, 2, 3][..]), 0).map(drop),
        "expected 2 on rank 0, one for each member, got 3",
    );
    run(
        &|group| group.broadcast_object_list(&mut vec![0; group.rank() + 1], 0),
        "expected 1 as on rank 0, got 2",
    );
    run(
        &|group| group.gather_object(&0, 5).map(drop),
        "dst: expected one of the group's ranks [0, 1], got 5",
    );
}
