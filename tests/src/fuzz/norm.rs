//! Normalisation, compared with the mean and variance of each line.

use super::unary::rounding;
use super::{Array, Call, Draw, Property, Run};
use ndarray::ArrayD;
use xla::nn::functional::{self, BatchNormOptions, InstanceNormOptions};
use xla::{DType, Result, Tensor};

/// Weight and bias of this shape, and whether each is given.
fn affine(draw: &mut Draw<'_>, dtype: DType, dims: &[usize]) -> Result<([Tensor; 2], [bool; 2])> {
    let mut dims = dims.to_vec();
    if draw.once_in(16) {
        dims.push(2);
    }
    let other = if draw.once_in(16) {
        draw.dtype()
    } else {
        dtype
    };
    let given = [draw.once_in(2), draw.once_in(2)];
    let (weight, bias) = (draw.finite(other, &dims), draw.finite(other, &dims));
    Ok(([weight.leaf()?, bias.leaf()?], given))
}

/// Elements of this shape.
fn length(dims: &[usize]) -> usize {
    dims.iter().fold(1, |n, &d| n.saturating_mul(d))
}

/// Consecutive lines of so many elements, each less its mean and divided by its deviation.
fn normalized(host: &ArrayD<f64>, line: usize, eps: f64, centred: bool) -> Option<ArrayD<f64>> {
    let mut values: Vec<f64> = host.iter().copied().collect();
    for line in values.chunks_mut(line.max(1)) {
        let n = line.len() as f64;
        let mean = if centred {
            line.iter().sum::<f64>() / n
        } else {
            0.0
        };
        let variance = line.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let scale = 1.0 / (variance + eps).sqrt();
        line.iter_mut().for_each(|x| *x = (*x - mean) * scale);
    }
    ArrayD::from_shape_vec(host.raw_dim(), values).ok()
}

fn call(inputs: Vec<Tensor>, output: Tensor, expected: Option<ArrayD<f64>>) -> Call {
    // Elements that are nearly alike are divided by what is nearly 0.
    let tolerance = 256.0 * rounding(output.dtype());
    let half = matches!(output.dtype(), DType::F16 | DType::BF16);
    Call::new(inputs, vec![output]).expect(expected.filter(|_| !half), tolerance)
}

fn last_axes(draw: &mut Draw<'_>, root: bool) -> Result<Call> {
    let (dtype, dims) = (draw.float(), draw.dims(4));
    let from = draw.below(dims.len() + 1);
    let mut shape = dims[from..].to_vec();
    if draw.once_in(12) {
        shape.push(draw.length());
    }
    let eps = draw.pick(&[1e-5, 1e-2, 1.0]);
    let ([weight, bias], [weighted, biased]) = affine(draw, dtype, &shape)?;
    let array = draw.finite(dtype, &dims);
    let x = array.leaf()?;
    let w = weighted.then_some(&weight);
    let output = match root {
        true => functional::rms_norm(&x, shape.as_slice(), w, Some(eps))?,
        false => {
            let b = biased.then_some(&bias);
            functional::layer_norm(&x, shape.as_slice(), w, b, eps)?
        }
    };
    let plain = !weighted && (root || !biased);
    let line = length(&shape);
    let host = array.nd().filter(|_| plain);
    let expected = host.and_then(|host| normalized(&host, line, eps, !root));
    Ok(call(vec![x, weight, bias], output, expected))
}

/// A batch with channels, and how many there are.
fn batch(draw: &mut Draw<'_>, multiple: usize) -> (Array, usize) {
    let dtype = draw.float();
    let channels = match draw.once_in(12) {
        true => draw.length(),
        false => multiple.clamp(1, 8) * (1 + draw.below(2)),
    };
    let mut dims = vec![draw.length(), channels];
    dims.extend(draw.dims(3));
    if draw.once_in(16) {
        dims.truncate(1);
    }
    (draw.finite(dtype, &dims), channels)
}

fn group_norm(draw: &mut Draw<'_>) -> Result<Call> {
    let groups = draw.size(3);
    let eps = draw.pick(&[1e-5, 1e-2, 1.0]);
    let (array, channels) = batch(draw, groups);
    let (affine, given) = affine(draw, array.dtype, &[channels])?;
    let x = array.leaf()?;
    let [weight, bias] = &affine;
    let (w, b) = (given[0].then_some(weight), given[1].then_some(bias));
    let output = functional::group_norm(&x, groups, w, b, eps)?;
    let line = length(&array.dims[1..]) / groups;
    let host = array.nd().filter(|_| given == [false, false]);
    let expected = host.and_then(|host| normalized(&host, line, eps, true));
    let [weight, bias] = affine;
    Ok(call(vec![x, weight, bias], output, expected))
}

/// Means and variances so far.
fn running(draw: &mut Draw<'_>, dtype: DType, channels: usize) -> Result<[Tensor; 2]> {
    let n = if draw.once_in(16) {
        draw.length()
    } else {
        channels
    };
    let (mean, mut var) = (draw.finite(dtype, &[n]), draw.finite(dtype, &[n]));
    if let Some(values) = &mut var.values {
        values.iter_mut().for_each(|v| *v = v.abs());
    }
    Ok([mean.tensor()?, var.tensor()?])
}

fn batch_norm(draw: &mut Draw<'_>) -> Result<Call> {
    let (training, tracked) = (draw.once_in(2), draw.once_in(2));
    let momentum = draw.pick(&[0.1, 0.0, 1.0]);
    let (array, channels) = batch(draw, 1);
    let (affine, given) = affine(draw, array.dtype, &[channels])?;
    let [mean, var] = running(draw, array.dtype, channels)?;
    let x = array.leaf()?;
    let [weight, bias] = &affine;
    let options = BatchNormOptions {
        weight: given[0].then_some(weight),
        bias: given[1].then_some(bias),
        training,
        momentum,
        eps: 1e-5,
    };
    let known = tracked || !training && !draw.once_in(12);
    let (m, v) = (known.then_some(&mean), known.then_some(&var));
    let output = functional::batch_norm(&x, m, v, options)?;
    let [weight, bias] = affine;
    Ok(Call::new(vec![x, weight, bias], vec![output, mean, var]))
}

fn instance_norm(draw: &mut Draw<'_>) -> Result<Call> {
    let (own, tracked) = (!draw.once_in(3), draw.once_in(2));
    let (array, channels) = batch(draw, 1);
    let (affine, given) = affine(draw, array.dtype, &[channels])?;
    let [mean, var] = running(draw, array.dtype, channels)?;
    let x = array.leaf()?;
    let [weight, bias] = &affine;
    let options = InstanceNormOptions {
        weight: given[0].then_some(weight),
        bias: given[1].then_some(bias),
        use_input_stats: own,
        momentum: 0.1,
        eps: 1e-2,
    };
    let known = tracked || !own;
    let (m, v) = (known.then_some(&mean), known.then_some(&var));
    let output = functional::instance_norm(&x, m, v, options)?;
    let line = length(array.dims.get(2..).unwrap_or_default());
    let host = array.nd().filter(|_| own && given == [false, false]);
    let expected = host.and_then(|host| normalized(&host, line, 1e-2, true));
    let [weight, bias] = affine;
    Ok(call(vec![x, weight, bias], output, expected))
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 5] = [
        ("batch_norm", batch_norm),
        ("group_norm", group_norm),
        ("instance_norm", instance_norm),
        ("layer_norm", |draw| last_axes(draw, false)),
        ("rms_norm", |draw| last_axes(draw, true)),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
