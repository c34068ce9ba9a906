//! Convolutions, sliding blocks and pixel shuffles, compared with loops.

use super::unary::rounding;
use super::{Array, Call, Draw, Property, Run};
use ndarray::{ArrayD, Dimension, IxDyn};
use xla::nn::functional::{self, ConvOptions, ConvTransposeOptions, FoldOptions, Padding, PerAxis};
use xla::{DType, Result, Tensor};

/// One number for each spatial axis, sometimes one for all.
pub(super) fn per_axis(draw: &mut Draw<'_>, axes: usize, least: i64, most: usize) -> Vec<i64> {
    let number = |draw: &mut Draw<'_>| match draw.once_in(24) {
        true => draw.int(3),
        false => least + draw.below(most) as i64,
    };
    let n = match draw.below(12) {
        9 | 10 => 1,
        11 => axes + 1,
        _ => axes,
    };
    (0..n).map(|_| number(draw)).collect()
}

/// The numbers for all axes.
fn each(numbers: &[i64], axes: usize) -> Vec<i64> {
    match numbers {
        &[one] => vec![one; axes],
        many => many.to_vec(),
    }
}

/// A convolution, by adding each element of input and kernel to what it takes part in.
fn convolved(
    x: &ArrayD<f64>,
    weight: &ArrayD<f64>,
    output: &[usize],
    [stride, padding, dilation]: [&[i64]; 3],
    groups: usize,
) -> Option<ArrayD<f64>> {
    let axes = stride.len();
    let single = x.ndim() == axes + 1;
    let x = if single {
        x.clone().insert_axis(ndarray::Axis(0))
    } else {
        x.clone()
    };
    let mut dims = output.to_vec();
    if single {
        dims.insert(0, 1);
    }
    let mut y = ArrayD::zeros(IxDyn(&dims));
    let (inputs, outputs) = (weight.shape()[1], weight.shape()[0] / groups);
    for (at, value) in y.indexed_iter_mut() {
        let at = at.slice();
        let group = at[1] / outputs.max(1);
        for (k, factor) in weight.index_axis(ndarray::Axis(0), at[1]).indexed_iter() {
            let k = k.slice();
            let mut place = vec![at[0], group * inputs + k[0]];
            for axis in 0..axes {
                let from = at[axis + 2] as i64 * stride[axis] + k[axis + 1] as i64 * dilation[axis];
                place.push(usize::try_from(from - padding[axis]).unwrap_or(usize::MAX));
            }
            *value += factor * x.get(place.as_slice()).copied().unwrap_or(0.0);
        }
    }
    y.into_shape_with_order(IxDyn(output)).ok()
}

/// Input, weight and bias of a convolution over so many axes.
fn operands(draw: &mut Draw<'_>, axes: usize, groups: usize, transposed: bool) -> [Array; 3] {
    let dtype = draw.float();
    let (inner, outer) = (1 + draw.below(2), 1 + draw.below(2));
    let mut x = vec![draw.length(), inner * groups];
    let mut weight = match transposed {
        true => vec![inner * groups, outer],
        false => vec![outer * groups, inner],
    };
    for _ in 0..axes {
        x.push(draw.length() + draw.below(3));
        weight.push(1 + draw.below(3));
    }
    if draw.once_in(4) {
        x.remove(0);
    }
    if draw.once_in(16) {
        weight[draw.below(2)] = draw.length();
    }
    let other = if draw.once_in(16) {
        draw.dtype()
    } else {
        dtype
    };
    let bias = if draw.once_in(16) {
        draw.length()
    } else {
        outer * groups
    };
    [
        draw.finite(dtype, &x),
        draw.finite(other, &weight),
        draw.finite(dtype, &[bias]),
    ]
}

type Conv = fn(&Tensor, &Tensor, Option<&Tensor>, ConvOptions) -> Result<Tensor>;

