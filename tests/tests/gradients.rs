//! Gradients of every differentiable operator against central differences, in `f64` along random
//! directions; and how a backward pass behaves.

use tests::with_devices;
use xla::metrics::Scope;
use xla::{BackwardOptions, DType, Error, GradOptions, Result, Tensor, no_grad};

/// Numbers of no particular pattern in 0..1, the same in each run.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn vector(&mut self, n: usize, low: f64, high: f64) -> Vec<f64> {
        (0..n).map(|_| low + (high - low) * self.next()).collect()
    }
}

/// One operand that is differentiated: its shape and the interval its elements are drawn from.
type Leaf = (&'static [usize], f64, f64);

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn moved(x: &[f64], direction: &[f64], by: f64) -> Vec<f64> {
    x.iter().zip(direction).map(|(x, d)| x + by * d).collect()
}

#[track_caller]
fn near(what: &str, got: f64, expected: f64, tolerance: f64) {
    let error = (got - expected).abs();
    assert!(
        error <= tolerance * expected.abs().max(1.0),
        "{what}: got {got:e}, differences give {expected:e}"
    );
}

fn leaves(data: &[Vec<f64>], shapes: &[Leaf], requires_grad: bool) -> Result<Vec<Tensor>> {
    data.iter()
        .zip(shapes)
        .map(|(x, (dims, ..))| Tensor::from_slice(x, *dims, ())?.requires_grad_(requires_grad))
        .collect()
}

/// Compares the gradients of `f` with differences: in one program with the values, after the values
/// were executed and read, and the gradients' own gradients likewise.
fn check(name: &str, shapes: &[Leaf], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
    checked(name, shapes, &f).unwrap_or_else(|e| panic!("{name}: {e}"));
}

fn checked(name: &str, shapes: &[Leaf], f: &dyn Fn(&[Tensor]) -> Result<Tensor>) -> Result<()> {
    const STEP: f64 = 1e-5;
    let mut noise = Noise(name.bytes().map(u64::from).sum());
    let x: Vec<Vec<f64>> = (shapes.iter())
        .map(|(dims, low, high)| noise.vector(dims.iter().product(), *low, *high))
        .collect();
    let directions: Vec<Vec<f64>> = x.iter().map(|x| noise.vector(x.len(), -1.0, 1.0)).collect();
    let at = |by: f64| -> Vec<Vec<f64>> {
        x.iter()
            .zip(&directions)
            .map(|(x, d)| moved(x, d, by))
            .collect()
    };
    let y = f(&leaves(&x, shapes, false)?)?;
    let weights = noise.vector(y.numel(), 0.5, 1.5);
    let seed = Tensor::from_slice(&weights, y.shape().clone(), ())?;
    let weighted = |by: f64| -> Result<f64> {
        let y = f(&leaves(&at(by), shapes, false)?)?;
        Ok(dot(&y.to_dtype(DType::F64)?.to_vec()?, &weights))
    };
    let expected = (weighted(STEP)? - weighted(-STEP)?) / (2.0 * STEP);
    assert!(
        expected.abs() > 1e-3,
        "{name}: flat here, which shows nothing"
    );

    for read_before in [false, true] {
        let inputs = leaves(&x, shapes, true)?;
        let y = f(&inputs)?;
        if read_before {
            y.to_literal()?;
        }
        y.backward_with(BackwardOptions {
            gradient: Some(seed.clone()),
            ..Default::default()
        })?;
        let mut got = 0.0;
        for ((input, direction), (dims, ..)) in inputs.iter().zip(&directions).zip(shapes) {
            let grad = input
                .grad()
                .unwrap_or_else(|| panic!("{name}: no gradient"));
            assert_eq!((grad.dims(), grad.dtype()), (*dims, DType::F64), "{name}");
            got += dot(&grad.to_vec()?, direction);
        }
        near(
            &format!("{name}, read before: {read_before}"),
            got,
            expected,
            1e-6,
        );
    }

    // The gradient along fixed vectors, as a function of the inputs.
    let vectors: Vec<Vec<f64>> = x.iter().map(|x| noise.vector(x.len(), 0.5, 1.5)).collect();
    let first = |inputs: &[Tensor], create_graph: bool, read: bool| -> Result<Vec<Tensor>> {
        let y = f(inputs)?;
        let options = GradOptions {
            grad_outputs: Some(vec![seed.clone()]),
            create_graph,
            ..Default::default()
        };
        let wanted: Vec<&Tensor> = inputs.iter().collect();
        let grads = xla::grad(&[&y], &wanted, options)?;
        let grads: Vec<Tensor> = grads
            .into_iter()
            .map(|g| g.expect("each input counts"))
            .collect();
        if read {
            xla::sync()?.wait()?;
        }
        Ok(grads)
    };
    let along = |by: f64| -> Result<f64> {
        let grads = first(&leaves(&at(by), shapes, true)?, false, false)?;
        grads
            .iter()
            .zip(&vectors)
            .map(|(g, v)| Ok(dot(&g.to_vec()?, v)))
            .sum()
    };
    let expected = (along(STEP)? - along(-STEP)?) / (2.0 * STEP);
    for read in [false, true] {
        let inputs = leaves(&x, shapes, true)?;
        let grads = first(&inputs, true, read)?;
        if !grads.iter().any(Tensor::requires_grad) {
            near(
                &format!("{name}, second derivative of a linear map"),
                0.0,
                expected,
                1e-5,
            );
            continue;
        }
        for (g, v) in grads.iter().zip(&vectors) {
            if g.requires_grad() {
                let seed = Tensor::from_slice(v, g.shape().clone(), ())?;
                g.backward_with(BackwardOptions {
                    gradient: Some(seed),
                    retain_graph: true,
                    ..Default::default()
                })?;
            }
        }
        let mut got = 0.0;
        for (input, direction) in inputs.iter().zip(&directions) {
            if let Some(grad) = input.grad() {
                got += dot(&grad.to_vec()?, direction);
            }
        }
        near(
            &format!("{name}, second derivative, synced between: {read}"),
            got,
            expected,
            1e-5,
        );
    }
    Ok(())
}

#[test]
fn of_one_tensor() {
    const V: &[usize] = &[5];
    check("neg", &[(V, -1.0, 1.0)], |x| x[0].neg());
    check("exp", &[(V, -1.0, 1.0)], |x| x[0].exp());
    check("log", &[(V, 0.5, 2.0)], |x| x[0].log());
    check("log1p", &[(V, -0.5, 2.0)], |x| x[0].log1p());
    check("expm1", &[(V, -1.0, 1.0)], |x| x[0].expm1());
    check("sqrt", &[(V, 0.5, 2.0)], |x| x[0].sqrt());
    check("rsqrt", &[(V, 0.5, 2.0)], |x| x[0].rsqrt());
    check("tanh", &[(V, -1.0, 1.0)], |x| x[0].tanh());
    check("sigmoid", &[(V, -1.0, 1.0)], |x| x[0].sigmoid());
    check("sin", &[(V, -1.0, 1.0)], |x| x[0].sin());
    check("cos", &[(V, 0.5, 2.0)], |x| x[0].cos());
    check("erf", &[(V, -1.0, 1.0)], |x| x[0].erf());
    check("relu above 0", &[(V, 0.1, 1.0)], |x| x[0].relu());
    check("relu around 0", &[(&[40], -1.0, 1.0)], |x| {
        x[0].relu()?.mul(&x[0])
    });
    check("abs", &[(&[40], -1.0, 1.0)], |x| {
        x[0].abs()?.mul(&x[0].exp()?)
    });
    check("square", &[(V, -1.0, 1.0)], |x| x[0].square());
    check("reciprocal", &[(V, 0.5, 2.0)], |x| x[0].reciprocal());
    check("sign, floor, ceil, round", &[(V, 1.1, 1.4)], |x| {
        x[0].sign()?
            .add(&x[0].floor()?)?
            .add(&x[0].ceil()?)?
            .add(&x[0].round()?)?
            .mul(&x[0])
    });
    check("copy", &[(V, -1.0, 1.0)], |x| x[0].copy());
    check("clamp", &[(&[40], -1.0, 1.0)], |x| {
        x[0].clamp(Some(-0.5), Some(0.4))?.mul(&x[0])
    });
    check("to_dtype", &[(V, -1.0, 1.0)], |x| {
        x[0].mul(4.0)?.to_dtype(DType::F64)
    });
}

#[test]
fn of_two_tensors_that_broadcast() {
    const A: Leaf = (&[2, 1, 3], 0.5, 2.0);
    const B: Leaf = (&[4, 1], 0.5, 2.0);
    check("add", &[A, B], |x| &x[0] + &x[1]);
    check("sub", &[A, B], |x| &x[0] - &x[1]);
    check("mul", &[A, B], |x| &x[0] * &x[1]);
    check("div", &[A, B], |x| &x[0] / &x[1]);
    check("pow", &[A, B], |x| x[0].pow(&x[1]));
    check("maximum", &[A, B], |x| x[0].maximum(&x[1])?.mul(&x[1]));
    check("minimum", &[A, B], |x| x[0].minimum(&x[1])?.mul(&x[0]));
    check("where", &[A, B], |x| {
        x[0].lt(&x[1])?.select_from(&x[0].exp()?, &x[1])
    });
    check("with itself", &[A], |x| (&x[0] * &x[0])? / &x[0].exp()?);
    check("numbers", &[A], |x| {
        2.0 / ((1.0 - &x[0])? * 3.0 + &x[0].mul(5)?)?
    });
    check("pow number", &[A], |x| x[0].pow(2.5));
    check("pow of a number", &[A], |x| {
        Tensor::scalar(1.5, DType::F64)?.pow(&x[0])
    });
    check("pow of a negative", &[(&[6], -2.0, -0.5)], |x| x[0].pow(3));
    check("where number", &[A], |x| {
        x[0].gt(1.2)?.select_from(&x[0].square()?, 0.5)
    });
    check("scalar", &[A, (&[], 0.5, 2.0)], |x| {
        x[0].mul(&x[1])?.div(&x[1].exp()?)
    });
}

#[test]
fn of_reductions() {
    const A: Leaf = (&[2, 3, 4], -1.0, 1.0);
    check("sum", &[A], |x| x[0].sum([0, 2], false));
    check("sum keepdim", &[A], |x| x[0].sum(1, true)?.mul(&x[0]));
    check("sum all", &[A], |x| x[0].square()?.sum((), false));
    check("mean", &[A], |x| x[0].exp()?.mean([1], false));
    check("mean all", &[A], |x| x[0].exp()?.mean((), true));
    check("amax", &[A], |x| x[0].amax([0, 1], false)?.exp());
    check("amin", &[A], |x| x[0].amin((), false)?.exp());
    check("softmax", &[A], |x| x[0].softmax(1));
    check("log_softmax", &[A], |x| x[0].log_softmax(-1));
    check("variance", &[A], |x| {
        x[0].sub(&x[0].mean(1, true)?)?.square()?.mean(1, false)
    });
    check("sum_to_size", &[A, (&[3, 1], -1.0, 1.0)], |x| {
        x[0].square()?.sum_to_size(x[1].shape())?.mul(&x[1])
    });
}

#[test]
fn of_products() {
    check("vectors", &[(&[4], -1.0, 1.0), (&[4], 0.5, 1.0)], |x| {
        x[0].matmul(&x[1])
    });
    check(
        "matrix by vector",
        &[(&[3, 4], -1.0, 1.0), (&[4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "vector by matrix",
        &[(&[3], -1.0, 1.0), (&[3, 4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "matrices",
        &[(&[2, 3], -1.0, 1.0), (&[3, 4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "batch by matrix",
        &[(&[5, 2, 3], -1.0, 1.0), (&[3, 4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "matrix by batch",
        &[(&[2, 3], -1.0, 1.0), (&[5, 3, 4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "batches",
        &[(&[5, 1, 2, 3], -1.0, 1.0), (&[2, 3, 2], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check(
        "vector by batch",
        &[(&[3], -1.0, 1.0), (&[5, 3, 4], 0.5, 1.0)],
        |x| x[0].matmul(&x[1]),
    );
    check("a matrix by itself", &[(&[3, 3], 0.5, 1.0)], |x| {
        x[0].t()?.matmul(&x[0])
    });
}

#[test]
fn of_arrangements_and_selections() {
    const A: Leaf = (&[2, 3, 4], -1.0, 1.0);
    let index = |data: &[i64], dims: &[usize]| Tensor::from_slice(data, dims, ()).unwrap();
    check("reshape", &[A], |x| {
        x[0].reshape([4, 6])?.matmul(&x[0].reshape([6, 4])?)
    });
    check("permute", &[A], |x| x[0].permute([2, 0, 1])?.square());
    check("transpose", &[A], |x| {
        x[0].transpose(0, 2)?.reshape([-1])?.exp()
    });
    check("expand", &[(&[3, 1], -1.0, 1.0)], |x| {
        x[0].expand([2, 3, 4])?.square()
    });
    check("unsqueeze, squeeze", &[A], |x| {
        x[0].unsqueeze(1)?.exp()?.squeeze(1)
    });
    check("narrow", &[A], |x| x[0].narrow(1, 1, 2)?.square());
    check("slice", &[A], |x| x[0].slice(2, 1, 4, 2)?.exp());
    check("select", &[A], |x| {
        x[0].select(1, -1)?.mul(&x[0].select(1, 0)?)
    });
    check("cat", &[A, (&[2, 1, 4], -1.0, 1.0)], |x| {
        Tensor::cat(&[&x[0], &x[1], &x[0]], 1)?.square()
    });
    check("stack", &[A], |x| {
        Tensor::stack(&[&x[0], &x[0].exp()?], 1)?.square()
    });
    let rows = index(&[2, 0, 2], &[3]);
    check("index_select", &[A], |x| {
        x[0].index_select(1, &rows)?.square()
    });
    let computed = index(&[1, -1, 1], &[3]).add(1).unwrap();
    check("index_select computed", &[A], |x| {
        x[0].index_select(1, &computed)?.square()
    });
    let picks = index(&[2, 0, 2, 1], &[1, 2, 2]);
    check("gather", &[A], |x| x[0].gather(1, &picks)?.square());
    let labels = index(&[2, 0], &[2]);
    check("cross_entropy", &[(&[2, 3], -1.0, 1.0)], |x| {
        xla::nn::cross_entropy(&x[0], &labels)
    });
    check("in-place", &[A, (&[3], -1.0, 1.0)], |x| {
        let y = x[0].exp()?;
        y.select(2, 1)?.mul_(&x[1])?;
        y.slice(2, 0, 4, 3)?
            .add_(&x[0].slice(2, 0, 4, 3)?.square()?)?;
        y.permute([2, 1, 0])?.square()
    });
}

fn leaf(data: &[f32]) -> Tensor {
    Tensor::from_slice(data, data.len(), ())
        .and_then(|x| x.requires_grad_(true))
        .unwrap()
}

fn grad_of(x: &Tensor) -> Vec<f32> {
    x.grad().expect("there is a gradient").to_vec().unwrap()
}

#[test]
fn gradients_accumulate_until_they_are_forgotten() -> Result<()> {
    let w = leaf(&[3.0]);
    for total in [6.0, 12.0, 18.0] {
        w.square()?.sum((), false)?.backward()?;
        assert_eq!(grad_of(&w), [total]);
    }
    w.zero_grad();
    assert!(w.grad().is_none());
    (&w + &w)?.backward()?;
    xla::sync()?;
    (&w * 5)?.backward()?;
    assert_eq!(grad_of(&w), [7.0]);
    Ok(())
}

#[test]
fn one_graph_is_passed_once_unless_retained() -> Result<()> {
    for executed in [false, true] {
        let w = leaf(&[2.0]);
        let y = w.exp()?.square()?;
        if executed {
            xla::sync()?.wait()?;
        }
        y.backward_with(BackwardOptions {
            retain_graph: true,
            ..Default::default()
        })?;
        let once = grad_of(&w)[0];
        assert!((f64::from(once) - 2.0 * 4f64.exp()).abs() < 1e-4);
        y.backward()?;
        assert_eq!(grad_of(&w), [2.0 * once]);
        let third = y.backward();
        assert!(
            matches!(third, Err(Error::Autograd { op: "backward", .. })),
            "{executed}: {third:?}"
        );
        assert_eq!(grad_of(&w), [2.0 * once]);
    }
    Ok(())
}

#[test]
fn reading_in_the_middle_runs_nothing_twice() -> Result<()> {
    let w = leaf(&[0.5, 2.0]);
    let hidden = w.exp()?;
    let loss = hidden.log()?.mul(&hidden)?.sum((), false)?;
    loss.item::<f32>()?;
    let scope = Scope::new();
    loss.backward()?;
    let grad = grad_of(&w);
    for (g, x) in grad.iter().zip([0.5f64, 2.0]) {
        assert!((f64::from(*g) - x.exp() * (1.0 + x)).abs() < 1e-4);
    }
    assert_eq!((scope.compiles(), scope.executions()), (1, 1));
    Ok(())
}

#[test]
fn grad_leaves_leaves_alone() -> Result<()> {
    let (a, b, c) = (leaf(&[2.0]), leaf(&[3.0]), leaf(&[4.0]));
    let y = (&a * &b)?;
    let grads = xla::grad(
        &[&y],
        &[&a, &b, &c],
        GradOptions {
            retain_graph: true,
            ..Default::default()
        },
    )?;
    let read: Vec<Option<f32>> = grads
        .iter()
        .map(|g| g.as_ref().map(|g| g.item().unwrap()))
        .collect();
    assert_eq!(read, [Some(3.0), Some(2.0), None]);
    assert!(a.grad().is_none() && b.grad().is_none());
    // With respect to a tensor between the leaves and the output, and of two outputs.
    let z = y.square()?;
    let grads = xla::grad(&[&z, &y], &[&y, &a], GradOptions::default())?;
    let read: Vec<f32> = grads
        .iter()
        .map(|g| g.as_ref().unwrap().item().unwrap())
        .collect();
    assert_eq!(read, [13.0, 39.0]);
    Ok(())
}

#[test]
fn what_no_gradient_passes() -> Result<()> {
    let w = leaf(&[2.0, -1.0]);
    let y = no_grad(|| w.exp())?;
    assert!(!y.requires_grad() && !w.detach()?.requires_grad() && !w.gt(0)?.requires_grad());
    assert!(matches!(
        y.sum((), false)?.backward(),
        Err(Error::Autograd { .. })
    ));
    let loss = w.detach()?.mul(&w)?.sum((), false)?;
    loss.backward()?;
    assert_eq!(grad_of(&w), [2.0, -1.0]);
    assert!(w.argmax(None, false)?.dtype().is_integer());
    // Integers have no gradients, also not on the way.
    w.zero_grad();
    w.to_dtype(DType::I32)?
        .to_dtype(DType::F32)?
        .mul(&w)?
        .sum((), false)?
        .backward()?;
    assert_eq!(grad_of(&w), [2.0, -1.0]);
    let floor = w.floor()?.sum((), false)?;
    w.zero_grad();
    floor.backward()?;
    assert_eq!(grad_of(&w), [0.0, 0.0]);
    Ok(())
}

#[test]
fn leaves_change_in_place_only_without_gradients() -> Result<()> {
    let w = leaf(&[2.0, -1.0]);
    let changed = w.add_(1);
    assert!(
        matches!(changed, Err(Error::Autograd { op: "add_", .. })),
        "{changed:?}"
    );
    let part = w.narrow(0, 0, 1)?.zero_();
    assert!(
        matches!(part, Err(Error::Autograd { op: "zero_", .. })),
        "{part:?}"
    );
    no_grad(|| w.add_(1))?;
    assert_eq!(w.to_vec::<f32>()?, [3.0, 0.0]);
    assert!(w.requires_grad() && w.is_leaf());
    w.square()?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [6.0, 0.0]);
    Ok(())
}

/// A gradient is of the values that the forward pass read, or an error: never of later ones.
#[test]
fn gradients_of_values_that_change_later() -> Result<()> {
    let forward = |saves_output: bool| -> Result<(Tensor, Tensor, Tensor)> {
        let w = leaf(&[3.0]);
        let x = Tensor::from_slice(&[5.0f32], 1, ())?;
        let y = if saves_output { w.exp()? } else { (&w * &x)? };
        Ok((w, x, y))
    };
    let (w, x, y) = forward(false)?;
    x.mul_(100)?;
    y.backward()?;
    assert_eq!(grad_of(&w), [5.0]);
    assert_eq!(x.item::<f32>()?, 500.0);

    let (w, x, y) = forward(false)?;
    let kept = x.copy()?;
    xla::sync()?.wait()?;
    x.mul_(100)?;
    let refused = y.backward();
    assert!(
        matches!(refused, Err(Error::Autograd { op: "backward", .. })),
        "{refused:?}"
    );
    assert!(w.grad().is_none());
    assert_eq!(kept.item::<f32>()?, 5.0);

    let (w, _, y) = forward(true)?;
    let loss = y.mul(1)?;
    xla::sync()?.wait()?;
    no_grad(|| y.zero_())?;
    let refused = loss.backward();
    assert!(
        matches!(refused, Err(Error::Autograd { .. })),
        "{refused:?}"
    );
    assert!(w.grad().is_none());

    // What no derivative reads may change.
    let (w, x, _) = forward(false)?;
    let sum = w.add(&x)?;
    xla::sync()?.wait()?;
    x.zero_()?;
    sum.backward()?;
    assert_eq!(grad_of(&w), [1.0]);
    Ok(())
}

#[test]
fn a_view_is_differentiated_like_its_base() -> Result<()> {
    for executed in [false, true] {
        let w = leaf(&[2.0, 3.0]);
        let loss = w.square()?.sum(0, true)?.squeeze(0)?;
        if executed {
            xla::sync()?.wait()?;
        }
        loss.backward()?;
        assert_eq!(grad_of(&w), [4.0, 6.0], "executed: {executed}");
        let part = w.exp()?.select(0, 1)?;
        if executed {
            part.item::<f32>()?;
        }
        let grads = xla::grad(&[&part], &[&w], GradOptions::default())?;
        let got = grads[0]
            .as_ref()
            .expect("it depends on w")
            .to_vec::<f32>()?;
        assert!(
            got[0] == 0.0 && (got[1] - 3f32.exp()).abs() < 1e-4,
            "{got:?}"
        );
    }
    Ok(())
}

#[test]
fn at_kinks() -> Result<()> {
    let w = leaf(&[0.0, 1.0, -1.0]);
    w.relu()?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0, 1.0, 0.0]);
    w.zero_grad();
    w.abs()?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0, 1.0, -1.0]);
    w.zero_grad();
    w.maximum(&w.detach()?)?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.5; 3]);
    let ties = leaf(&[4.0, 1.0, 4.0]);
    ties.amax((), false)?.backward()?;
    assert_eq!(grad_of(&ties), [0.5, 0.0, 0.5]);
    let zero = leaf(&[0.0, 0.0]);
    let exponents = Tensor::from_slice(&[0.0f32, 2.0], 2, ())?.requires_grad_(true)?;
    zero.pow(&exponents)?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&zero), [0.0, 0.0]);
    assert_eq!(grad_of(&exponents), [0.0, 0.0]);
    Ok(())
}

#[test]
fn of_indices_out_of_range() -> Result<()> {
    let computed = Tensor::from_slice(&[0i64, 2, -3, 300], 4, ())?.add(1)?; // 1, 3, -2, 301
    let byte = Tensor::from_slice(&[254u8, 0], 2, ())?.add(1)?; // 255, 1
    let w = leaf(&[1.0, 2.0, 3.0]);
    for indices in [&computed, &byte] {
        for picked in [w.index_select(0, indices)?, w.gather(0, indices)?] {
            w.zero_grad();
            picked.mul(5)?.sum((), false)?.backward()?;
            assert_eq!(grad_of(&w), [0.0, 5.0, 0.0]);
        }
    }
    let long = Tensor::zeros(300, ())?.requires_grad_(true)?;
    for picked in [long.index_select(0, &byte)?, long.gather(0, &byte)?] {
        long.zero_grad();
        picked.sum((), false)?.backward()?;
        let grad = grad_of(&long);
        assert_eq!(
            (grad[255], grad[1], grad.iter().sum::<f32>()),
            (1.0, 1.0, 2.0)
        );
    }
    Ok(())
}

#[test]
fn where_there_are_no_elements() -> Result<()> {
    let none = Tensor::zeros([0, 3], ())?.requires_grad_(true)?;
    let w = leaf(&[1.0, 2.0, 3.0]);
    (&none * &w)?.exp()?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0; 3]);
    assert_eq!(none.grad().map(|g| g.dims().to_vec()), Some(vec![0, 3]));
    let rows = Tensor::zeros(0, DType::I64)?;
    w.zero_grad();
    w.index_select(0, &rows)?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0; 3]);
    w.zero_grad();
    w.gather(0, &rows)?.sum((), false)?.backward()?;
    assert_eq!(grad_of(&w), [0.0; 3]);
    Ok(())
}

#[test]
fn a_view_is_read_again_after_a_backward_pass() -> Result<()> {
    let x = leaf(&[1.0, 2.0, 3.0, 4.0]);
    let matrix = x.reshape([2, 2])?;
    for _ in 0..2 {
        matrix.mul(&matrix)?.sum((), false)?.backward()?;
    }
    assert_eq!(grad_of(&x), [4.0, 8.0, 12.0, 16.0]);
    Ok(())
}

#[test]
fn a_gradient_that_cannot_flow_is_an_error() {
    with_devices(2, || {
        let x = leaf(&[1.0, 2.0]);
        let other = xla::device_at(1).unwrap();
        let error = x.to(other).unwrap_err().to_string();
        assert!(error.contains(file!()), "{error}");
        for moved in [no_grad(|| x.to(other)), x.detach().unwrap().to(other)] {
            let moved = moved.unwrap();
            assert!(!moved.requires_grad());
            assert_eq!(moved.to_vec::<f32>().unwrap(), [1.0, 2.0]);
        }
    });
}

#[test]
fn the_gradient_of_a_view() -> Result<()> {
    let x = leaf(&[1.0, 2.0, 3.0]);
    let part = x.mul(2.0)?.narrow(0, 1, 2)?;
    let loss = part.mul(&part)?.sum((), false)?;
    let retain = || GradOptions {
        retain_graph: true,
        ..GradOptions::default()
    };
    let grads = xla::grad(&[&loss], &[&part], retain())?;
    let got = grads[0].clone().expect("the loss depends on it");
    // A read without gradients leaves the view's place in the graph as it is.
    no_grad(|| part.add(1.0))?;
    assert!(xla::grad(&[&loss], &[&part], retain())?[0].is_some());
    assert_eq!(got.to_vec::<f32>()?, [8.0, 12.0]);
    // The program that read the view has run: its node is no more.
    assert!(xla::grad(&[&loss], &[&part], retain()).is_err());
    Ok(())
}

#[test]
fn each_leaf_has_a_gradient_of_its_own() -> Result<()> {
    let (x, y) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]));
    let gradient = Tensor::from_slice(&[1.0f32, 1.0], 2, ())?;
    let options = BackwardOptions {
        gradient: Some(gradient.clone()),
        ..BackwardOptions::default()
    };
    x.add(&y)?.backward_with(options)?;
    x.grad().expect("there is a gradient").mul_(10.0)?;
    assert_eq!(grad_of(&x), [10.0, 10.0]);
    assert_eq!(grad_of(&y), [1.0, 1.0]);
    assert_eq!(gradient.to_vec::<f32>()?, [1.0, 1.0]);
    Ok(())
}

#[test]
fn of_a_batch_of_products_of_nothing() -> Result<()> {
    let whole = |dims: &[usize]| Tensor::zeros(dims, ())?.copy()?.requires_grad_(true);
    let (a, b) = (whole(&[2, 3, 0])?, whole(&[0, 4])?);
    a.matmul(&b)?.sum((), false)?.backward()?;
    let dims = |x: &Tensor| x.grad().expect("there is a gradient").dims();
    assert_eq!((dims(&a), dims(&b)), (&[2, 3, 0][..], &[0, 4][..]));
    Ok(())
}
