//! Compiled functions compute what the same code computes as it is, and run without being called.

use std::cell::Cell;
use tests::with_devices;
use xla::metrics::{Counter, Scope};
use xla::nn::{self, BatchNorm1d, Dropout, Linear, Module, Relu, Sequential};
use xla::optim::{Adam, AdamW, NAdam, Optimizer, RAdam, Sgd};
use xla::{Generator, Result, Tensor};

const BATCH: usize = 8;
const FEATURES: usize = 5;
const CLASSES: usize = 3;

fn model() -> Result<Sequential> {
    xla::manual_seed(3)?;
    let model = Sequential::new()
        .add(Linear::new(FEATURES, 16, ())?)
        .add(BatchNorm1d::new(16, ())?)
        .add(Relu)
        .add(Linear::new(16, CLASSES, ())?);
    xla::sync()?;
    Ok(model)
}

fn batch(step: usize, size: usize) -> Result<(Tensor, Tensor)> {
    let value = |i: usize| ((i * 7 + step * 31) % 17) as f32 / 8.0 - 1.0;
    let points: Vec<f32> = (0..size * FEATURES).map(value).collect();
    let labels: Vec<i64> = (0..size)
        .map(|i| ((i * 5 + step) % CLASSES) as i64)
        .collect();
    Ok((
        Tensor::from_vec(points, [size, FEATURES], ())?,
        Tensor::from_vec(labels, [size], ())?,
    ))
}

/// What training leaves behind: parameters and buffers.
fn values(model: &Sequential) -> Vec<Vec<f32>> {
    let mut all = model.parameters();
    all.extend(model.buffers());
    let read = |t: &Tensor| {
        t.to_literal()
            .unwrap()
            .cast(xla::DType::F32)
            .to_vec()
            .unwrap()
    };
    all.iter().map(read).collect()
}

fn train(
    model: &Sequential,
    optimizer: &mut dyn Optimizer,
    (x, y): (&Tensor, &Tensor),
) -> Result<Tensor> {
    let loss = nn::cross_entropy(&model.forward(x)?, y)?;
    loss.backward()?;
    optimizer.step()?;
    optimizer.zero_grad();
    Ok(loss)
}

type Make = fn(Vec<Tensor>) -> Box<dyn Optimizer>;

/// Losses and what is left behind, of code that is run as it is.
fn eager(
    make: Make,
    sizes: &[usize],
    rate: impl Fn(usize) -> Option<f64>,
) -> (Vec<f32>, Vec<Vec<f32>>) {
    let model = model().unwrap();
    let mut optimizer = make(model.parameters());
    let mut losses = Vec::new();
    for (step, size) in sizes.iter().enumerate() {
        if let Some(rate) = rate(step) {
            optimizer.set_lr(rate);
        }
        let (x, y) = batch(step, *size).unwrap();
        let loss = train(&model, &mut *optimizer, (&x, &y)).unwrap();
        xla::sync().unwrap();
        losses.push(loss.item().unwrap());
    }
    (losses, values(&model))
}

struct Ran {
    losses: Vec<f32>,
    values: Vec<Vec<f32>>,
    calls: usize,
    compiles: u64,
}

fn compiled(make: Make, sizes: &[usize], rate: impl Fn(usize) -> Option<f64>) -> Ran {
    let model = model().unwrap();
    let optimizer = make(model.parameters());
    let calls = Cell::new(0);
    let mut step = xla::compile(
        |(model, optimizer): &mut (Sequential, Box<dyn Optimizer>), (x, y): (Tensor, Tensor)| {
            calls.set(calls.get() + 1);
            train(model, &mut **optimizer, (&x, &y))
        },
    )
    .name("train")
    .verify_every(0)
    .full_graph(true);
    let mut state = (model, optimizer);
    let mut losses = Vec::new();
    let scope = Scope::new();
    for (at, size) in sizes.iter().enumerate() {
        if let Some(rate) = rate(at) {
            state.1.set_lr(rate);
        }
        let loss = step.call(&mut state, batch(at, *size).unwrap()).unwrap();
        losses.push(loss.item().unwrap());
    }
    let compiles = scope.compiles();
    Ran {
        losses,
        values: values(&state.0),
        calls: calls.get(),
        compiles,
    }
}

