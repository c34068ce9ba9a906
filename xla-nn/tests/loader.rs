//! The data loader: order, errors, and what becomes of its thread.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use xla_core::{Device, Error, Literal, Result};
use xla_lazy::Tensor;
use xla_nn::data::{DataLoader, Dataset, Sample};
use xla_runtime::context::{ActiveLaunch, Launch, Mode, ReplicaContext};
use xla_runtime::metrics::{Counter, Scope};

/// Sample `i` is `[i, i + 0.5]` with the target `10 i`.
struct Numbers {
    len: usize,
    reads: AtomicUsize,
    before: fn(usize) -> Result<()>,
}

impl Numbers {
    fn new(len: usize) -> Numbers {
        Numbers {
            len,
            reads: AtomicUsize::new(0),
            before: |_| Ok(()),
        }
    }

    fn before(self, before: fn(usize) -> Result<()>) -> Numbers {
        Numbers { before, ..self }
    }
}

impl Dataset for Numbers {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<Sample> {
        self.reads.fetch_add(1, Ordering::SeqCst);
        (self.before)(index)?;
        let x = index as f32;
        let target = Literal::scalar(10 * index as i64);
        Ok((Literal::from_vec(vec![x, x + 0.5], [2])?, target))
    }
}

fn targets(batch: Result<(Tensor, Tensor)>) -> Vec<i64> {
    batch.unwrap().1.to_vec().unwrap()
}

fn epoch(loader: &DataLoader) -> Vec<Vec<i64>> {
    loader.iter().map(targets).collect()
}

/// A replica whose waits end after `deadline`.
fn replica(deadline: Duration) -> Arc<ReplicaContext> {
    ReplicaContext::new(Launch::new(Mode::Debug, 1, deadline), Device::new(0), 0)
}

#[test]
fn batches_stack_samples_in_order() {
    let loader = DataLoader::new(Numbers::new(5)).batch_size(2);
    assert_eq!(loader.len(), 3);
    let batches: Vec<_> = loader.iter().collect::<Result<_>>().unwrap();
    let (samples, labels) = &batches[1];
    assert_eq!(samples.dims(), [2, 2]);
    assert_eq!(samples.to_vec::<f32>().unwrap(), [2.0, 2.5, 3.0, 3.5]);
    assert_eq!(labels.to_vec::<i64>().unwrap(), [20, 30]);
    assert_eq!(batches[2].0.dims(), [1, 2]);
    assert_eq!(batches[2].1.to_vec::<i64>().unwrap(), [40]);
}

#[test]
fn the_small_last_batch_can_be_dropped() {
    let loader = DataLoader::new(Numbers::new(5))
        .batch_size(2)
        .drop_last(true);
    assert_eq!(loader.len(), 2);
    assert_eq!(epoch(&loader), [[0, 10], [20, 30]]);
    let small = DataLoader::new(Numbers::new(1))
        .batch_size(2)
        .drop_last(true);
    assert!(small.is_empty());
    assert!(epoch(&small).is_empty());
}

#[test]
fn each_epoch_is_another_order_of_the_same_samples() {
    let mut loader = DataLoader::new(Numbers::new(20)).batch_size(5).shuffle(3);
    let first = epoch(&loader).concat();
    assert_eq!(first, epoch(&loader).concat());
    loader.set_epoch(1);
    let second = epoch(&loader).concat();
    assert_ne!(first, second);
    for mut order in [first, second] {
        order.sort_unstable();
        assert_eq!(order, (0..20).map(|i| 10 * i).collect::<Vec<i64>>());
    }
}

#[test]
fn replicas_get_equal_shares() {
    let data = Arc::new(Numbers::new(5));
    let share = |rank| {
        epoch(
            &DataLoader::new(Arc::clone(&data))
                .batch_size(2)
                .sampler(rank, 2),
        )
        .concat()
    };
    assert_eq!(share(0), [0, 20, 40]);
    assert_eq!(share(1), [10, 30, 0]);
}

#[test]
fn a_batch_is_uploaded_once_and_counted_where_the_loop_runs() {
    let scope = Scope::new();
    let batches: Vec<_> = DataLoader::new(Numbers::new(6))
        .batch_size(2)
        .iter()
        .collect();
    assert_eq!(batches.len(), 3);
    assert_eq!(scope.count(Counter::Upload), 6);
    assert_eq!(scope.count(Counter::Execute), 0);
}

#[test]
fn an_error_of_the_dataset_reaches_the_loop_and_ends_it() {
    let data = Numbers::new(100).before(|i| match i {
        7 => Err(Error::argument(
            "Numbers::get",
            "index",
            "a readable sample",
            i,
        )),
        _ => Ok(()),
    });
    let mut batches = DataLoader::new(data).batch_size(5).iter();
    assert_eq!(targets(batches.next().unwrap()), [0, 10, 20, 30, 40]);
    assert!(matches!(
        batches.next(),
        Some(Err(Error::Argument {
            op: "Numbers::get",
            ..
        }))
    ));
    assert!(batches.next().is_none());
    assert_eq!(batches.size_hint(), (0, Some(0)));
}

