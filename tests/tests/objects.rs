//! Values of the host between replicas, with tensors' collectives in between.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};
use tests::{replicas, with_devices};
use xla::dist::{self, ReduceOp};
use xla::{Error, Launcher, Tensor};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Metrics {
    name: String,
    correct: u64,
    loss: Option<f64>,
}

#[test]
fn metrics_of_all_replicas_are_reduced_on_each() {
    with_devices(4, || {
        let reduced = replicas(4, |rank| {
            assert_eq!(dist::is_master(), rank == 0);
            dist::master_print!("printed once, by rank {rank}");
            let own = Metrics {
                name: format!("rank {rank}"),
                correct: 10 * rank as u64,
                loss: (rank % 2 == 0).then_some(0.1 * rank as f64),
            };
            let all = dist::all_gather_object(&own)?;
            assert_eq!(all[rank], own);
            // A collective of tensors in between: its own order and the objects' are two.
            let sum = dist::all_reduce(&Tensor::full((), rank as f32, ())?, ReduceOp::Sum)?;
            let correct =
                dist::mesh_reduce("correct", &own.correct, |all| all.iter().sum::<u64>())?;
            Ok((all, sum.item::<f32>()?, correct))
        });
        for (all, sum, correct) in &reduced {
            assert_eq!(all, &reduced[0].0);
            assert_eq!((*sum, *correct), (6.0, 60));
        }
        assert_eq!(reduced[0].0[2].name, "rank 2");
        assert_eq!(reduced[0].0[3].loss, None);
    });
}

#[test]
fn groups_exchange_apart_from_each_other() {
    with_devices(4, || {
        let came = replicas(4, |rank| {
            let parts = [vec![0, 2], vec![1, 3]];
            let (Some(first), _) = dist::new_subgroups_by_enumeration(&parts)? else {
                unreachable!("each rank is in one of them");
            };
            // The same ranks once more, and a group of some.
            let (Some(second), _) = dist::new_subgroups_by_enumeration(&parts)? else {
                unreachable!("each rank is in one of them");
            };
            let some = dist::new_group(&[1, 2, 3])?;
            let in_second = second.all_gather_object(&(10 * rank))?;
            let in_first = first.broadcast_object(Some(&rank), 2 + rank % 2)?;
            let in_some = match rank {
                0 => some
                    .all_gather_object(&rank)
                    .map(|_| 0)
                    .unwrap_or(usize::MAX),
                _ => some.scatter_object((rank == 3).then_some(&[7, 8, 9][..]), 3)?,
            };
            Ok((in_second, in_first, in_some))
        });
        let expected = [
            (vec![0, 20], 2, usize::MAX),
            (vec![10, 30], 3, 7),
            (vec![0, 20], 2, 8),
            (vec![10, 30], 3, 9),
        ];
        assert_eq!(came, expected);
    });
}

#[test]
fn a_replica_that_fails_or_returns_ends_the_others_wait() {
    with_devices(2, || {
        let run = |f: fn(usize) -> xla::Result<()>| {
            let start = Instant::now();
            let ended = Launcher::new().devices(2).run(|rank| {
                dist::init_process_group("xla", "xla://")?;
                f(rank)
            });
            assert!(start.elapsed() < Duration::from_secs(20));
            ended.unwrap_err().to_string()
        };
        let failed = run(|rank| match rank {
            0 => dist::all_gather_object(&rank).map(drop),
            _ => Err(Error::argument("data", "path", "a folder", "nothing")),
        });
        assert!(failed.contains("path: expected a folder"), "{failed}");
        let left = run(|rank| match rank {
            0 => dist::all_gather_object(&rank).map(drop),
            _ => Ok(()),
        });
        assert!(
            left.contains("all_gather_object: rank 1 has left"),
            "{left}"
        );
        let differ = run(|rank| match rank {
            0 => dist::mesh_reduce("loss", &rank, drop),
            _ => dist::mesh_reduce("accuracy", &rank, drop),
        });
        assert!(differ.contains(r#"mesh_reduce("loss")"#), "{differ}");
        assert!(differ.contains("objects.rs:"), "{differ}");
    });
}
