//! Elementwise operators of two tensors, or a tensor and a number, compared with `f64` functions.

use super::unary::{compared, rounding, truth};
use super::{Array, Call, Draw, Property, Run};
use ndarray::{ArrayD, IxDyn, Zip};
use xla::{DType, Number, Operand, Result, RoundingMode, Tensor};

/// The shape that these broadcast to, by NumPy's rule, where they do.
pub(super) fn common(shapes: &[&[usize]]) -> Option<Vec<usize>> {
    let rank = shapes.iter().map(|s| s.len()).max()?;
    let mut dims = vec![1; rank];
    for shape in shapes {
        let missing = rank - shape.len();
        for (axis, &length) in shape.iter().enumerate() {
            let dim = &mut dims[missing + axis];
            match (*dim, length) {
                (1, n) => *dim = n,
                (_, 1) => {}
                (n, m) if n == m => {}
                _ => return None,
            }
        }
    }
    Some(dims)
}

/// Arrays as one shape, where they have one.
pub(super) fn broadcast(arrays: &[&Array]) -> Option<Vec<ArrayD<f64>>> {
    let shapes: Vec<&[usize]> = arrays.iter().map(|a| a.dims.as_slice()).collect();
    let dims = common(&shapes)?;
    let spread = |array: &&Array| Some(array.nd()?.broadcast(IxDyn(&dims))?.to_owned());
    arrays.iter().map(spread).collect()
}

/// Calls an operator on a drawn tensor and a tensor or number; `reference` is its value.
fn pair(
    draw: &mut Draw<'_>,
    call: impl FnOnce(&Tensor, Operand<'_>) -> Result<Tensor>,
    reference: fn(f64, f64) -> f64,
    whole: bool,
) -> Result<Call> {
    let first = draw.dtype();
    let second = if draw.once_in(3) { draw.dtype() } else { first };
    let dims = draw.dims(4);
    let number = draw.once_in(4).then(|| draw.operand());
    let like = draw.dims_like(&dims);
    let a = draw.array(first, &dims);
    let b = match number {
        Some(Number::Int(n)) => Array::number(n as f64),
        Some(Number::Float(n)) => Array::number(n),
        None => draw.array(second, &like),
    };
    let mut inputs = vec![a.leaf()?];
    let output = match number {
        Some(number) => call(&inputs[0], number.into())?,
        None => {
            inputs.push(b.leaf()?);
            call(&inputs[0], (&inputs[1]).into())?
        }
    };
    let dtype = output.dtype();
    // A number becomes one of the tensor's dtype, of which unsigned ones have no negatives.
    let wraps = number.is_some() && !first.is_float() && !first.is_signed();
    let seen = dtype.is_float() || dtype == DType::Bool || whole && compared(dtype);
    let spread = broadcast(&[&a, &b]).filter(|_| seen && !wraps);
    let expected = spread.map(|s| {
        Zip::from(&s[0])
            .and(&s[1])
            .map_collect(|&a, &b| reference(a, b))
    });
    Ok(Call::new(inputs, vec![output]).expect(expected, rounding(dtype)))
}

/// Operators that are compared as floats only, and those that are as whole numbers too.
macro_rules! pairs {
    ($whole:literal: $($name:ident: $reference:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| pair(draw, |a, b| a.$name(b), $reference, $whole),
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

/// The remainder that has the divisor's sign.
fn remainder(a: f64, b: f64) -> f64 {
    let rest = a % b;
    match rest != 0.0 && (rest < 0.0) != (b < 0.0) {
        true => rest + b,
        false => rest,
    }
}

fn floor_divide(a: f64, b: f64) -> f64 {
    if b == 0.0 {
        return a / b;
    }
    let rest = a % b;
    let quotient = (a - rest) / b;
    match rest != 0.0 && (b < 0.0) != (rest < 0.0) {
        true => quotient - 1.0,
        false => quotient,
    }
}

fn log_add(a: f64, b: f64, exp: fn(f64) -> f64, log: fn(f64) -> f64) -> f64 {
    let most = extreme(a, b, a > b);
    match most.is_finite() {
        true => most + log(exp(a - most) + exp(b - most)),
        false => most,
    }
}

fn scaled(draw: &mut Draw<'_>, subtract: bool) -> Result<Call> {
    let alpha = match draw.once_in(2) {
        true => Number::Float(draw.around(6) as f64 / 2.0),
        false => Number::Int(draw.around(3)),
    };
    let mut call = match subtract {
        true => pair(draw, |a, b| a.sub_scaled(b, alpha), |a, _| a, false)?,
        false => pair(draw, |a, b| a.add_scaled(b, alpha), |a, _| a, false)?,
    };
    call.expected.clear();
    Ok(call)
}

fn divided(draw: &mut Draw<'_>, mode: RoundingMode, by: fn(f64, f64) -> f64) -> Result<Call> {
    pair(draw, |a, b| a.div_rounded(b, mode), by, false)
}

pub(super) fn properties() -> Vec<Property> {
    let mut properties = pairs! { true:
        eq: |a, b| truth(a == b);
        ge: |a, b| truth(a >= b);
        gt: |a, b| truth(a > b);
        le: |a, b| truth(a <= b);
        logical_and: |a, b| truth(a != 0.0 && b != 0.0);
        logical_or: |a, b| truth(a != 0.0 || b != 0.0);
        logical_xor: |a, b| truth((a != 0.0) != (b != 0.0));
        lt: |a, b| truth(a < b);
        maximum: |a, b| extreme(a, b, a > b);
        minimum: |a, b| extreme(a, b, a < b);
        mul: |a, b| a * b;
        ne: |a, b| truth(a != b);
        bitwise_and: |a, b| (a as i64 & b as i64) as f64;
        bitwise_or: |a, b| (a as i64 | b as i64) as f64;
        bitwise_xor: |a, b| (a as i64 ^ b as i64) as f64;
    };
    properties.extend(pairs! { false:
        atan2: f64::atan2;
        bitwise_left_shift: |a, _| a;
        bitwise_right_shift: |a, _| a;
        div: |a, b| a / b;
        floor_divide: floor_divide;
        fmod: |a, b| a % b;
        hypot: f64::hypot;
        logaddexp: |a, b| log_add(a, b, f64::exp, f64::ln);
        logaddexp2: |a, b| log_add(a, b, f64::exp2, f64::log2);
        pow: f64::powf;
        remainder: remainder;
        xlogy: |a, b| match a == 0.0 && !b.is_nan() {
            true => 0.0,
            false => a * b.ln(),
        };
    });
    let others: [(&str, Run); 6] = [
        ("add", |draw| {
            pair(draw, |a, b| a.add(b), |a, b| a + b, false)
        }),
        ("add_scaled", |draw| scaled(draw, false)),
        ("sub", |draw| {
            pair(draw, |a, b| a.sub(b), |a, b| a - b, true)
        }),
        ("sub_scaled", |draw| scaled(draw, true)),
        ("div_floor", |draw| {
            divided(draw, RoundingMode::Floor, floor_divide)
        }),
        ("div_trunc", |draw| {
            divided(draw, RoundingMode::Trunc, |a, b| (a / b).trunc())
        }),
    ];
    properties.extend(others.map(|(name, run)| Property { name, run }));
    properties
}
