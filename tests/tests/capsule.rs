//! Capsules of what a program executes: written where asked, and replayed alike.

use std::time::Duration;
use tests::with_devices;
use xla::{Error, Tensor, debug, dist};
use xla_runtime::{Capsule, Client};

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_step_replays_to_the_same_values() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("step.safetensors");
        let weight = Tensor::from_slice(&[1.0f32, 2.0], [2], ()).unwrap();
        xla::sync().unwrap();
        // 0.5 is a number argument, the weight one that is overwritten.
        let sum = debug::capsule(&file, || {
            weight.mul_(0.5)?;
            weight.add(&weight)
        })
        .unwrap();
        assert_eq!(weight.to_vec::<f32>().unwrap(), [0.5, 1.0]);
        assert_eq!(sum.to_vec::<f32>().unwrap(), [1.0, 2.0]);

        let capsule = Capsule::load(&file).unwrap();
        assert!(
            capsule
                .cause
                .starts_with("sync() at tests/tests/capsule.rs")
                || capsule.cause.starts_with("sync() at tests/capsule.rs"),
            "{}",
            capsule.cause
        );
        assert_eq!(capsule.error, None);
        let mut inputs: Vec<Vec<f32>> = capsule
            .inputs
            .iter()
            .map(|input| input.to_vec().unwrap())
            .collect();
        inputs.sort_by_key(Vec::len);
        assert_eq!(inputs, [vec![0.5], vec![1.0, 2.0]]);
        let replay = capsule.replay(&Client::global().unwrap(), 2, LONG).unwrap();
        let differences = replay.differences.unwrap();
        assert_eq!(differences, [None, None]);

        let error = debug::capsule(&file, || Ok(())).unwrap_err();
        assert!(matches!(error, Error::Argument { argument: "f", .. }));
    });
}

#[test]
fn a_failing_program_leaves_its_arguments() {
    tests::with_env(
        &[("XLA_DEBUG", "capsule"), ("CPU_NUM_DEVICES", "1")],
        || {
            let folder = tempfile::tempdir().unwrap();
            std::env::set_current_dir(folder.path()).unwrap();
            let x = Tensor::from_slice(&[3.0f32], [1], ()).unwrap();
            assert_eq!(x.add(1.0).unwrap().to_vec::<f32>().unwrap(), [4.0]);
            // 4 TB: no machine that runs tests has them.
            let huge = x.expand([1_i64 << 40]).unwrap().mul(2.0).unwrap();
            xla::sync().and_then(|synced| synced.wait()).unwrap_err();
            drop(huge);
            let files: Vec<_> = std::fs::read_dir(folder.path())
                .unwrap()
                .map(|file| file.unwrap().path())
                .collect();
            let [file] = files.as_slice() else {
                panic!("{files:?}")
            };
            let capsule = Capsule::load(file).unwrap();
            assert!(capsule.error.is_some());
            assert!(
                capsule
                    .inputs
                    .iter()
                    .any(|i| i.to_vec::<f32>().unwrap() == [3.0])
            );
        },
    );
}

#[test]
fn a_later_run_of_a_compiled_function_is_as_good_as_its_first() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("again.safetensors");
        let mut count = xla::compile(|total: &mut Tensor, x: Tensor| {
            total.add_(&x)?;
            total.mul(0.5)
        });
        let mut total = Tensor::from_slice(&[1.0f32, 2.0], [2], ()).unwrap();
        let one = || Tensor::from_slice(&[1.0f32, 10.0], [2], ());
        count.call(&mut total, one().unwrap()).unwrap();
        let half = debug::capsule(&file, || count.call(&mut total, one()?)).unwrap();
        assert_eq!(count.recordings(), 1);
        // What is changed in place is changed once, also where it was copied before.
        assert_eq!(total.to_vec::<f32>().unwrap(), [3.0, 22.0]);
        assert_eq!(half.to_vec::<f32>().unwrap(), [1.5, 11.0]);

        let capsule = Capsule::load(&file).unwrap();
        assert!(
            capsule.cause.starts_with("compiled function"),
            "{}",
            capsule.cause
        );
        let inputs = capsule.inputs.iter().map(|input| input.to_vec::<f32>());
        let inputs: Vec<Vec<f32>> = inputs.collect::<Result<_, _>>().unwrap();
        assert!(inputs.contains(&vec![2.0, 12.0]), "{inputs:?}");
        let replay = capsule.replay(&Client::global().unwrap(), 1, LONG).unwrap();
        assert_eq!(replay.differences.unwrap(), [None, None]);
    });
}

#[test]
fn a_later_run_of_a_compiled_function_that_fails_is_written() {
    let variables = [
        ("XLA_DEBUG", "capsule"),
        ("CPU_NUM_DEVICES", "1"),
        ("XLA_MEMORY_LIMIT_MB", "16"),
    ];
    tests::with_env(&variables, || {
        const N: usize = 1 << 20;
        let folder = tempfile::tempdir().unwrap();
        std::env::set_current_dir(folder.path()).unwrap();
        let mut sums = xla::compile_fn(|x: Tensor| x.add(1.0));
        let x = Tensor::from_vec(vec![1.0f32; N], [N], ()).unwrap();
        // Three of 4 MiB are there with x; a fourth and what it is made of are too many.
        let mut kept = Vec::new();
        let error = loop {
            match sums.call(x.clone()) {
                Ok(sum) => kept.push(sum),
                Err(error) => break error,
            }
            assert!(kept.len() < 8);
        };
        assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
        assert!(kept.len() > 1 && sums.recordings() == 1);
        let mut files = std::fs::read_dir(folder.path()).unwrap();
        let file = files.next().expect("a capsule").unwrap().path();
        let capsule = Capsule::load(file).unwrap();
        assert!(capsule.error.is_some_and(|error| error.contains("memory")));
        assert!(
            capsule
                .inputs
                .iter()
                .any(|input| input.shape().dims() == [N])
        );
    });
}

#[test]
fn one_replica_keeps_the_arguments_of_all() {
    with_devices(2, || {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("replicas.safetensors");
        tests::replicas(2, |rank| {
            let x = tests::multiples(rank)?;
            // What the other has, as much of it as it takes to be 2 and 4 on both.
            let step = || -> xla::Result<Tensor> {
                let others = dist::all_reduce(&x, dist::ReduceOp::Sum)?.sub(&x)?;
                others.mul(1.0 + rank as f64)
            };
            let others = match rank {
                1 => debug::capsule(&file, step)?,
                _ => step()?,
            };
            assert_eq!(others.to_vec::<f32>()?, [2.0, 4.0]);
            Ok(())
        });
        let capsule = Capsule::load(&file).unwrap();
        assert_eq!((capsule.replica, capsule.peers.len()), (1, 1));
        let has = |inputs: &[xla::Literal], values: [f32; 2]| {
            let mut all = inputs.iter().map(|i| i.to_vec::<f32>().unwrap());
            all.any(|input| input == values)
        };
        assert!(has(&capsule.inputs, [2.0, 4.0]) && has(&capsule.peers[0], [1.0, 2.0]));
        let replay = capsule.replay(&Client::global().unwrap(), 2, LONG).unwrap();
        assert_eq!(replay.differences.unwrap(), [None]);
        assert_eq!(replay.outputs[0].to_vec::<f32>().unwrap(), [2.0, 4.0]);
    });
}
