//! SGD's update rules, against sequences worked out by hand.

use xla_core::Error;
use xla_lazy::Tensor;
use xla_nn::optim::{Optimizer, Sgd};
use xla_runtime::metrics::Scope;

/// Values of a parameter that starts at 1 and minimises `p² / 2`, whose gradient is `p`.
fn descend(steps: usize, mut configure: impl FnMut(Sgd) -> Sgd) -> Vec<f64> {
    let p = Tensor::from_slice(&[1.0f64], [1], ())
        .unwrap()
        .requires_grad_(true)
        .unwrap();
    let mut optimizer = configure(Sgd::new(vec![p.clone()], 0.1));
    (0..steps)
        .map(|_| {
            step(&p, &mut optimizer);
            p.item::<f64>().unwrap()
        })
        .collect()
}

fn step(p: &Tensor, optimizer: &mut dyn Optimizer) {
    p.mul(p)
        .unwrap()
        .mul(0.5)
        .unwrap()
        .sum((), false)
        .unwrap()
        .backward()
        .unwrap();
    optimizer.step().unwrap();
    optimizer.zero_grad();
}

#[track_caller]
fn assert_sequence(got: &[f64], expected: &[f64]) {
    assert_eq!(got.len(), expected.len());
    for (g, e) in got.iter().zip(expected) {
        assert!((g - e).abs() < 1e-12, "{got:?} is not {expected:?}");
    }
}

#[test]
fn plain_descent() {
    assert_sequence(&descend(3, |sgd| sgd), &[0.9, 0.81, 0.729]);
}

#[test]
fn momentum_keeps_a_running_direction() {
    // b: 1, 0.9·1 + 0.9 = 1.8, 0.9·1.8 + 0.72 = 2.34
    assert_sequence(&descend(3, |sgd| sgd.momentum(0.9)), &[0.9, 0.72, 0.486]);
}

#[test]
fn the_first_step_is_not_dampened() {
    // b: 1, 0.9·1 + 0.5·0.9 = 1.35
    assert_sequence(
        &descend(2, |sgd| sgd.momentum(0.9).dampening(0.5)),
        &[0.9, 0.765],
    );
}

#[test]
fn nesterov_looks_ahead() {
    // b: 1, 0.9·1 + 0.81 = 1.71; directions 1 + 0.9·1 = 1.9 and 0.81 + 0.9·1.71 = 2.349
    assert_sequence(
        &descend(2, |sgd| sgd.momentum(0.9).nesterov(true)),
        &[0.81, 0.5751],
    );
}

#[test]
fn weight_decay_adds_to_the_gradient() {
    assert_sequence(&descend(2, |sgd| sgd.weight_decay(0.5)), &[0.85, 0.7225]);
    // g = 1.5 p; b: 1.5, 0.9·1.5 + 1.275 = 2.625
    assert_sequence(
        &descend(2, |sgd| sgd.weight_decay(0.5).momentum(0.9)),
        &[0.85, 0.5875],
    );
}

#[test]
fn a_schedule_recompiles_nothing() {
    let p = Tensor::from_slice(&[1.0f32; 4], [4], ())
        .unwrap()
        .requires_grad_(true)
        .unwrap();
    let mut optimizer = Sgd::new(vec![p.clone()], 0.5)
        .momentum(0.9)
        .weight_decay(0.1);
    for _ in 0..2 {
        step(&p, &mut optimizer);
        xla_lazy::sync().unwrap();
    }
    let scope = Scope::new();
    for lr in [0.25, 0.1, 1.0, 0.0, 0.3] {
        optimizer.set_lr(lr);
        assert_eq!(optimizer.lr(), lr);
        step(&p, &mut optimizer);
        xla_lazy::sync().unwrap().wait().unwrap();
    }
    assert_eq!(scope.compiles(), 0);
    assert_eq!(scope.executions(), 5);
}

#[test]
fn a_parameter_without_a_gradient_stays() {
    let used = Tensor::from_slice(&[1.0f64], [1], ())
        .unwrap()
        .requires_grad_(true)
        .unwrap();
    let unused = Tensor::from_slice(&[5.0f64], [1], ())
        .unwrap()
        .requires_grad_(true)
        .unwrap();
    let mut optimizer = Sgd::new(vec![used.clone(), unused.clone()], 0.1).weight_decay(1.0);
    step(&used, &mut optimizer);
    assert_eq!(unused.item::<f64>().unwrap(), 5.0);
    assert!(used.grad().is_none());
    // Nothing to follow: a step changes nothing.
    let before = used.item::<f64>().unwrap();
    optimizer.step().unwrap();
    assert_eq!(used.item::<f64>().unwrap(), before);
}

#[test]
fn options_that_exclude_each_other_are_an_error() {
    let p = Tensor::from_slice(&[1.0f64], [1], ())
        .unwrap()
        .requires_grad_(true)
        .unwrap();
    let with = |lr| Sgd::new(vec![p.clone()], lr);
    for (mut sgd, name) in [
        (with(-0.1), "lr"),
        (with(f64::NAN), "lr"),
        (with(0.1).momentum(-0.5), "momentum"),
        (with(0.1).weight_decay(f64::INFINITY), "weight_decay"),
        (with(0.1).nesterov(true), "nesterov"),
        (
            with(0.1).momentum(0.9).dampening(0.1).nesterov(true),
            "nesterov",
        ),
    ] {
        let line = line!() + 1;
        let error = sgd.step().unwrap_err();
        assert!(
            matches!(&error, Error::Argument { argument, .. } if *argument == name),
            "{error}"
        );
        assert_eq!(error.location().map(|l| l.line()), Some(line));
    }
}
