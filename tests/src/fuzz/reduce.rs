//! Reductions, compared with sums and the like over `ndarray` axes.

use super::unary::rounding;
use super::{Call, Draw, Property};
use ndarray::{ArrayD, Axis};
use xla::{Result, Tensor};

/// Reduces some of the axes of a drawn tensor. `reference` reduces the elements of one line.
fn reduced(
    draw: &mut Draw<'_>,
    call: fn(&Tensor, &[i64], bool) -> Result<Tensor>,
    reference: fn(&[f64]) -> f64,
) -> Result<Call> {
    let dtype = draw.dtype();
    let dims = draw.dims(4);
    let array = draw.array(dtype, &dims);
    let x = array.tensor()?;
    if dtype.is_float() {
        x.requires_grad_(true)?;
    }
    let mut axes: Vec<i64> = Vec::new();
    for axis in 0..dims.len() {
        if draw.once_in(2) {
            axes.push(axis as i64);
        }
    }
    if axes.is_empty() {
        axes.push(draw.axis(dims.len()));
    }
    let keepdim = draw.once_in(2);
    let output = call(&x, &axes, keepdim)?;
    let rank = dims.len() as i64;
    let axes: Vec<usize> = axes
        .iter()
        .map(|&axis| if axis < 0 { axis + rank } else { axis } as usize)
        .collect();
    let compared = output.dtype().is_float() || output.dtype() == xla::DType::Bool;
    let expected = (compared && rank > 0).then(|| {
        let values = lines(array.nd(), &axes);
        let values = values.iter().map(|line| reference(line)).collect();
        (values, 8.0 * rounding(output.dtype()))
    });
    Ok(Call {
        inputs: vec![x],
        outputs: vec![output],
        expected,
    })
}

/// The elements that each element of the result is made of, in order of the results.
fn lines(array: ArrayD<f64>, axes: &[usize]) -> Vec<Vec<f64>> {
    let kept: Vec<usize> = (0..array.ndim()).filter(|a| !axes.contains(a)).collect();
    let order: Vec<usize> = kept.iter().chain(axes).copied().collect();
    let outer: usize = kept.iter().map(|&a| array.len_of(Axis(a))).product();
    let inner: usize = axes.iter().map(|&a| array.len_of(Axis(a))).product();
    let moved = array.permuted_axes(order);
    let flat: Vec<f64> = moved.iter().copied().collect();
    let line = |i: usize| flat[i * inner..(i + 1) * inner].to_vec();
    (0..outer).map(line).collect()
}

macro_rules! reduced {
    ($($name:ident: $reference:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| reduced(draw, |x, axes, keepdim| x.$name(axes, keepdim), $reference),
        }),*]
    };
}

fn extreme(line: &[f64], better: fn(f64, f64) -> bool) -> f64 {
    let mut best = f64::NAN;
    for (i, &x) in line.iter().enumerate() {
        if x.is_nan() {
            return x;
        }
        if i == 0 || better(x, best) {
            best = x;
        }
    }
    best
}

fn truth(value: bool) -> f64 {
    f64::from(u8::from(value))
}

pub(super) fn properties() -> Vec<Property> {
    reduced! {
        sum: |line| line.iter().sum();
        mean: |line| line.iter().sum::<f64>() / line.len() as f64;
        amax: |line| extreme(line, |a, b| a > b);
        amin: |line| extreme(line, |a, b| a < b);
        all: |line| truth(line.iter().all(|&x| x != 0.0));
        any: |line| truth(line.iter().any(|&x| x != 0.0));
    }
}
