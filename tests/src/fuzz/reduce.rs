//! Reductions and softmax, compared with sums and the like over lines of an `ndarray` array.

use super::unary::{compared, rounding, truth};
use super::{Call, Draw, Property, Run};
use ndarray::{ArrayD, Axis, IxDyn};
use xla::nn::functional;
use xla::{DType, Result, Tensor};

/// The axis that a number names, counted from the end when negative; a scalar answers as a vector.
pub(super) fn resolved(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank.max(1)).ok()?;
    let axis = if axis < 0 {
        axis.checked_add(rank)?
    } else {
        axis
    };
    (0..rank).contains(&axis).then_some(axis as usize)
}

/// Some of the axes of a tensor, and sometimes one that it has not or one twice.
pub(super) fn some_axes(draw: &mut Draw<'_>, rank: usize) -> Vec<i64> {
    let mut axes: Vec<i64> = Vec::new();
    for axis in 0..rank as i64 {
        if draw.once_in(2) {
            axes.push(axis - if draw.once_in(3) { rank as i64 } else { 0 });
        }
    }
    if axes.is_empty() || draw.once_in(24) {
        axes.push(draw.axis(rank));
    }
    axes
}

/// The array with each line over these axes replaced by what `of` makes of it.
pub(super) fn reduce(
    array: &ArrayD<f64>,
    axes: &[i64],
    keepdim: bool,
    of: impl Fn(&[f64]) -> f64,
) -> Option<ArrayD<f64>> {
    if array.ndim() == 0 {
        return Some(array.mapv(|x| of(&[x])));
    }
    let axes: Vec<usize> = axes
        .iter()
        .map(|&a| resolved(a, array.ndim()))
        .collect::<Option<_>>()?;
    let kept: Vec<usize> = (0..array.ndim()).filter(|a| !axes.contains(a)).collect();
    let order: Vec<usize> = kept.iter().chain(&axes).copied().collect();
    let lengths = |of: &[usize]| {
        of.iter()
            .map(|&a| array.len_of(Axis(a)))
            .collect::<Vec<_>>()
    };
    let (outer, inner) = (lengths(&kept), lengths(&axes).iter().product::<usize>());
    let flat: Vec<f64> = array.view().permuted_axes(order).iter().copied().collect();
    let line = |i: usize| of(&flat[i * inner..(i + 1) * inner]);
    let values: Vec<f64> = (0..outer.iter().product()).map(line).collect();
    let dims: Vec<usize> = match keepdim {
        true => (0..array.ndim())
            .map(|a| {
                if axes.contains(&a) {
                    1
                } else {
                    array.len_of(Axis(a))
                }
            })
            .collect(),
        false => outer,
    };
    ArrayD::from_shape_vec(IxDyn(&dims), values).ok()
}

/// What a line is reduced to.
type Of<'a> = &'a dyn Fn(&[f64]) -> f64;

/// Reduces some of the axes of a drawn tensor. `reference` reduces the elements of one line.
fn reduced(
    draw: &mut Draw<'_>,
    call: impl FnOnce(&Tensor, &[i64], bool) -> Result<Vec<Tensor>>,
    references: &[Of<'_>],
) -> Result<Call> {
    let (dtype, dims) = (draw.dtype(), draw.dims(4));
    let (axes, keepdim) = (some_axes(draw, dims.len()), draw.once_in(2));
    let array = draw.array(dtype, &dims);
    let x = array.leaf()?;
    let outputs = call(&x, &axes, keepdim)?;
    let host = array.nd();
    let mut result = Call::new(vec![x], outputs);
    for (i, of) in references.iter().enumerate() {
        let kind = result.outputs[i].dtype();
        let seen = host.as_ref().filter(|_| compared(kind));
        let expected = seen.and_then(|host| reduce(host, &axes, keepdim, of));
        result = result.expect(expected, 16.0 * rounding(kind));
    }
    Ok(result)
}

macro_rules! reduced {
    ($($name:ident: $reference:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| {
                let call = |x: &Tensor, axes: &[i64], keepdim| Ok(vec![x.$name(axes, keepdim)?]);
                reduced(draw, call, &[&$reference])
            },
        }),*]
    };
}

pub(super) fn extreme(line: &[f64], better: fn(f64, f64) -> bool) -> f64 {
    line.get(best(line, better)).copied().unwrap_or(f64::NAN)
}

/// Where the best element is, a NaN before all others.
pub(super) fn best(line: &[f64], better: fn(f64, f64) -> bool) -> usize {
    let mut best = 0;
    for (i, &x) in line.iter().enumerate() {
        if x.is_nan() {
            return i;
        }
        if better(x, line[best]) {
            best = i;
        }
    }
    best
}

fn sum(line: &[f64]) -> f64 {
    line.iter().sum()
}

fn mean(line: &[f64]) -> f64 {
    sum(line) / line.len() as f64
}

fn variance(line: &[f64], correction: f64) -> f64 {
    let mean = mean(line);
    let squares: f64 = line.iter().map(|x| (x - mean).powi(2)).sum();
    squares / (line.len() as f64 - correction).max(0.0)
}