fn conv(draw: &mut Draw<'_>, axes: usize, call: Conv) -> Result<Call> {
    let groups = draw.pick(&[1, 1, 2]);
    let stride = per_axis(draw, axes, 1, 2);
    let zeros = per_axis(draw, axes, 0, 3);
    let dilation = per_axis(draw, axes, 1, 2);
    let padding = match draw.below(6) {
        4 => Padding::Same,
        5 => Padding::Valid,
        _ => Padding::Zeros(zeros.clone().into()),
    };
    let given = if draw.once_in(16) {
        draw.size(3)
    } else {
        groups
    };
    let arrays = operands(draw, axes, groups, false);
    let inputs: Vec<Tensor> = arrays.iter().map(Array::leaf).collect::<Result<_>>()?;
    let bias = (!draw.once_in(3)).then_some(&inputs[2]);
    let before = match &padding {
        Padding::Zeros(_) => Some(each(&zeros, axes)),
        Padding::Valid => Some(vec![0; axes]),
        Padding::Same => None,
    };
    let options = ConvOptions {
        stride: stride.clone().into(),
        padding,
        dilation: dilation.clone().into(),
        groups: given,
    };
    let output = call(&inputs[0], &inputs[1], bias, options)?;
    let hosts = arrays[0].nd().zip(arrays[1].nd()).zip(before);
    let expected = hosts.and_then(|((x, weight), before)| {
        let (stride, dilation) = (each(&stride, axes), each(&dilation, axes));
        let numbers = [stride.as_slice(), &before, &dilation];
        let mut y = convolved(&x, &weight, output.dims(), numbers, given)?;
        if bias.is_some() {
            let bias = arrays[2].values.as_ref()?;
            let channel = output.rank() - axes - 1;
            for (at, value) in y.indexed_iter_mut() {
                *value += bias[at.slice()[channel]];
            }
        }
        Some(y)
    });
    let tolerance = 32.0 * rounding(output.dtype());
    Ok(Call::new(inputs, vec![output]).expect(expected, tolerance))
}

type Transposed = fn(&Tensor, &Tensor, Option<&Tensor>, ConvTransposeOptions) -> Result<Tensor>;

fn conv_transpose(draw: &mut Draw<'_>, axes: usize, call: Transposed) -> Result<Call> {
    let groups = draw.pick(&[1, 1, 2]);
    let options = ConvTransposeOptions {
        stride: per_axis(draw, axes, 1, 3).into(),
        padding: per_axis(draw, axes, 0, 2).into(),
        output_padding: per_axis(draw, axes, 0, 2).into(),
        groups: if draw.once_in(16) {
            draw.size(3)
        } else {
            groups
        },
        dilation: per_axis(draw, axes, 1, 2).into(),
    };
    let arrays = operands(draw, axes, groups, true);
    let inputs: Vec<Tensor> = arrays.iter().map(Array::leaf).collect::<Result<_>>()?;
    let bias = (!draw.once_in(3)).then_some(&inputs[2]);
    let output = call(&inputs[0], &inputs[1], bias, options)?;
    Ok(Call::new(inputs, vec![output]))
}

fn blocks(draw: &mut Draw<'_>) -> FoldOptions {
    FoldOptions {
        dilation: per_axis(draw, 2, 1, 2).into(),
        padding: per_axis(draw, 2, 0, 2).into(),
        stride: per_axis(draw, 2, 1, 2).into(),
    }
}

fn image(draw: &mut Draw<'_>, channels: usize) -> Array {
    let dtype = if draw.once_in(4) {
        draw.dtype()
    } else {
        DType::F32
    };
    let mut dims = vec![draw.length(), channels, draw.length(), draw.length()];
    if draw.once_in(3) {
        dims.remove(0);
    }
    draw.finite(dtype, &dims)
}

fn unfold(draw: &mut Draw<'_>) -> Result<Call> {
    let (options, kernel) = (blocks(draw), per_axis(draw, 2, 1, 3));
    let channels = draw.length();
    let x = image(draw, channels).leaf()?;
    let output = functional::unfold(&x, kernel, options)?;
    Ok(Call::new(vec![x], vec![output]))
}

