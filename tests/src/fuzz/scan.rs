//! Running sums, products and extremes, compared with loops over `ndarray` lanes.

use super::reduce::resolved;
use super::unary::{compared, rounding};
use super::{Call, Draw, Property, Run};
use ndarray::{ArrayD, Axis};
use xla::{DType, Result, Tensor};

/// The array with each lane along an axis replaced by what `of` makes of it.
pub(super) fn along(
    array: &ArrayD<f64>,
    axis: i64,
    of: impl Fn(&[f64]) -> Vec<f64>,
) -> Option<ArrayD<f64>> {
    if array.ndim() == 0 {
        return Some(array.mapv(|x| of(&[x]).first().copied().unwrap_or(x)));
    }
    let axis = Axis(resolved(axis, array.ndim())?);
    let mut result = array.clone();
    for mut lane in result.lanes_mut(axis) {
        let line: Vec<f64> = lane.iter().copied().collect();
        lane.iter_mut().zip(of(&line)).for_each(|(x, y)| *x = y);
    }
    Some(result)
}

/// What a line becomes.
type Of<'a> = &'a dyn Fn(&[f64]) -> Vec<f64>;

fn scanned(
    draw: &mut Draw<'_>,
    call: impl FnOnce(&Tensor, i64) -> Result<Vec<Tensor>>,
    references: &[Of<'_>],
) -> Result<Call> {
    let (dtype, dims) = (draw.dtype(), draw.dims(4));
    let axis = draw.axis(dims.len());
    let array = draw.array(dtype, &dims);
    let x = array.leaf()?;
    let outputs = call(&x, axis)?;
    let host = array.nd();
    let mut result = Call::new(vec![x], outputs);
    for (i, of) in references.iter().enumerate() {
        let kind = result.outputs[i].dtype();
        let seen = host.as_ref().filter(|_| compared(kind));
        let expected = seen.and_then(|host| along(host, axis, of));
        result = result.expect(expected, 16.0 * rounding(kind));
    }
    Ok(result)
}

/// What a state becomes with each element in turn.
fn running(line: &[f64], of: impl Fn(f64, f64) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = Vec::with_capacity(line.len());
    for &x in line {
        values.push(values.last().map_or(x, |&last| of(last, x)));
    }
    values
}

/// The place of the best element so far, of equal ones the last; a NaN is better than all.
fn places(line: &[f64], better: fn(f64, f64) -> bool) -> Vec<f64> {
    let mut best = 0;
    let place = |(i, &x): (usize, &f64)| {
        let last = line[best];
        if x.is_nan() || !last.is_nan() && better(x, last) {
            best = i;
        }
        best as f64
    };
    line.iter().enumerate().map(place).collect()
}

fn extremes(line: &[f64], better: fn(f64, f64) -> bool) -> Vec<f64> {
    places(line, better)
        .iter()
        .map(|&i| line[i as usize])
        .collect()
}

fn log_add(a: f64, b: f64) -> f64 {
    match a.is_nan() || b.is_nan() {
        true => f64::NAN,
        false if a.max(b).is_infinite() => a.max(b),
        false => a.max(b) + (-(a - b).abs()).exp().ln_1p(),
    }
}

fn pair((values, places): (Tensor, Tensor)) -> Vec<Tensor> {
    vec![values, places]
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 5] = [
        ("cumsum", |draw| {
            let sums = |line: &[f64]| running(line, |a, b| a + b);
            scanned(draw, |x, d| Ok(vec![x.cumsum(d)?]), &[&sums])
        }),
        ("cumprod", |draw| {
            let products = |line: &[f64]| running(line, |a, b| a * b);
            let mut call = scanned(draw, |x, d| Ok(vec![x.cumprod(d)?]), &[&products])?;
            // A product of many is beyond what half precision holds.
            if matches!(call.outputs[0].dtype(), DType::F16 | DType::BF16) {
                call.expected.clear();
            }
            Ok(call)
        }),
        ("logcumsumexp", |draw| {
            let logs = |line: &[f64]| running(line, log_add);
            scanned(draw, |x, d| Ok(vec![x.logcumsumexp(d)?]), &[&logs])
        }),
        ("cummax", |draw| {
            let values = |line: &[f64]| extremes(line, |a, b| a >= b);
            let at = |line: &[f64]| places(line, |a, b| a >= b);
            scanned(draw, |x, d| x.cummax(d).map(pair), &[&values, &at])
        }),
        ("cummin", |draw| {
            let values = |line: &[f64]| extremes(line, |a, b| a <= b);
            let at = |line: &[f64]| places(line, |a, b| a <= b);
            scanned(draw, |x, d| x.cummin(d).map(pair), &[&values, &at])
        }),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