fn logsumexp(line: &[f64]) -> f64 {
    let most = match extreme(line, |a, b| a > b) {
        most if line.is_empty() => return f64::NEG_INFINITY + most.max(0.0),
        most if most.is_infinite() => return most,
        most => most,
    };
    most + line.iter().map(|x| (x - most).exp()).sum::<f64>().ln()
}

fn norm(line: &[f64], p: f64) -> f64 {
    let sizes = || line.iter().map(|x| x.abs());
    let sizes_vec: Vec<f64> = sizes().collect();
    match p {
        f64::INFINITY => extreme(&sizes_vec, |a, b| a > b),
        f64::NEG_INFINITY => extreme(&sizes_vec, |a, b| a < b),
        0.0 => sizes().filter(|&x| x != 0.0).count() as f64,
        p => sizes().map(|x| x.powf(p)).sum::<f64>().powf(1.0 / p),
    }
}

/// `var`, `std` and those with the mean.
fn moments(draw: &mut Draw<'_>, root: bool, with_mean: bool) -> Result<Call> {
    let correction = draw.pick(&[1.0, 0.0, 0.5, 2.0, 5.0]);
    let spread = |line: &[f64]| match variance(line, correction) {
        variance if root => variance.sqrt(),
        variance => variance,
    };
    let call = |x: &Tensor, axes: &[i64], keepdim| {
        let pair = |(a, b)| vec![a, b];
        match (root, with_mean) {
            (false, false) => Ok(vec![x.var(axes, correction, keepdim)?]),
            (true, false) => Ok(vec![x.std(axes, correction, keepdim)?]),
            (false, true) => x.var_mean(axes, correction, keepdim).map(pair),
            (true, true) => x.std_mean(axes, correction, keepdim).map(pair),
        }
    };
    match with_mean {
        true => reduced(draw, call, &[&spread, &mean]),
        false => reduced(draw, call, &[&spread]),
    }
}

fn norms(draw: &mut Draw<'_>) -> Result<Call> {
    let p = draw.pick(&[
        2.0,
        1.0,
        3.0,
        0.5,
        0.0,
        -1.0,
        f64::INFINITY,
        f64::NEG_INFINITY,
    ]);
    let call = |x: &Tensor, axes: &[i64], keepdim| Ok(vec![x.norm(p, axes, keepdim)?]);
    let mut call = reduced(draw, call, &[&|line| norm(line, p)])?;
    // Powers of these vary over more than half precision holds.
    if matches!(call.outputs[0].dtype(), DType::F16 | DType::BF16) {
        call.expected.clear();
    }
    Ok(call)
}