#[track_caller]
fn assert_close(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() <= 1e-5 * e.abs().max(1.0), "{g} is not {e}");
    }
}

#[test]
fn training_is_what_it_is_as_ordinary_code() {
    with_devices(1, || {
        let optimizers: [Make; 5] = [
            |p| Box::new(Sgd::new(p, 0.1).momentum(0.9).weight_decay(1e-3)),
            |p| Box::new(Adam::new(p, 0.01)),
            |p| Box::new(AdamW::new(p, 0.01)),
            |p| Box::new(NAdam::new(p, 0.01)),
            |p| Box::new(RAdam::new(p, 0.01)),
        ];
        let sizes = [BATCH; 8];
        // A schedule that also becomes 0, as a warm-up may.
        let rate = |step: usize| (step >= 3).then_some(0.02 * (step % 3) as f64);
        for (index, make) in optimizers.into_iter().enumerate() {
            let (losses, left) = eager(make, &sizes, rate);
            let ran = compiled(make, &sizes, rate);
            assert_close(&ran.losses, &losses);
            for (got, expected) in ran.values.iter().zip(&left) {
                assert_close(got, expected);
            }
            // RAdam's formula has another form after its first steps.
            let forms = if index == 4 { 2 } else { 1 };
            assert_eq!(ran.calls, forms, "optimizer {index}");
            assert!(
                ran.compiles <= 2,
                "optimizer {index}: {} compiles",
                ran.compiles
            );
        }
    });
}

#[test]
fn the_second_call_records_nothing() {
    with_devices(1, || {
        let ran = compiled(
            |p| Box::new(Adam::new(p, 0.01)),
            &[BATCH; 5],
            |step| Some(0.01 / (step + 1) as f64),
        );
        assert_eq!((ran.calls, ran.compiles), (1, 1));
    });
}

#[test]
fn a_ragged_batch_is_one_more_graph() {
    with_devices(1, || {
        let make: Make = |p| Box::new(Sgd::new(p, 0.1));
        let sizes = [BATCH, BATCH, 3, BATCH, 3, BATCH];
        let (losses, left) = eager(make, &sizes, |_| None);
        let ran = compiled(make, &sizes, |_| None);
        assert_close(&ran.losses, &losses);
        assert_close(&ran.values.concat(), &left.concat());
        assert_eq!((ran.calls, ran.compiles), (2, 2));
    });
}

#[test]
fn masks_differ_at_each_call_and_are_those_of_ordinary_code() {
    with_devices(1, || {
        let draws = |compiled: bool| -> Vec<Vec<f32>> {
            xla::manual_seed(11).unwrap();
            let dropout = Dropout::new(0.5);
            let x = Tensor::ones([64], ()).unwrap();
            xla::sync().unwrap();
            let mut drop_some = xla::compile_fn(|x: Tensor| dropout.forward(&x));
            let mut draw = |x: &Tensor| match compiled {
                true => drop_some.call(x),
                false => dropout.forward(x),
            };
            let drawn: Vec<_> = (0..4)
                .map(|_| draw(&x).unwrap().to_vec().unwrap())
                .collect();
            if compiled {
                assert_eq!(drop_some.recordings(), 1);
            }
            drawn
        };
        let (got, expected) = (draws(true), draws(false));
        assert_eq!(got, expected);
        assert_ne!(got[1], got[2]);
        // A generator of the state's own.
        let generator = Generator::new(5, xla::device().unwrap()).unwrap();
        let other = Generator::new(5, xla::device().unwrap()).unwrap();
        let mut bits = xla::compile(|g: &mut Generator, (): ()| g.bits([4]));
        let mut state = generator;
        for _ in 0..3 {
            let drawn = bits.call(&mut state, ()).unwrap().to_vec::<u32>().unwrap();
            assert_eq!(drawn, other.bits([4]).unwrap().to_vec::<u32>().unwrap());
        }
        assert_eq!(bits.recordings(), 1);
    });
}

