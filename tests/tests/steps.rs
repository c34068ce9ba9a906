//! Steps that fail when they are executed: the error says which step and the line, and what was
//! computed before is still there.

use rustix::process::{Resource, Rlimit, setrlimit};
use tests::with_devices;
use xla::{DType, Error, Result, Tensor};

/// Elements of 2 GiB: the machine has them, so they are tried.
const TOO_MANY: usize = 1 << 29;

/// From here on the process gets at most another GiB, so that an allocation of more fails in the
/// plugin, while a step is executed.
fn limit_memory() {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("the system says");
    let pages: u64 = statm
        .split(' ')
        .next()
        .and_then(|size| size.parse().ok())
        .expect("the size in pages comes first");
    let bytes = pages * rustix::param::page_size() as u64 + (1 << 30);
    let limit = Rlimit {
        current: Some(bytes),
        maximum: None,
    };
    setrlimit(Resource::As, limit).expect("a process may limit itself");
}

/// The step and the line of a failed step, whose cause is the device's lack of memory.
fn failed_step<T: std::fmt::Debug>(outcome: Result<T>) -> (u64, u32) {
    match outcome {
        Err(Error::Step {
            step, source, at, ..
        }) => {
            assert!(source.to_string().contains("memory"), "{source}");
            let at = at.location().expect("a line");
            assert_eq!(at.file(), file!());
            (step, at.line())
        }
        other => panic!("expected a failed step, got {other:?}"),
    }
}

#[test]
fn a_failed_step_is_named_with_its_line() {
    with_devices(1, || {
        let small = Tensor::full([2], 1.0, DType::F32).unwrap();
        xla::sync().unwrap().wait().unwrap();
        limit_memory();
        let line = line!() + 1;
        let huge = Tensor::full([TOO_MANY], 1.0, DType::F32).unwrap();
        let synced = xla::sync().and_then(|handle| handle.wait());
        assert_eq!(failed_step(synced), (1, line));
        assert_eq!(failed_step(huge.to_literal().map(drop)), (1, line));
        // The process lives on, with what it had.
        assert_eq!(small.add(1).unwrap().to_vec::<f32>().unwrap(), [2.0, 2.0]);
    });
}

#[test]
fn a_value_that_a_failed_step_took_over_is_that_steps_error() {
    with_devices(1, || {
        let weight = Tensor::full([3], 5.0, DType::F32).unwrap();
        xla::sync().unwrap().wait().unwrap();
        limit_memory();
        weight.add_(1.0).unwrap();
        let _huge = Tensor::full([TOO_MANY], 1.0, DType::F32).unwrap();
        let kept = weight.copy().unwrap();
        let (step, _) = failed_step(xla::sync().and_then(|handle| handle.wait()));
        // XLA had been given the weight's memory and does not give it back.
        assert_eq!(failed_step(weight.to_vec::<f32>()).0, step);
        assert_eq!(failed_step(kept.to_vec::<f32>()).0, step);
    });
}

#[test]
fn a_step_behind_one_that_is_running_fails_with_its_own_number() {
    with_devices(1, || {
        let x = Tensor::full([1500, 1500], 0.001, DType::F32).unwrap();
        xla::sync().unwrap().wait().unwrap();
        limit_memory();
        let y = x.matmul(&x).unwrap().matmul(&x).unwrap();
        drop(xla::sync().unwrap());
        let total = y.sum((), false).unwrap();
        let wide = total.expand([TOO_MANY]).unwrap();
        let line = line!() + 1;
        let huge = wide.copy().unwrap();
        let synced = xla::sync().and_then(|handle| handle.wait());
        assert_eq!(failed_step(synced), (2, line));
        failed_step(huge.to_literal().map(drop));
        // 1500 * 0.001 * 0.001 = 0.0015, and again.
        let value = y
            .select(0, 7)
            .unwrap()
            .select(0, 7)
            .unwrap()
            .item::<f64>()
            .unwrap();
        assert!((value - 0.00225).abs() < 1e-6, "{value}");
    });
}
