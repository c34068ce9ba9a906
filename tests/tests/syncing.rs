//! What is compiled, run and kept in memory, and what a program is unaffected by.

use std::sync::Barrier;
use tests::with_devices;
use xla::metrics::{Counter, Scope};
use xla::optim::Sgd;
use xla::{DType, Result, Tensor, nn, no_grad};

fn f32s(data: &[f32]) -> Tensor {
    Tensor::from_slice(data, data.len(), ()).unwrap()
}

/// Numbers that a compiler would like to fold, among others.
const NUMBERS: [f64; 8] = [0.1, 0.0, 1.0, -1.0, 2.0, 1e-30, 0.5, 3.0];

#[test]
fn numbers_are_data() -> Result<()> {
    let x = f32s(&[1.0, 2.0]);
    let scope = Scope::new();
    for (i, n) in NUMBERS.into_iter().enumerate() {
        let y = x.mul(n)?.add(n)?.maximum(n)?.rsub(n)?;
        let z = Tensor::full(2, n, DType::F32)?.add(&y)?;
        let expected = [1.0f32, 2.0].map(|x| {
            let n = n as f32;
            n + (n - (x * n + n).max(n))
        });
        assert_eq!(z.to_vec::<f32>()?, expected, "{n}");
        assert_eq!(
            scope.compiles(),
            1,
            "the number {i}, {n}, is in the program"
        );
    }
    Ok(())
}

#[test]
fn whole_numbers_are_data() -> Result<()> {
    let x = Tensor::from_slice(&[5i64, 7], 2, ())?;
    let scope = Scope::new();
    for n in [3i64, 0, 1, -1, i64::MAX] {
        let y = x.mul(n)?.add(n)?;
        let expected = [5i64, 7].map(|x| x.wrapping_mul(n).wrapping_add(n));
        assert_eq!(y.to_vec::<i64>()?, expected);
    }
    for start in [0i64, 1, -7] {
        let range = Tensor::arange(start, start + 4, 1, ())?;
        assert_eq!(
            range.to_vec::<i64>()?,
            [start, start + 1, start + 2, start + 3]
        );
    }
    assert_eq!(scope.compiles(), 2);
    Ok(())
}

