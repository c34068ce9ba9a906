//! Worlds of several processes, and of several processes of several replicas, through one launch.
#![cfg(feature = "gloo")]

use std::time::Duration;
use tests::training::{self, Make, Pair, assert_same_model};
use tests::{processes, spawned, with_devices};
use xla::nn::{DistributedDataParallel, Module};
use xla::{Launcher, Tensor, dist};

/// One test for each case, in a world of so many processes of so many replicas.
macro_rules! world {
    ($world:ident: $processes:literal x $replicas:literal; $($name:ident: $case:ident,)*) => {
        mod $world {
            $(#[test]
            fn $name() {
                tests::with_devices(1, || {
                    tests::spawned($processes, $replicas, |rank| {
                        tests::collectives::$case(rank, $processes * $replicas)
                    });
                });
            })*
        }
    };
}

/// All cases in a world.
macro_rules! all_cases {
    ($world:ident: $processes:literal x $replicas:literal) => {
        world! { $world: $processes x $replicas;
            reductions_have_their_closed_forms: reductions,
            what_is_moved_arrives: movement,
            one_rank_sends_or_receives: rooted,
            many_tensors_travel_in_buckets: many,
            gradients_go_back_the_way_the_values_came: gradients,
            parts_may_differ_in_length: uneven,
            mistakes_are_errors_at_the_call: mistakes,
            even_and_odd_ranks_have_groups_of_their_own: groups,
            a_partition_shares_the_worlds_programs: partitions,
            a_model_may_use_two_groups: two_groups_in_one_model,
        }
    };
}

all_cases!(two_processes_of_two_replicas: 2 x 2);
all_cases!(four_processes: 4 x 1);

/// Checks that training in processes gives what one device gives with the whole batch.
fn trains_the_same_model(whole: Make, divided: Make) {
    with_devices(1, || {
        let one = Launcher::new()
            .devices(1)
            .run_serialized(|rank| training::weights(rank, 1, Ok, whole))
            .unwrap();
        for (processes, devices) in [(2, 1), (2, 2)] {
            let weights = tests::processes(processes, devices)
                .run_serialized(|rank| training::weights(rank, processes * devices, Ok, divided))
                .unwrap();
            assert_same_model(&weights, &one[0]);
        }
    });
}

#[test]
fn data_parallel_training_gives_one_devices_model() {
    trains_the_same_model(training::sgd, training::sgd);
}

#[test]
fn an_optimizer_divided_among_processes_takes_the_undivided_ones_steps() {
    trains_the_same_model(training::adam_w, training::divided_adam_w);
}

#[test]
fn what_one_process_uses_is_averaged_with_the_others_zeros() {
    with_devices(1, || {
        let gradients: Vec<Vec<Option<f32>>> = spawned(2, 2, |rank| {
            let model = DistributedDataParallel::new(Pair::new()?)?.find_unused_parameters(true);
            // The gradient of w · x is x: 1, 2, 3, 4 on ranks 0 to 3; the second process uses b.
            let x = Tensor::full([1, 1], 1.0 + rank as f64, ())?;
            let y = model.forward(&x, rank >= 2)?;
            y.sum((), false)?.backward()?;
            let gradient = |p: &Tensor| p.grad().map(|g| g.item::<f32>()).transpose();
            model.parameters().iter().map(gradient).collect()
        });
        // (1 + 2 + 3 + 4) / 4, (3 + 4) / 4, and none where no rank has one.
        let expected = vec![Some(2.5), Some(1.75), None];
        assert_eq!(gradients, vec![expected; 4]);
    });
}

#[test]
fn objects_go_from_process_to_process() {
    with_devices(1, || {
        let seen = spawned(2, 2, |rank| {
            let all = dist::all_gather_object(&format!("of {rank}"))?;
            assert_eq!(all, ["of 0", "of 1", "of 2", "of 3"]);
            let own = format!("spoken by {rank}");
            let word = dist::broadcast_object((rank == 3).then_some(&own), 3)?;
            assert_eq!(word, "spoken by 3");
            dist::mesh_reduce("sum", &(rank + 1), |values| values.iter().sum::<usize>())
        });
        assert_eq!(seen, [10; 4]);
    });
}

#[test]
fn a_profile_shows_each_collective_with_its_line() {
    with_devices(1, || {
        const LINE: u32 = line!() + 4;
        let profiles = spawned(2, 1, |rank| {
            let profile = xla::profiler::start()?;
            let x = Tensor::full([4], 1.0 + rank as f64, ())?;
            let sum = dist::all_reduce(&x, dist::ReduceOp::Sum)?;
            assert_eq!(sum.to_vec::<f32>()?, [3.0; 4]);
            profile.to_json()
        });
        for json in profiles {
            let file: serde_json::Value = serde_json::from_str(&json).unwrap();
            let events = file["traceEvents"].as_array().unwrap().iter();
            let is_it = |event: &&serde_json::Value| {
                event["name"] == "all_reduce" && event["cat"] == "collective"
            };
            let found: Vec<_> = events.filter(is_it).collect();
            let [span] = found.as_slice() else {
                panic!("{json}")
            };
            let operator = span["args"]["operator"].as_str().unwrap();
            let line = format!("processes.rs:{LINE}");
            assert!(operator.contains(&line), "{operator}");
            assert!(span["dur"].as_f64().is_some_and(|micros| micros > 0.0));
            assert!(json.contains(r#""name":"xla:0""#), "{json}");
        }
    });
}

/// Slow on purpose: a rank that is late, but not beyond the deadline, is no failure.
#[test]
fn a_rank_that_is_35_s_late_is_waited_for() {
    with_devices(1, || {
        let sums = processes(2, 1)
            .deadline(Duration::from_secs(30 * 60))
            .run_serialized(|rank| {
                dist::init_process_group("xla", "xla://")?;
                let mut sum = Tensor::ones([2], ())?;
                for step in 0..3 {
                    if rank == 1 && step == 1 {
                        std::thread::sleep(Duration::from_secs(35));
                    }
                    sum = dist::all_reduce(&sum, dist::ReduceOp::Sum)?;
                    xla::sync()?;
                }
                sum.to_vec::<f32>()
            })
            .unwrap();
        assert_eq!(sums, [[8.0, 8.0], [8.0, 8.0]]);
    });
}