#[test]
fn a_panic_of_the_dataset_is_an_error_that_quotes_it() {
    let data = Numbers::new(10).before(|i| match i {
        3 => panic!("sample {i} is torn"),
        _ => Ok(()),
    });
    let mut batches = DataLoader::new(data).batch_size(5).iter();
    let error = batches.next().unwrap().unwrap_err().to_string();
    assert!(error.contains("sample 3 is torn"), "{error}");
    assert!(batches.next().is_none());
}

#[test]
fn samples_that_do_not_stack_are_an_error() {
    struct Growing;
    impl Dataset for Growing {
        fn len(&self) -> usize {
            4
        }
        fn get(&self, index: usize) -> Result<Sample> {
            let sample = Literal::from_vec(vec![0f32; index + 1], [index + 1])?;
            Ok((sample, Literal::scalar(0i64)))
        }
    }
    let error = DataLoader::new(Growing)
        .batch_size(2)
        .iter()
        .next()
        .unwrap()
        .unwrap_err();
    assert!(
        matches!(
            error,
            Error::ShapeMismatch {
                op: "DataLoader",
                ..
            }
        ),
        "{error}"
    );
}

#[test]
fn leaving_the_loop_early_stops_the_thread() {
    let data = Arc::new(Numbers::new(1_000_000));
    let loader = DataLoader::new(Arc::clone(&data))
        .batch_size(10)
        .prefetch(2);
    let mut batches = loader.iter();
    assert_eq!(batches.next().unwrap().unwrap().0.dims(), [10, 2]);
    drop(batches);
    // One taken, two ready, one that waits to be sent, one being made.
    assert!(data.reads.load(Ordering::SeqCst) <= 50);
    drop(loader);
    assert_eq!(
        Arc::strong_count(&data),
        1,
        "the thread still holds the dataset"
    );
}

#[test]
fn a_sample_that_never_comes_is_an_error_after_the_deadline() {
    let _replica = replica(Duration::from_millis(200)).enter();
    let data = Numbers::new(4).before(|_| {
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    });
    let start = Instant::now();
    let mut batches = DataLoader::new(data).batch_size(4).iter();
    assert!(matches!(batches.next(), Some(Err(Error::Deadline { .. }))));
    assert!(start.elapsed() < Duration::from_secs(4));
    assert!(batches.next().is_none());
}

#[test]
fn a_loop_that_comes_back_after_the_deadline_is_told_so() {
    let _replica = replica(Duration::from_millis(100)).enter();
    let mut batches = DataLoader::new(Numbers::new(100)).prefetch(1).iter();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(targets(batches.next().unwrap()), [0]);
    let error = batches.next().unwrap().unwrap_err();
    assert!(
        matches!(&error, Error::Deadline { advice, .. } if advice.contains("gave up")),
        "{error}"
    );
}

#[test]
fn decoding_is_parallel() {
    // Two samples that wait for each other: one at a time would never return.
    struct Pair(Barrier);
    impl Dataset for Pair {
        fn len(&self) -> usize {
            2
        }
        fn get(&self, _: usize) -> Result<Sample> {
            self.0.wait();
            Ok((Literal::scalar(0f32), Literal::scalar(0i64)))
        }
    }
    let _replica = replica(Duration::from_secs(20)).enter();
    let mut batches = DataLoader::new(Pair(Barrier::new(2))).batch_size(2).iter();
    assert!(batches.next().unwrap().is_ok());
}

#[test]
fn options_that_make_no_sense_are_an_error() {
    let first = |loader: DataLoader| loader.iter().next().unwrap().unwrap_err();
    let zero = first(DataLoader::new(Numbers::new(3)).batch_size(0));
    assert!(
        matches!(
            zero,
            Error::Argument {
                argument: "batch_size",
                ..
            }
        ),
        "{zero}"
    );
    let outside = first(DataLoader::new(Numbers::new(3)).sampler(2, 2));
    assert!(
        matches!(
            outside,
            Error::Argument {
                argument: "sampler",
                ..
            }
        ),
        "{outside}"
    );
}

#[test]
fn a_thread_of_no_replica_cannot_load_during_a_launch() {
    let _launch = ActiveLaunch::new();
    let error = DataLoader::new(Numbers::new(3))
        .iter()
        .next()
        .unwrap()
        .unwrap_err();
    assert!(matches!(error, Error::NoReplicaContext { .. }), "{error}");
}