#[test]
fn where_a_part_begins_is_data() -> Result<()> {
    let x = f32s(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let scope = Scope::new();
    for start in 0..5 {
        let s = start as f32;
        assert_eq!(
            x.narrow(0, start, 2)?.mul(1.0)?.to_vec::<f32>()?,
            [s, s + 1.0]
        );
    }
    assert_eq!(scope.compiles(), 1);
    for index in [0, 3, -1] {
        assert_eq!(
            x.select(0, index)?.exp()?.item::<f32>()?,
            (index.rem_euclid(6) as f32).exp()
        );
    }
    assert_eq!(scope.compiles(), 2);
    for start in 0..5 {
        let y = x.copy()?;
        y.narrow(0, start, 1)?.fill_(start as f64 - 9.0)?;
        assert_eq!(y.to_vec::<f32>()?[start as usize], start as f32 - 9.0);
    }
    assert_eq!(scope.compiles(), 3);
    Ok(())
}

#[test]
fn a_training_loop_compiles_once() -> Result<()> {
    let w = f32s(&[0.0, 0.0]).requires_grad_(true)?;
    let target = f32s(&[3.0, -1.0]);
    let scope = Scope::new();
    let mut counts = Vec::new();
    for step in 0..20 {
        let loss = w.sub(&target)?.square()?.sum((), false)?;
        loss.backward()?;
        let rate = NUMBERS[step % NUMBERS.len()].clamp(0.0, 0.5);
        let grad = w.grad().expect("backward was called");
        no_grad(|| w.add_scaled_(&grad, -rate))?;
        w.zero_grad();
        xla::sync()?;
        counts.push(scope.compiles());
    }
    assert_eq!(counts, [1; 20]);
    assert_eq!(scope.executions(), 20);
    assert_eq!(scope.downloads(), 0);
    assert_eq!(w.to_vec::<f32>()?, [3.0, -1.0]); // a rate of 0.5 solves it at once
    Ok(())
}

#[test]
fn an_optimizer_whose_rate_changes_compiles_twice() -> Result<()> {
    let w = f32s(&[1.0, 1.0]).requires_grad_(true)?;
    let mut optimizer = Sgd::new(vec![w.clone()], 0.1).momentum(0.9);
    let scope = Scope::new();
    for step in 0..20 {
        optimizer.set_lr(NUMBERS[step % NUMBERS.len()].abs().min(0.2));
        w.square()?.sum((), false)?.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        xla::sync()?;
    }
    // The first step makes the momentum.
    assert!(scope.compiles() <= 2, "{}", scope.compiles());
    Ok(())
}

#[test]
fn another_shape_dtype_or_order_is_another_program() -> Result<()> {
    let scope = Scope::new();
    let run = |x: &Tensor| x.add(1)?.mul(2)?.to_literal();
    run(&Tensor::ones(2, ())?)?;
    run(&Tensor::ones(3, ())?)?;
    run(&Tensor::ones(3, DType::F64)?)?;
    Tensor::ones(2, ())?.mul(2)?.add(1)?.to_literal()?;
    assert_eq!(scope.compiles(), 4);
    for _ in 0..3 {
        run(&Tensor::ones(2, ())?)?;
        run(&Tensor::ones(3, ())?)?;
    }
    assert_eq!(scope.compiles(), 4);
    Ok(())
}

#[test]
fn reading_what_is_computed_runs_nothing() -> Result<()> {
    let x = f32s(&[1.0, 2.0]);
    let y = x.exp()?;
    let z = y.sum((), false)?;
    let first: f32 = z.item()?;
    let scope = Scope::new();
    for _ in 0..3 {
        assert_eq!(z.item::<f32>()?, first);
        y.to_vec::<f32>()?;
        x.to_vec::<f32>()?;
        xla::sync()?.wait()?;
    }
    assert_eq!((scope.compiles(), scope.executions()), (0, 0));
    Ok(())
}

#[test]
fn reading_one_value_computes_all_that_are_alive() -> Result<()> {
    let x = f32s(&[1.0, 2.0]);
    let scope = Scope::new();
    let (a, b) = (x.add(1)?, x.mul(5)?);
    let dropped = x.exp()?;
    drop(dropped);
    assert_eq!(a.sum((), false)?.item::<f32>()?, 5.0);
    assert_eq!(scope.executions(), 1);
    xla::sync()?.wait()?;
    assert_eq!(b.to_vec::<f32>()?, [5.0, 10.0]);
    assert_eq!((scope.compiles(), scope.executions()), (1, 1));
    let c = b.sub(&a)?;
    xla::sync()?.wait()?;
    assert_eq!(c.to_vec::<f32>()?, [3.0, 7.0]);
    assert_eq!(scope.executions(), 2);
    Ok(())
}

#[test]
fn the_host_array_is_the_tensors_no_more() -> Result<()> {
    // Aligned and not, small and large: with and without a copy on the way to the device.
    for n in [1usize, 3, 1 << 20] {
        let mut data = vec![1.0f32; n + 1];
        let whole = Tensor::from_slice(&data[..n], n, ())?;
        let shifted = Tensor::from_slice(&data[1..], n, ())?;
        data.fill(7.0);
        for tensor in [whole, shifted] {
            let sum = tensor.sum((), false)?;
            data.fill(9.0);
            assert_eq!(sum.item::<f32>()?, n as f32);
            assert!(tensor.to_vec::<f32>()?.iter().all(|v| *v == 1.0));
        }
    }
    Ok(())
}

#[test]
fn a_tensor_from_the_host_changes_in_place() -> Result<()> {
    let data = vec![1.0f32; 1 << 16];
    let literal = xla::Literal::from_slice(&data, data.len())?;
    let x = Tensor::from_literal(literal.clone(), ())?;
    for _ in 0..6 {
        x.add_(1)?;
        xla::sync()?;
        x.mul_(2)?;
    }
    let twin = Tensor::from_literal(literal.clone(), ())?;
    assert!(x.to_vec::<f32>()?.iter().all(|v| *v == 190.0));
    assert!(twin.to_vec::<f32>()?.iter().all(|v| *v == 1.0));
    assert_eq!(literal.as_slice::<f32>()?, data);
    Ok(())
}

#[test]
fn a_copy_keeps_what_a_handle_does_not() -> Result<()> {
    let x = f32s(&[1.0, 2.0]);
    let (handle, detached, kept) = (x.clone(), x.detach()?, x.copy()?);
    let before = x.mul(10)?;
    for synced in [false, true] {
        x.add_(1)?;
        if synced {
            xla::sync()?.wait()?;
        }
    }
    assert_eq!(x.to_vec::<f32>()?, [3.0, 4.0]);
    assert_eq!(handle.to_vec::<f32>()?, [3.0, 4.0]);
    assert_eq!(detached.to_vec::<f32>()?, [3.0, 4.0]);
    assert_eq!(kept.to_vec::<f32>()?, [1.0, 2.0]);
    assert_eq!(before.to_vec::<f32>()?, [10.0, 20.0]);
    Ok(())
}

/// Kilobytes that a line of `/proc/self/status` says.
fn status(name: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("the system has /proc");
    let line = text
        .lines()
        .find(|l| l.starts_with(name))
        .expect("the line exists");
    line.split_whitespace()
        .nth(1)
        .and_then(|n| n.parse().ok())
        .expect("a number")
}

/// 16 MiB of `f32`.
const LARGE: usize = 4 << 20;
const MIB: u64 = 1024;

#[test]
fn memory_of_what_changes_in_place_is_used_again() {
    with_devices(1, || {
        let x = Tensor::zeros(LARGE, ()).unwrap();
        let step = |i: usize| -> Result<()> {
            x.mul_(0.5)?;
            x.add_(i as f64)?;
            xla::sync().map(drop)
        };
        (0..5).try_for_each(step).unwrap();
        let (resident, peak) = (status("VmRSS"), status("VmHWM"));
        (0..100).try_for_each(step).unwrap();
        x.select(0, 0).unwrap().item::<f32>().unwrap();
        // One more array at most: 100 steps that kept theirs would take 1600 MiB.
        assert!(
            status("VmHWM") < peak + 24 * MIB,
            "peak from {peak} to {} kB",
            status("VmHWM")
        );
        assert!(
            status("VmRSS") < resident + 24 * MIB,
            "from {resident} to {} kB",
            status("VmRSS")
        );
    });
}

#[test]
fn a_training_step_keeps_nothing() {
    with_devices(1, || {
        let side = 1024;
        let w = Tensor::zeros([side, side], ())
            .unwrap()
            .requires_grad_(true)
            .unwrap();
        let x = Tensor::ones([side, side], ()).unwrap();
        let mut losses = Vec::new();
        let mut optimizer = Sgd::new(vec![w.clone()], 1e-6).momentum(0.9);
        let mut step = |i: usize| -> Result<()> {
            let loss = w.add(&x)?.square()?.sum((), false)?;
            if i.is_multiple_of(3) {
                // Read before the backward pass, which therefore is a program of its own.
                loss.item::<f32>()?;
            }
            loss.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();
            xla::sync()?;
            losses.push(loss);
            Ok(())
        };
        (0..9).try_for_each(&mut step).unwrap();
        let peak = status("VmHWM");
        (0..99).try_for_each(&mut step).unwrap();
        losses.last().unwrap().item::<f32>().unwrap();
        assert!(
            status("VmHWM") < peak + 24 * MIB,
            "peak from {peak} to {} kB",
            status("VmHWM")
        );
    });
}

#[test]
fn steps_run_in_order_however_many_are_asked_for() -> Result<()> {
    let x = f32s(&[1.0]);
    let mut seen = Vec::new();
    for step in 1..=50i64 {
        x.mul_(2)?;
        x.sub_(step)?;
        seen.push(x.copy()?);
        xla::sync()?;
    }
    let mut expected = 1.0f32;
    for (step, value) in (1..=50i64).zip(&seen) {
        expected = expected * 2.0 - step as f32;
        assert_eq!(value.item::<f32>()?, expected, "step {step}");
    }
    Ok(())
}

#[test]
fn handles_wait_only_when_asked() -> Result<()> {
    let x = Tensor::ones([512, 512], ())?;
    let mut handles = Vec::new();
    for _ in 0..4 {
        x.copy_(&x.matmul(&x)?.div(512)?)?;
        handles.push(xla::sync()?);
    }
    for handle in handles.into_iter().rev() {
        handle.wait()?;
    }
    assert!(x.to_vec::<f32>()?.iter().all(|v| *v == 1.0));
    Ok(())
}

#[test]
fn threads_outside_a_launch() {
    with_devices(1, || {
        let shared = f32s(&[2.0, 3.0]);
        let start = Barrier::new(2);
        let work = |seed: f32| -> Result<f32> {
            let x = f32s(&[seed, seed]);
            start.wait();
            let mut sum = 0.0;
            for _ in 0..50 {
                x.add_(&shared.mul(0.5)?)?;
                let y = nn::cross_entropy(&x.unsqueeze(0)?, &Tensor::zeros(1, DType::I64)?)?;
                y.to_vec::<f32>()?;
                sum = x.sum((), false)?.item()?;
            }
            Ok(sum)
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(|| work(10.0));
            assert_eq!(work(0.0).unwrap(), 125.0);
            assert_eq!(other.join().unwrap().unwrap(), 145.0);
        });
        // A value that one thread recorded and another reads.
        let pending =
            std::thread::scope(|scope| scope.spawn(|| shared.mul(4).unwrap()).join().unwrap());
        assert_eq!(
            pending.add(1).unwrap().to_vec::<f32>().unwrap(),
            [9.0, 13.0]
        );
    });
}

