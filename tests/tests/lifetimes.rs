//! What is given back, and when: values that autograd keeps, and those of threads that ended.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use tests::with_devices;
use xla::{Result, Tensor, no_grad};

const MIB: u64 = 1 << 20;

/// Elements of a tensor of 4 MiB.
const LARGE: usize = 1 << 20;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmRSS:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

/// Runs a step that handles values of 4 MiB fifty times after some to warm up.
fn keeps_nothing(step: impl Fn() -> Result<()>) {
    (0..5).for_each(|_| step().unwrap());
    let before = resident();
    (0..50).for_each(|_| step().unwrap());
    let after = resident();
    assert!(after < before + 60 * MIB, "{before} bytes became {after}");
}

fn large_leaf() -> Tensor {
    let x = Tensor::from_vec(vec![0.5f32; LARGE], LARGE, ()).unwrap();
    x.requires_grad_(true).unwrap()
}

#[test]
fn an_output_that_its_own_derivative_reads() {
    with_devices(1, || {
        let x = large_leaf();
        keeps_nothing(|| {
            let y = x.exp()?;
            xla::sync()?.wait()?;
            assert!(y.requires_grad());
            Ok(())
        });
        keeps_nothing(|| {
            let y = x.exp()?;
            xla::sync()?.wait()?;
            y.sum((), false)?.backward()?;
            x.zero_grad();
            xla::sync()?.wait()
        });
    });
}

#[test]
fn another_thread_overwrites_a_value_with_a_history() {
    with_devices(1, || {
        let x = Tensor::from_slice(&[0.0f32, 1.0], 2, ()).unwrap();
        let y = x.requires_grad_(true).unwrap().exp().unwrap();
        xla::sync().unwrap().wait().unwrap();
        let (done, result) = mpsc::channel();
        thread::spawn(move || {
            let filled = no_grad(|| y.fill_(3.0)).and_then(|y| y.to_vec::<f32>());
            done.send(filled.unwrap()).unwrap();
        });
        let values = result.recv_timeout(Duration::from_secs(60)).unwrap();
        assert_eq!(values, [3.0, 3.0]);
    });
}

/// What `f` returns on a thread that has ended.
fn elsewhere<T: Send + 'static>(f: impl FnOnce() -> Result<T> + Send + 'static) -> T {
    thread::spawn(f).join().unwrap().unwrap()
}

#[test]
fn values_pending_in_a_thread_that_ended() {
    with_devices(1, || {
        let made = || {
            let x = Tensor::from_vec(vec![1f32; LARGE], LARGE, ())?;
            x.add(1.0)
        };
        keeps_nothing(|| {
            drop(elsewhere(made));
            Ok(())
        });
        keeps_nothing(|| {
            let y = elsewhere(made);
            assert_eq!(y.mul(2.0)?.select(0, 0)?.item::<f32>()?, 4.0);
            Ok(())
        });
    });
}

#[test]
fn what_is_made_of_another_threads_values_is_synced_by_its_own() {
    with_devices(1, || {
        let y = elsewhere(|| Tensor::from_slice(&[1.0f32], 1, ())?.add(1.0));
        let z = y.mul(2.0).unwrap();
        let target = Tensor::zeros(1, ()).unwrap();
        target.copy_(&y).unwrap();
        xla::sync().unwrap().wait().unwrap();
        let scope = xla::metrics::Scope::new();
        assert_eq!(z.to_vec::<f32>().unwrap(), [4.0]);
        assert_eq!(target.to_vec::<f32>().unwrap(), [2.0]);
        assert_eq!(scope.executions(), 0);
    });
}
