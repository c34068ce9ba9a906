//! What the host does for a step of training, the mlp of the benchmarks with one sample: recorded by
//! ordinary code each time, and as a compiled function. What the device then computes is not timed.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::{Duration, Instant};
use xla::nn::{Linear, Module, Relu, Sequential, cross_entropy};
use xla::optim::Sgd;
use xla::{Result, Tensor};

type State = (Sequential, Sgd);

fn state() -> Result<State> {
    let model = Sequential::new()
        .add(Linear::new(784, 512, ())?)
        .add(Relu)
        .add(Linear::new(512, 512, ())?)
        .add(Relu)
        .add(Linear::new(512, 10, ())?);
    let optimizer = Sgd::new(model.parameters(), 0.05).momentum(0.9);
    Ok((model, optimizer))
}

fn step((model, optimizer): &mut State, (x, y): (Tensor, Tensor)) -> Result<Tensor> {
    let loss = cross_entropy(&model.forward(&x)?, &y)?;
    loss.backward()?;
    optimizer.step()?;
    optimizer.zero_grad();
    Ok(loss)
}

/// Times what `run` does until it returns, with each step over before the next.
fn time(n: u64, mut run: impl FnMut() -> Result<Tensor>) -> Result<Duration> {
    for _ in 0..3 {
        run()?;
        xla::sync()?.wait()?;
    }
    let mut spent = Duration::ZERO;
    for _ in 0..n {
        let start = Instant::now();
        let loss = run()?;
        spent += start.elapsed();
        xla::sync()?.wait()?;
        black_box(loss);
    }
    Ok(spent)
}

fn steps(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("host's part of an mlp step");
    let batch = || -> Result<(Tensor, Tensor)> {
        Ok((
            Tensor::rand([1, 784], ())?,
            Tensor::from_slice(&[3_i64], [1], ())?,
        ))
    };
    group.bench_function("ordinary", |bencher| {
        bencher.iter_custom(|n| {
            let run = || {
                let (mut state, (x, y)) = (state()?, batch()?);
                time(n, || {
                    let loss = step(&mut state, (x.clone(), y.clone()))?;
                    xla::sync()?;
                    Ok(loss)
                })
            };
            run().expect("a step")
        });
    });
    group.bench_function("compiled", |bencher| {
        bencher.iter_custom(|n| {
            let run = || {
                let (mut state, (x, y)) = (state()?, batch()?);
                let mut compiled = xla::compile(step).verify_every(0);
                time(n, || compiled.call(&mut state, (&x, &y)))
            };
            run().expect("a step")
        });
    });
    group.finish();
}

criterion_group!(group, steps);
criterion_main!(group);