/// Blocks of ones from an image: each element is counted as often as blocks cover it.
fn fold(draw: &mut Draw<'_>) -> Result<Call> {
    let (options, kernel) = (blocks(draw), per_axis(draw, 2, 1, 3));
    let size = per_axis(draw, 2, 2, 4);
    let channels = draw.length();
    if draw.once_in(4) {
        let x = image(draw, channels).leaf()?;
        let output = functional::fold(&x, size, kernel, options)?;
        return Ok(Call::new(vec![x], vec![output]));
    }
    let dims: Vec<usize> = [1, channels]
        .into_iter()
        .chain(
            each(&size, 2)
                .iter()
                .map(|&n| usize::try_from(n).unwrap_or(0)),
        )
        .collect();
    let whole = draw.finite(DType::F32, &dims).tensor()?;
    let x =
        functional::unfold(&whole, PerAxis::from(kernel.as_slice()), options.clone())?.detach()?;
    x.requires_grad_(true)?;
    let output = functional::fold(&x, size, kernel, options)?;
    Ok(Call::new(vec![x], vec![output]))
}

fn pixels(draw: &mut Draw<'_>, shuffle: bool) -> Result<Call> {
    let factor = draw.size(3);
    let dtype = draw.dtype();
    let mut dims = draw.dims(1);
    let scale = factor.clamp(1, 4);
    dims.extend(match shuffle {
        true => [2 * scale * scale, draw.length(), draw.length()],
        false => [
            2,
            draw.length().min(8) * scale,
            draw.length().min(8) * scale,
        ],
    });
    if draw.once_in(12) {
        dims.pop();
    }
    let array = draw.array(dtype, &dims);
    let x = array.leaf()?;
    let output = match shuffle {
        true => functional::pixel_shuffle(&x, factor)?,
        false => functional::pixel_unshuffle(&x, factor)?,
    };
    let expected = array.nd().and_then(|host| {
        let mut result = ArrayD::zeros(IxDyn(output.dims()));
        // The larger image has the channel's rest as position within a pixel.
        let (large, small) = match shuffle {
            true => (result.shape().to_vec(), true),
            false => (host.shape().to_vec(), false),
        };
        for at in ndarray::indices(IxDyn(&large)) {
            let fine = at.slice().to_vec();
            let [.., channel, row, column] = fine[..] else {
                return None;
            };
            let mut coarse = fine.clone();
            let n = coarse.len();
            coarse[n - 3] = (channel * factor + row % factor) * factor + column % factor;
            coarse[n - 2] = row / factor;
            coarse[n - 1] = column / factor;
            match small {
                true => *result.get_mut(fine.as_slice())? = *host.get(coarse.as_slice())?,
                false => *result.get_mut(coarse.as_slice())? = *host.get(fine.as_slice())?,
            }
        }
        Some(result)
    });
    Ok(Call::new(vec![x], vec![output]).expect(expected, 0.0))
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 10] = [
        ("conv1d", |draw| conv(draw, 1, functional::conv1d)),
        ("conv2d", |draw| conv(draw, 2, functional::conv2d)),
        ("conv3d", |draw| conv(draw, 3, functional::conv3d)),
        ("conv_transpose1d", |draw| {
            conv_transpose(draw, 1, functional::conv_transpose1d)
        }),
        ("conv_transpose2d", |draw| {
            conv_transpose(draw, 2, functional::conv_transpose2d)
        }),
        ("conv_transpose3d", |draw| {
            conv_transpose(draw, 3, functional::conv_transpose3d)
        }),
        ("fold", fold),
        ("nn_unfold", unfold),
        ("pixel_shuffle", |draw| pixels(draw, true)),
        ("pixel_unshuffle", |draw| pixels(draw, false)),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
