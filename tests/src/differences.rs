//! Gradients against central differences, in `f64` along random directions.

use xla::{BackwardOptions, DType, GradOptions, Result, Tensor};

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
pub type Leaf = (&'static [usize], f64, f64);

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
///
/// # Panics
/// When they differ, or on an error.
pub fn check(name: &str, shapes: &[Leaf], f: impl Fn(&[Tensor]) -> Result<Tensor>) {
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

/// A leaf vector.
///
/// # Panics
/// When it cannot be sent to the device.
pub fn leaf(data: &[f32]) -> Tensor {
    Tensor::from_slice(data, data.len(), ())
        .and_then(|x| x.requires_grad_(true))
        .unwrap()
}

/// The accumulated gradient of a tensor, read.
///
/// # Panics
/// When there is none.
#[track_caller]
pub fn grad_of(x: &Tensor) -> Vec<f32> {
    x.grad().expect("there is a gradient").to_vec().unwrap()
}