#[test]
fn numbers_are_arguments_and_captured_tensors_are_read_where_they_are() {
    with_devices(1, || {
        let weight = Tensor::from_slice(&[1.0_f32, 2.0], [2], ()).unwrap();
        let mut scaled = xla::compile_fn(|(x, factor, shift): (Tensor, Tensor, Tensor)| {
            let constant = Tensor::from_slice(&[10.0_f32, 20.0], [2], ())?;
            x.mul(&factor)?.add(&shift)?.mul(&weight)?.add(&constant)
        });
        let x = Tensor::from_slice(&[1.0_f32, 1.0], [2], ()).unwrap();
        let mut at = |factor: f64, shift: i64| -> Vec<f32> {
            let y = scaled.call((&x, factor, shift)).unwrap();
            assert_eq!(y.dtype(), xla::DType::F32);
            y.to_vec().unwrap()
        };
        assert_eq!(at(2.0, 1), [13.0, 26.0]);
        assert_eq!(at(0.5, 3), [13.5, 27.0]);
        xla::no_grad(|| weight.mul_(2.0)).unwrap();
        assert_eq!(at(1.0, 0), [12.0, 24.0]);
        weight
            .set_data(&Tensor::from_slice(&[0.0_f32, -1.0], [2], ()).unwrap())
            .unwrap();
        assert_eq!(at(1.0, 0), [10.0, 19.0]);
        assert_eq!(scaled.recordings(), 1);
    });
}

#[test]
fn evaluation_is_another_graph_than_training() {
    with_devices(1, || {
        let mut model = model().unwrap();
        let (x, _) = batch(0, BATCH).unwrap();
        let mut forward = xla::compile(|model: &mut Sequential, x: Tensor| model.forward(&x));
        for _ in 0..2 {
            forward.call(&mut model, &x).unwrap();
        }
        model.eval();
        for _ in 0..2 {
            let got = forward
                .call(&mut model, &x)
                .unwrap()
                .to_vec::<f32>()
                .unwrap();
            assert_close(&got, &model.forward(&x).unwrap().to_vec().unwrap());
        }
        assert_eq!((forward.recordings(), forward.graphs()), (2, 2));
        // A shared module does as well, and other weights are found by storage.
        let other = self::model().unwrap();
        let mut forward = xla::compile(|model: &mut &Sequential, x: Tensor| model.forward(&x));
        for model in [&model, &other, &model, &other] {
            model.eval();
            let got = forward
                .call(&mut &*model, &x)
                .unwrap()
                .to_vec::<f32>()
                .unwrap();
            assert_close(&got, &model.forward(&x).unwrap().to_vec().unwrap());
        }
        assert_eq!(forward.recordings(), 2);
    });
}

#[test]
fn gradients_are_accumulated_over_calls() {
    with_devices(1, || {
        let weight = Tensor::from_slice(&[3.0_f32], [1], ()).unwrap();
        let mut weight = weight.requires_grad_(true).unwrap();
        let mut pass = xla::compile(|weight: &mut Tensor, x: Tensor| {
            weight.mul(&x)?.sum((), false)?.backward()
        });
        for (calls, expected) in [(1, 2.0), (2, 4.0), (3, 6.0), (4, 8.0)] {
            let x = Tensor::from_slice(&[2.0_f32], [1], ()).unwrap();
            pass.call(&mut weight, x).unwrap();
            let grad: f32 = weight.grad().unwrap().item().unwrap();
            assert_eq!(grad, expected, "after {calls} calls");
        }
        // Without a gradient to begin with, and with one.
        assert_eq!(pass.recordings(), 2);
        weight.zero_grad();
        pass.call(&mut weight, Tensor::full([1], 5.0, ()).unwrap())
            .unwrap();
        assert_eq!(weight.grad().unwrap().item::<f32>().unwrap(), 5.0);
        assert_eq!(pass.recordings(), 2);
    });
}

#[test]
fn a_state_keeps_its_memory() {
    with_devices(1, || {
        let mut state = Tensor::zeros([256, 1024], ()).unwrap();
        xla::sync().unwrap().wait().unwrap();
        let mut grow = xla::compile(|state: &mut Tensor, by: Tensor| state.add_(&by).map(drop));
        grow.call(&mut state, 1.0).unwrap();
        let scope = Scope::new();
        for _ in 0..20 {
            grow.call(&mut state, 1.0).unwrap();
        }
        assert_eq!(state.amax((), false).unwrap().item::<f32>().unwrap(), 21.0);
        assert_eq!(grow.recordings(), 2, "one call in 16 is verified");
        // An execution and a result a call, and those of the maximum.
        assert_eq!(scope.count(Counter::Execute), 21);
        assert_eq!(scope.count(Counter::Output), 21);
    });
}
