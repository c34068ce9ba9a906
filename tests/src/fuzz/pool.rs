//! Pooling and interpolation; the elements of plain windows are compared with loops.

use super::conv::per_axis;
use super::unary::rounding;
use super::{Array, Call, Draw, Property, Run};
use ndarray::{ArrayD, Dimension, IxDyn};
use xla::nn::functional::{
    self, AvgPoolOptions, InterpolateMode, InterpolateOptions, MaxPoolOptions, OutputSize, PerAxis,
    Target,
};
use xla::{Result, Tensor};

/// A batch of signals over so many axes.
fn signals(draw: &mut Draw<'_>, axes: usize) -> Array {
    let dtype = draw.float();
    let rank = match draw.below(12) {
        10 => axes,
        11 => axes + 3,
        _ => axes + 2,
    };
    let mut dims = vec![draw.length(), 1 + draw.below(2)];
    dims.extend((0..axes + 1).map(|_| draw.length() + draw.below(3)));
    dims.truncate(rank);
    if rank == axes + 2 && draw.once_in(4) {
        dims.remove(0);
    }
    draw.finite(dtype, &dims)
}

/// Each window reduced, where all have stride `kernel` and lie within the input.
fn windows(
    x: &ArrayD<f64>,
    kernel: &[i64],
    output: &[usize],
    of: impl Fn(&[f64]) -> f64,
) -> Option<ArrayD<f64>> {
    let lead = x.ndim() - kernel.len();
    let sizes: Vec<usize> = kernel.iter().map(|&k| k as usize).collect();
    let mut y = ArrayD::zeros(IxDyn(output));
    for (at, value) in y.indexed_iter_mut() {
        let window = ndarray::indices(IxDyn(&sizes)).into_iter().map(|k| {
            let mut place = at.slice().to_vec();
            for (axis, (&k, &size)) in k.slice().iter().zip(&sizes).enumerate() {
                place[lead + axis] = place[lead + axis] * size + k;
            }
            x.get(place.as_slice()).copied()
        });
        *value = of(&window.collect::<Option<Vec<f64>>>()?);
    }
    Some(y)
}

type MaxPool = fn(&Tensor, PerAxis, MaxPoolOptions) -> Result<(Tensor, Tensor)>;

fn max_pool(draw: &mut Draw<'_>, axes: usize, call: MaxPool) -> Result<Call> {
    let kernel = per_axis(draw, axes, 1, 3);
    let plain = draw.once_in(3);
    let options = match plain {
        true => MaxPoolOptions::default(),
        false => MaxPoolOptions {
            stride: draw.once_in(2).then(|| per_axis(draw, axes, 1, 3).into()),
            padding: per_axis(draw, axes, 0, 2).into(),
            dilation: per_axis(draw, axes, 1, 2).into(),
            ceil_mode: draw.once_in(2),
        },
    };
    let array = signals(draw, axes);
    let x = array.leaf()?;
    let (values, places) = call(&x, kernel.clone().into(), options)?;
    let host = array.nd().filter(|_| plain && kernel.len() == axes);
    let most = |window: &[f64]| window.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let expected = host.and_then(|host| windows(&host, &kernel, values.dims(), most));
    Ok(Call::new(vec![x], vec![values, places]).expect(expected, 0.0))
}

type AvgPool = fn(&Tensor, PerAxis, AvgPoolOptions) -> Result<Tensor>;

fn avg_pool(draw: &mut Draw<'_>, axes: usize, call: AvgPool) -> Result<Call> {
    let kernel = per_axis(draw, axes, 1, 3);
    let plain = draw.once_in(3);
    let options = match plain {
        true => AvgPoolOptions::default(),
        false => AvgPoolOptions {
            stride: draw.once_in(2).then(|| per_axis(draw, axes, 1, 3).into()),
            padding: per_axis(draw, axes, 0, 2).into(),
            ceil_mode: draw.once_in(2),
            count_include_pad: draw.once_in(2),
            divisor_override: draw.once_in(3).then(|| draw.int(4)),
        },
    };
    let array = signals(draw, axes);
    let x = array.leaf()?;
    let output = call(&x, kernel.clone().into(), options)?;
    let host = array.nd().filter(|_| plain && kernel.len() == axes);
    let mean = |window: &[f64]| window.iter().sum::<f64>() / window.len() as f64;
    let expected = host.and_then(|host| windows(&host, &kernel, output.dims(), mean));
    let tolerance = 8.0 * rounding(output.dtype());
    Ok(Call::new(vec![x], vec![output]).expect(expected, tolerance))
}

