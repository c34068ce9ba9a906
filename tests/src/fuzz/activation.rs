//! Activations, compared with `f64` functions.

use super::{Call, Draw, Property, unary};
use xla::{GeluApproximation, Result, Tensor};

/// As for other operators, but numbers become whole beside integers.
fn elementwise(
    draw: &mut Draw<'_>,
    call: impl FnOnce(&Tensor) -> Result<Tensor>,
    reference: impl Fn(f64) -> f64,
) -> Result<Call> {
    let mut call = unary::elementwise(draw, call, reference)?;
    if !call.outputs[0].dtype().is_float() {
        call.expected.clear();
    }
    Ok(call)
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

/// NaN stays, unlike with Rust's; the upper bound holds where the lower one is above it.
fn clamp(x: f64, low: f64, high: f64) -> f64 {
    match x {
        x if x > high || low > high && !x.is_nan() => high,
        x if x < low => low,
        x => x,
    }
}

fn elu(x: f64, alpha: f64) -> f64 {
    if x <= 0.0 { alpha * x.exp_m1() } else { x }
}

/// A factor, bound or slope.
fn number(draw: &mut Draw<'_>) -> f64 {
    draw.around(8) as f64 / 4.0
}

fn gelu(draw: &mut Draw<'_>) -> Result<Call> {
    match draw.once_in(2) {
        false => elementwise(
            draw,
            |x| x.gelu(GeluApproximation::None),
            |x| match x == f64::NEG_INFINITY {
                // As the limit, or as 0 times infinity: both are in use.
                true => f64::NAN,
                false => x * 0.5 * libm::erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
            },
        ),
        true => elementwise(
            draw,
            |x| x.gelu(GeluApproximation::Tanh),
            |x| {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
                0.5 * x * (1.0 + inner.tanh())
            },
        ),
    }
}

macro_rules! plain {
    ($($name:ident: $reference:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| elementwise(draw, |x| x.$name(), $reference),
        }),*]
    };
}

/// Activations with a number.
macro_rules! with_number {
    ($($name:ident: $reference:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| {
                let number = number(draw);
                let reference: fn(f64, f64) -> f64 = $reference;
                elementwise(draw, |x| x.$name(number), |x| reference(x, number))
            },
        }),*]
    };
}

/// Activations with two numbers.
macro_rules! with_numbers {
    ($($name:ident: $reference:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| {
                let (a, b) = (number(draw), number(draw));
                let reference: fn(f64, f64, f64) -> f64 = $reference;
                elementwise(draw, |x| x.$name(a, b), |x| reference(x, a, b))
            },
        }),*]
    };
}

pub(super) fn properties() -> Vec<Property> {
    let mut properties = plain! {
        hardsigmoid: |x| clamp(x + 3.0, 0.0, 6.0) / 6.0;
        hardswish: |x| x * clamp(x + 3.0, 0.0, 6.0) / 6.0;
        logsigmoid: |x| if x.is_nan() { x } else { -softplus(-x) };
        mish: |x| x * if x.is_nan() { x } else { softplus(x).tanh() };
        relu: |x| clamp(x, 0.0, f64::INFINITY);
        relu6: |x| clamp(x, 0.0, 6.0);
        selu: |x| 1.050_700_987_355_480_5 * elu(x, 1.673_263_242_354_377_3);
        sigmoid: sigmoid;
        silu: |x| x * sigmoid(x);
        softsign: |x| x / (1.0 + x.abs());
        tanhshrink: |x| x - x.tanh();
    };
    properties.extend(with_number! {
        celu: |x, alpha| if x > 0.0 { x } else { alpha * (x / alpha).exp_m1() };
        elu: elu;
        hardshrink: |x, l| if x >= -l && x <= l { 0.0 } else { x };
        leaky_relu: |x, slope| if x > 0.0 { x } else { slope * x };
        softshrink: |x, l| match x {
            x if x > l => x - l,
            x if x < -l => x + l,
            x => x * 0.0,
        };
    });
    properties.extend(with_numbers! {
        hardtanh: clamp;
        softplus: |x, beta, threshold| match x * beta > threshold || x.is_nan() {
            true => x,
            false => softplus(x * beta) / beta,
        };
        threshold: |x, threshold, value| if x <= threshold { value } else { x };
    });
    properties.push(Property {
        name: "gelu",
        run: gelu,
    });
    properties
}
