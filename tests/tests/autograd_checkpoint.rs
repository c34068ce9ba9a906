//! Computing again in the backward pass instead of keeping.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tests::check::{close, values};
use tests::{alone, multiples, replicas, with_devices};
use xla::metrics::Scope;
use xla::nn::{DistributedDataParallel, Forward, Linear, Module};
use xla::{GradOptions, Result, Tensor, no_grad};

fn matrix(dims: &[usize], requires_grad: bool) -> Result<Tensor> {
    Tensor::randn(dims, ())?
        .mul_(0.3)?
        .requires_grad_(requires_grad)
}

/// Two layers with a random mask between them.
fn block(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let hidden = x.matmul(w)?.tanh()?;
    let mask = hidden.rand_like()?.gt(0.5)?;
    hidden.mul(&mask)?.matmul(w)?.sin()
}

#[test]
fn gradients_are_those_without_it() {
    alone(|| {
        for synced in [false, true] {
            let run = |checkpointed: bool| -> Result<[Vec<f64>; 4]> {
                xla::manual_seed(3)?;
                let (w, x) = (matrix(&[4, 4], true)?, matrix(&[2, 4], true)?);
                let input = x.mul(2)?;
                let captured = w.clone();
                let y = match checkpointed {
                    true => xla::checkpoint(move |inputs| block(&inputs[0], &captured), &[&input])?,
                    false => block(&input, &w)?,
                };
                let after = Tensor::rand(2, ())?;
                let loss = y.square()?.sum((), false)?;
                if synced {
                    xla::sync()?.wait()?;
                }
                loss.backward()?;
                // What is drawn later does not depend on it either.
                let later = Tensor::cat(&[&after, &Tensor::rand(2, ())?], 0)?;
                let grad = |t: &Tensor| values(&t.grad().expect("there is a gradient"));
                Ok([values(&loss)?, grad(&w)?, grad(&x)?, values(&later)?])
            };
            for (got, expected) in run(true)?.iter().zip(run(false)?) {
                close(&format!("synced: {synced}"), got, &expected, 1e-6);
            }
        }
        Ok(())
    });
}

#[test]
fn one_inside_another_and_in_one_program() {
    alone(|| {
        let calls = Arc::new(AtomicUsize::new(0));
        let w = matrix(&[4, 4], true)?;
        let (counted, captured) = (Arc::clone(&calls), w.clone());
        let f = move |inputs: &[Tensor]| {
            counted.fetch_add(1, Ordering::Relaxed);
            let captured = captured.clone();
            xla::checkpoint(
                move |inputs| block(&inputs[0], &captured),
                &[&inputs[0].exp()?],
            )?
            .exp()
        };
        let x = matrix(&[2, 4], false)?;
        xla::sync()?;
        let scope = Scope::new();
        for step in 0..3 {
            let loss = xla::checkpoint(f.clone(), &[&x])?.sum((), false)?;
            loss.backward()?;
            w.zero_grad();
            loss.item::<f32>()?;
            assert_eq!(calls.load(Ordering::Relaxed), 2 * (step + 1));
        }
        assert_eq!((scope.compiles(), scope.executions()), (1, 3));
        let without = no_grad(|| xla::checkpoint(f, &[&x]))?;
        assert!(!without.requires_grad());
        Ok(())
    });
}

#[test]
fn nothing_between_is_kept() {
    alone(|| {
        let deep = |x: &Tensor| (0..10).try_fold(x.clone(), |x, _| x.sin()?.exp());
        let outputs = |checkpointed: bool| -> Result<u64> {
            let x = Tensor::from_slice(&[0.1f32, 0.2], 2, ())?.requires_grad_(true)?;
            xla::sync()?;
            let scope = Scope::new();
            let y = match checkpointed {
                true => xla::checkpoint(move |inputs| deep(&inputs[0]), &[&x])?,
                false => deep(&x)?,
            };
            let loss = y.sum((), false)?;
            loss.item::<f32>()?;
            let outputs = scope.outputs();
            drop(y);
            loss.backward()?;
            Ok(outputs)
        };
        // Each exponential saves its value, which the next sine saves too; the loss is the last output.
        assert_eq!((outputs(false)?, outputs(true)?), (11, 2));
        Ok(())
    });
}

#[test]
fn replicas_average_what_is_computed_again() {
    with_devices(2, || {
        let gradients = replicas(2, |rank| {
            xla::manual_seed(4)?;
            let model = DistributedDataParallel::new(Linear::new(2, 1, ())?)?;
            let parameters = model.parameters();
            let model = Arc::new(model);
            let inner = Arc::clone(&model);
            let x = multiples(rank)?.reshape([1, 2])?;
            let y = xla::checkpoint(move |inputs| inner.forward(&inputs[0]), &[&x])?;
            y.sum((), false)?.backward()?;
            values(&parameters[0].grad().expect("there is a gradient"))
        });
        // The mean of [1, 2] and [2, 4].
        assert_eq!(gradients, [vec![1.5, 3.0], vec![1.5, 3.0]]);
    });
}

#[test]
fn it_is_differentiated_twice() {
    alone(|| {
        let x = Tensor::from_slice(&[0.5f32, -1.0], 2, ())?.requires_grad_(true)?;
        let y = xla::checkpoint(|inputs| inputs[0].pow(3), &[&x])?.sum((), false)?;
        let create = GradOptions {
            create_graph: true,
            ..Default::default()
        };
        let first = xla::grad(&[&y], &[&x], create)?.remove(0);
        let first = first.expect("it depends on x");
        let total = first.sum((), false)?;
        let second = xla::grad(&[&total], &[&x], GradOptions::default())?.remove(0);
        let second = second.expect("it depends on x");
        close("3 x²", &values(&first)?, &[0.75, 3.0], 1e-6);
        close("6 x", &values(&second)?, &[3.0, -6.0], 1e-6);
        Ok(())
    });
}
