//! Elementwise operators of two tensors, compared with `f64` functions.

use super::unary::rounding;
use super::{Array, Call, Draw, Property};
use ndarray::{ArrayD, IxDyn, Zip};
use xla::{DType, Result, Tensor};

/// Two arrays as one shape, by NumPy's rule; nothing if they do not broadcast.
fn broadcast(a: &Array, b: &Array) -> Option<(ArrayD<f64>, ArrayD<f64>)> {
    let rank = a.dims.len().max(b.dims.len());
    let length = |array: &Array, axis: usize| {
        let missing = rank - array.dims.len();
        axis.checked_sub(missing).map_or(1, |axis| array.dims[axis])
    };
    let dims: Vec<usize> = (0..rank)
        .map(|axis| match (length(a, axis), length(b, axis)) {
            (1, n) => n,
            (n, _) => n,
        })
        .collect();
    let spread = |array: &Array| Some(array.nd().broadcast(IxDyn(&dims))?.to_owned());
    Some((spread(a)?, spread(b)?))
}

/// Calls an operator on two drawn tensors; `reference` is its value where the result is a float.
fn float(
    draw: &mut Draw<'_>,
    call: fn(&Tensor, &Tensor) -> Result<Tensor>,
    reference: fn(f64, f64) -> f64,
) -> Result<Call> {
    let dims = draw.dims(4);
    let first = draw.dtype();
    let second = if draw.once_in(3) { draw.dtype() } else { first };
    let a = draw.array(first, &dims);
    let like = draw.dims_like(&dims);
    let b = draw.array(second, &like);
    let inputs = vec![a.tensor()?, b.tensor()?];
    for input in &inputs {
        if input.dtype().is_float() {
            input.requires_grad_(true)?;
        }
    }
    let output = call(&inputs[0], &inputs[1])?;
    let spread = broadcast(&a, &b).filter(|_| compared(output.dtype()));
    let expected = spread.map(|(a, b)| {
        let values = Zip::from(&a).and(&b).map_collect(|&a, &b| reference(a, b));
        (values.into_iter().collect(), rounding(output.dtype()))
    });
    Ok(Call {
        inputs,
        outputs: vec![output],
        expected,
    })
}

/// Narrow integers wrap around and are left to cases that others computed.
fn compared(dtype: DType) -> bool {
    dtype.is_float() || dtype == DType::Bool
}

macro_rules! float {
    ($($name:ident: $reference:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| float(draw, |a, b| a.$name(b), $reference),
        }),*]
    };
}

/// NaN if either is, unlike Rust's.
fn extreme(a: f64, b: f64, first: bool) -> f64 {
    match a.is_nan() || b.is_nan() {
        true => f64::NAN,
        false if first => a,
        false => b,
    }
}

fn truth(value: bool) -> f64 {
    f64::from(u8::from(value))
}

pub(super) fn properties() -> Vec<Property> {
    float! {
        sub: |a, b| a - b;
        div: |a, b| a / b;
        maximum: |a, b| extreme(a, b, a > b);
        minimum: |a, b| extreme(a, b, a < b);
        eq: |a, b| truth(a == b);
        ne: |a, b| truth(a != b);
        lt: |a, b| truth(a < b);
        le: |a, b| truth(a <= b);
        gt: |a, b| truth(a > b);
        ge: |a, b| truth(a >= b);
    }
}