fn adaptive(
    draw: &mut Draw<'_>,
    axes: usize,
    call: fn(&Tensor, OutputSize) -> Result<Vec<Tensor>>,
) -> Result<Call> {
    let size: OutputSize = match draw.once_in(3) {
        true => per_axis(draw, axes, 1, 4).into(),
        false => (0..axes)
            .map(|_| draw.once_in(2).then(|| draw.size(4)))
            .collect::<Vec<_>>()
            .into(),
    };
    let x = signals(draw, axes).leaf()?;
    let outputs = call(&x, size)?;
    Ok(Call::new(vec![x], outputs))
}

fn interpolate(draw: &mut Draw<'_>) -> Result<Call> {
    use InterpolateMode::{Area, Bicubic, Bilinear, Linear, Nearest, NearestExact, Trilinear};
    let axes = 1 + draw.below(3);
    let own = [Linear, Bilinear, Trilinear][axes - 1];
    let mode = draw.pick(&[
        Nearest,
        own,
        NearestExact,
        Area,
        own,
        Bicubic,
        Linear,
        Trilinear,
    ]);
    let options = InterpolateOptions {
        mode,
        align_corners: draw.once_in(3),
        recompute_scale_factor: draw.once_in(6),
        antialias: draw.once_in(6),
    };
    let target = match draw.once_in(2) {
        true => Target::Size(per_axis(draw, axes, 1, 6).into()),
        false => Target::scale([draw.pick(&[2.0, 0.5, 1.5, 0.3, 0.0, -1.0, f64::NAN, 1e9])]),
    };
    // Nothing is executed that enlarges so much.
    let huge = matches!(&target, Target::Scale(factors) if factors[0] > 100.0);
    let array = signals(draw, axes);
    let x = array.leaf()?;
    let output = functional::interpolate(&x, target, options)?;
    Ok(match huge {
        true => Call::new(vec![x], Vec::new()),
        false => Call::new(vec![x], vec![output]),
    })
}

macro_rules! adaptive {
    ($axes:literal, $plain:ident) => {
        (stringify!($plain), |draw| {
            adaptive(draw, $axes, |x, size| {
                Ok(vec![functional::$plain(x, size)?])
            })
        })
    };
    ($axes:literal, $plain:ident, $both:ident) => {
        (stringify!($plain), |draw| {
            adaptive(draw, $axes, |x, size| {
                let (values, places) = functional::$both(x, size)?;
                Ok(vec![values, places])
            })
        })
    };
}

macro_rules! avg {
    ($axes:literal, $name:ident) => {
        (stringify!($name), |draw| {
            avg_pool(draw, $axes, |x, k, o| functional::$name(x, k, o))
        })
    };
}

macro_rules! max {
    ($axes:literal, $name:ident) => {
        (stringify!($name), |draw| {
            max_pool(draw, $axes, |x, k, o| functional::$name(x, k, o))
        })
    };
}

/// Without the places.
macro_rules! max_alone {
    ($axes:literal, $name:ident) => {
        (stringify!($name), |draw| {
            max_pool(draw, $axes, |x, k, o| {
                let values = functional::$name(x, k, o)?;
                Ok((values.clone(), values))
            })
        })
    };
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 16] = [
        adaptive!(1, adaptive_avg_pool1d),
        adaptive!(2, adaptive_avg_pool2d),
        adaptive!(3, adaptive_avg_pool3d),
        adaptive!(1, adaptive_max_pool1d, adaptive_max_pool1d_with_indices),
        adaptive!(2, adaptive_max_pool2d, adaptive_max_pool2d_with_indices),
        adaptive!(3, adaptive_max_pool3d, adaptive_max_pool3d_with_indices),
        avg!(1, avg_pool1d),
        avg!(2, avg_pool2d),
        avg!(3, avg_pool3d),
        ("interpolate", interpolate),
        max_alone!(1, max_pool1d),
        max!(1, max_pool1d_with_indices),
        max_alone!(2, max_pool2d),
        max!(2, max_pool2d_with_indices),
        max_alone!(3, max_pool3d),
        max!(3, max_pool3d_with_indices),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
