//! Memory in the long run: what a step takes it gives back.

use tests::with_devices;
use xla::nn::{Linear, Module, Relu, Sequential, cross_entropy};
use xla::optim;
use xla::{DType, Literal, Result, Tensor};
use xla_runtime::Client;

/// Steps in which caches fill and memory is first used.
const WARMUP: usize = 20;
const STEPS: usize = 1000;

/// Bytes of arrays on the device when nothing is pending.
fn live_bytes() -> u64 {
    xla::sync().unwrap().wait().unwrap();
    Client::global().unwrap().live_bytes(0).unwrap()
}

/// The process's resident memory in bytes.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    1024 * kib.parse::<u64>().unwrap()
}

#[test]
fn live_device_bytes_are_flat_over_a_thousand_steps() {
    with_devices(1, || {
        let model = Sequential::new()
            .add(Linear::new(8, 16, ()).unwrap())
            .add(Relu)
            .add(Linear::new(16, 4, ()).unwrap());
        let mut optimizer = optim::AdamW::new(model.parameters(), 1e-3);
        let mut step = |i: usize| -> Result<()> {
            let x = Tensor::full([32, 8], (i % 7) as f64, DType::F32)?;
            let labels: Vec<i64> = (0..32).map(|row| (row + i as i64) % 4).collect();
            let labels = Tensor::from_vec(labels, [32], ())?;
            optimizer.zero_grad();
            let loss = cross_entropy(&model.forward(&x)?, &labels)?;
            loss.backward()?;
            optimizer.step()?;
            xla::sync()?;
            if i.is_multiple_of(100) {
                assert!(loss.to_vec::<f32>()?[0].is_finite());
            }
            Ok(())
        };
        (0..WARMUP).for_each(|i| step(i).unwrap());
        let before = live_bytes();
        (0..STEPS).for_each(|i| step(i).unwrap());
        assert_eq!(live_bytes(), before);
        // Parameters, their gradients and two moments each.
        let elements = 8 * 16 + 16 + 16 * 4 + 4;
        assert!(before >= 4 * 4 * elements, "{before}");
        drop((model, optimizer));
        assert!(live_bytes() < before - 4 * 4 * elements + 64);
    });
}

/// Of 4 MB each: a state written over in place, one that every step makes anew, and literals that are
/// read and dropped.
#[test]
fn a_large_state_does_not_make_the_process_grow() {
    const N: usize = 1 << 20;
    with_devices(1, || {
        let state = Tensor::zeros([N], ()).unwrap();
        let mut fresh = Tensor::zeros([N], ()).unwrap();
        let mut step = |read: bool| -> Result<()> {
            state.add_(1.0)?;
            fresh = fresh.add(1.0)?;
            xla::sync()?;
            if read {
                let literal: Literal = fresh.to_literal()?;
                assert_eq!(
                    literal.as_slice::<f32>()?[0],
                    literal.as_slice::<f32>()?[N - 1]
                );
            }
            Ok(())
        };
        // What is in flight has arrays of its own.
        let wait = || xla::sync().unwrap().wait().unwrap();
        (0..WARMUP).for_each(|i| step(i % 2 == 0).unwrap());
        wait();
        let (live, before) = (live_bytes(), resident());
        (0..STEPS).for_each(|i| step(i % 10 == 0).unwrap());
        wait();
        assert_eq!(live_bytes(), live);
        let grown = resident().saturating_sub(before);
        assert!(grown < 20 << 20, "grown by {grown} bytes");
        for tensor in [&state, &fresh] {
            let values = tensor.to_vec::<f32>().unwrap();
            assert!(values.iter().all(|&v| v == (WARMUP + STEPS) as f32));
        }
    });
}

/// A value that was read stays what it was while its tensor goes on.
#[test]
fn a_literal_keeps_its_values() {
    const N: usize = 1 << 16;
    with_devices(1, || {
        let x = Tensor::zeros([N], ()).unwrap();
        let mut read = Vec::new();
        for _ in 0..4 {
            x.add_(1.0).unwrap();
            read.push(x.to_literal().unwrap());
        }
        drop(x);
        for (i, literal) in read.iter().enumerate() {
            let expected = (i + 1) as f32;
            assert!(
                literal
                    .as_slice::<f32>()
                    .unwrap()
                    .iter()
                    .all(|&v| v == expected)
            );
        }
    });
}
