//! Capsules of what a program executes: written where asked, and replayed alike.

use std::time::Duration;
use tests::with_devices;
use xla::{Error, Tensor, debug};
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