/// What has one axis or none: the extremes and their places.
fn along(
    draw: &mut Draw<'_>,
    call: impl FnOnce(&Tensor, Option<i64>, bool) -> Result<Vec<Tensor>>,
    references: &[Of<'_>],
    whole: bool,
) -> Result<Call> {
    let (dtype, dims) = (draw.dtype(), draw.dims(4));
    let axis = (!whole || !draw.once_in(3)).then(|| draw.axis(dims.len()));
    let keepdim = draw.once_in(2);
    let array = draw.array(dtype, &dims);
    let x = array.leaf()?;
    let outputs = call(&x, axis, keepdim)?;
    let all: Vec<i64> = (0..dims.len() as i64).collect();
    let axes = axis.map_or(all, |axis| vec![axis]);
    let host = array.nd();
    let mut result = Call::new(vec![x], outputs);
    for of in references {
        let expected = host.as_ref().and_then(|h| reduce(h, &axes, keepdim, of));
        result = result.expect(expected, 0.0);
    }
    Ok(result)
}

/// Softmax and its logarithm keep the shape.
fn softmax(draw: &mut Draw<'_>, log: bool) -> Result<Call> {
    let (dtype, dims) = (draw.float(), draw.dims(4));
    let axis = draw.axis(dims.len());
    let array = draw.array(dtype, &dims);
    let x = array.leaf()?;
    let output = if log {
        x.log_softmax(axis)?
    } else {
        x.softmax(axis)?
    };
    let expected = array.nd().and_then(|host| {
        // Infinite totals cancel as NaN.
        let total = reduce(&host, &[axis], true, |line| match logsumexp(line) {
            total if total.is_finite() => total,
            _ => f64::NAN,
        })?;
        let logs = &host - &total.broadcast(host.shape())?;
        Some(if log { logs } else { logs.mapv(f64::exp) })
    });
    let tolerance = 8.0 * rounding(output.dtype());
    Ok(Call::new(vec![x], vec![output]).expect(expected, tolerance))
}

fn normalize(draw: &mut Draw<'_>) -> Result<Call> {
    let (dtype, dims) = (draw.float(), draw.dims(3));
    let (axes, p) = (some_axes(draw, dims.len()), draw.pick(&[2.0, 1.0, 3.0]));
    let array = draw.finite(dtype, &dims);
    let x = array.leaf()?;
    let output = functional::normalize(&x, p, axes.as_slice(), 1e-12)?;
    let expected = array.nd().and_then(|host| {
        let norms = reduce(&host, &axes, true, |line| norm(line, p).max(1e-12))?;
        Some(&host / &norms.broadcast(host.shape())?)
    });
    // The smallest norm is 0 in half precision.
    let tolerance = 8.0 * rounding(output.dtype());
    let expected = expected.filter(|_| dtype != DType::F16);
    Ok(Call::new(vec![x], vec![output]).expect(expected, tolerance))
}

fn cosine_similarity(draw: &mut Draw<'_>) -> Result<Call> {
    let (dtype, dims) = (draw.float(), draw.dims(3));
    let like = draw.dims_like(&dims);
    let axis = draw.axis(dims.len());
    let (a, b) = (draw.finite(dtype, &dims), draw.finite(dtype, &like));
    let inputs = vec![a.leaf()?, b.leaf()?];
    let output = functional::cosine_similarity(&inputs[0], &inputs[1], axis, 1e-8)?;
    Ok(Call::new(inputs, vec![output]))
}

fn count_nonzero(draw: &mut Draw<'_>) -> Result<Call> {
    let (dtype, dims) = (draw.dtype(), draw.dims(4));
    let axes = some_axes(draw, dims.len());
    let array = draw.array(dtype, &dims);
    let x = array.leaf()?;
    let output = x.count_nonzero(axes.as_slice())?;
    let count = |line: &[f64]| line.iter().filter(|&&x| x != 0.0).count() as f64;
    let expected = array
        .nd()
        .and_then(|host| reduce(&host, &axes, false, count));
    Ok(Call::new(vec![x], vec![output]).expect(expected, 0.0))
}

fn pair((values, places): (Tensor, Tensor)) -> Vec<Tensor> {
    vec![values, places]
}

fn largest(line: &[f64]) -> f64 {
    extreme(line, |a, b| a > b)
}

fn smallest(line: &[f64]) -> f64 {
    extreme(line, |a, b| a < b)
}

pub(super) fn properties() -> Vec<Property> {
    let mut properties = reduced! {
        sum: sum;
        mean: mean;
        nansum: |line: &[f64]| line.iter().filter(|x| !x.is_nan()).sum();
        nanmean: |line: &[f64]| {
            let numbers: Vec<f64> = line.iter().copied().filter(|x| !x.is_nan()).collect();
            mean(&numbers)
        };
        amax: largest;
        amin: smallest;
        all: |line: &[f64]| truth(line.iter().all(|&x| x != 0.0));
        any: |line: &[f64]| truth(line.iter().any(|&x| x != 0.0));
        logsumexp: logsumexp;
    };
    let others: [(&str, Run); 17] = [
        ("prod", |draw| {
            let call = |x: &Tensor, axes: &[i64], keepdim| Ok(vec![x.prod(axes, keepdim)?]);
            let mut call = reduced(draw, call, &[&|line: &[f64]| line.iter().product()])?;
            // A product of many is beyond what narrow floats and integers hold.
            if call.outputs[0].dtype() != DType::F64 {
                call.expected.clear();
            }
            Ok(call)
        }),
        ("var", |draw| moments(draw, false, false)),
        ("std", |draw| moments(draw, true, false)),
        ("var_mean", |draw| moments(draw, false, true)),
        ("std_mean", |draw| moments(draw, true, true)),
        ("norm", norms),
        ("vector_norm", norms),
        ("argmax", |draw| {
            let place = |line: &[f64]| best(line, |a, b| a > b) as f64;
            along(draw, |x, d, k| Ok(vec![x.argmax(d, k)?]), &[&place], true)
        }),
        ("argmin", |draw| {
            let place = |line: &[f64]| best(line, |a, b| a < b) as f64;
            along(draw, |x, d, k| Ok(vec![x.argmin(d, k)?]), &[&place], true)
        }),
        ("max", |draw| {
            let place = |line: &[f64]| best(line, |a, b| a > b) as f64;
            let call = |x: &Tensor, d: Option<i64>, k| x.max(d.unwrap_or(0), k).map(pair);
            along(draw, call, &[&largest, &place], false)
        }),
        ("min", |draw| {
            let place = |line: &[f64]| best(line, |a, b| a < b) as f64;
            let call = |x: &Tensor, d: Option<i64>, k| x.min(d.unwrap_or(0), k).map(pair);
            along(draw, call, &[&smallest, &place], false)
        }),
        ("aminmax", |draw| {
            let call = |x: &Tensor, d, k| x.aminmax(d, k).map(pair);
            along(draw, call, &[&smallest, &largest], true)
        }),
        ("softmax", |draw| softmax(draw, false)),
        ("log_softmax", |draw| softmax(draw, true)),
        ("normalize", normalize),
        ("cosine_similarity", cosine_similarity),
        ("count_nonzero", count_nonzero),
    ];
    properties.extend(others.map(|(name, run)| Property { name, run }));
    properties
}