/// Threads outside a launch share one random generator, so that one runs what another has recorded of
/// it: not while that one goes through it backwards.
#[test]
fn threads_outside_a_launch_that_train() {
    with_devices(1, || {
        let start = Barrier::new(3);
        let work = || -> Result<()> {
            let weight = f32s(&[0.5; 64]).requires_grad_(true)?;
            start.wait();
            for _ in 0..60 {
                let noise = Tensor::rand(64, ())?;
                // Long enough for the other threads to come in between.
                let mut product = weight.mul(&noise)?;
                for _ in 0..40 {
                    product = product.add(1.0)?;
                }
                product.sum((), false)?.backward()?;
                xla::sync()?;
                let gradient = weight.grad().map(|grad| grad.to_vec::<f32>()).transpose()?;
                assert_eq!(gradient, Some(noise.to_vec::<f32>()?));
                weight.zero_grad();
            }
            Ok(())
        };
        std::thread::scope(|scope| {
            for thread in [(); 3].map(|()| scope.spawn(work)) {
                thread.join().unwrap().unwrap();
            }
        });
    });
}

#[test]
fn uploads_and_downloads_are_counted() -> Result<()> {
    let scope = Scope::new();
    let x = f32s(&[1.0, 2.0, 3.0]);
    assert_eq!(
        (
            scope.count(Counter::Upload),
            scope.count(Counter::UploadBytes)
        ),
        (1, 12)
    );
    x.to_vec::<f32>()?;
    assert_eq!(
        (scope.downloads(), scope.count(Counter::DownloadBytes)),
        (1, 12)
    );
    assert_eq!((scope.compiles(), scope.executions()), (0, 0));
    Ok(())
}
