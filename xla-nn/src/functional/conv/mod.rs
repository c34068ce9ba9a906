//! Convolutions.

mod bias;
mod operator;

use super::floating;
use super::window::{LIMIT, PerAxis, Window, batched, covered};
use bias::biased;
use operator::{Convolution, INPUT, OUTPUT};
use std::panic::Location;
use xla_core::{Dims, Error, Result};
use xla_lazy::autocast::lower;
use xla_lazy::{Tensor, get_float32_matmul_precision, record_op};

/// How many elements the input has before and after it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Padding {
    /// This many zeros on both sides.
    Zeros(PerAxis),
    /// As many zeros as give the output the input's size; one more after than before where the
    /// number is odd. The stride must be 1.
    Same,
    /// None.
    Valid,
}

impl<T: Into<PerAxis>> From<T> for Padding {
    fn from(zeros: T) -> Self {
        Padding::Zeros(zeros.into())
    }
}

/// The arguments of [`conv1d`], [`conv2d`] and [`conv3d`] beside the tensors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvOptions {
    /// Distance between two positions of the kernel; 1.
    pub stride: PerAxis,
    /// What surrounds the input; 0.
    pub padding: Padding,
    /// Distance of the input's elements that a kernel covers; 1.
    pub dilation: PerAxis,
    /// Into how many groups the channels are divided, each convolved on its own; 1.
    pub groups: usize,
}

impl Default for ConvOptions {
    fn default() -> Self {
        ConvOptions {
            stride: 1.into(),
            padding: 0.into(),
            dilation: 1.into(),
            groups: 1,
        }
    }
}

/// The arguments of [`conv_transpose1d`], [`conv_transpose2d`] and [`conv_transpose3d`] beside the
/// tensors.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvTransposeOptions {
    /// Distance in the output between what two of the input's elements spread to; 1.
    pub stride: PerAxis,
    /// How much is cut off the output on both sides; 0.
    pub padding: PerAxis,
    /// How much longer the output is at its end, less than the stride or the dilation; 0.
    pub output_padding: PerAxis,
    /// Into how many groups the channels are divided; 1.
    pub groups: usize,
    /// Distance in the output of the kernel's elements; 1.
    pub dilation: PerAxis,
}

impl Default for ConvTransposeOptions {
    fn default() -> Self {
        ConvTransposeOptions {
            stride: 1.into(),
            padding: 0.into(),
            output_padding: 0.into(),
            groups: 1,
            dilation: 1.into(),
        }
    }
}

/// That input, weight and bias are of one floating-point dtype, and weight and bias of the right
/// shape.
fn check<const N: usize>(
    op: &'static str,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    out_channels: impl Fn(&[usize]) -> usize,
) -> Result<()> {
    floating(op, "an input", input)?;
    for other in [Some(weight), bias].into_iter().flatten() {
        if other.dtype() != input.dtype() {
            let expected = format!("weight and bias of the input's dtype, {}", input.dtype());
            return Err(Error::dtype(op, expected, other.dtype()));
        }
    }
    if weight.rank() != N + 2 {
        let expected = format!("a weight with {} axes, of which {N} are spatial", N + 2);
        return Err(Error::shape(op, expected, weight.shape()));
    }
    if let Some(axis) = (2..N + 2).find(|&i| !(1..LIMIT).contains(&weight.dims()[i])) {
        let expected = format!("a weight with at least one element on axis {axis}");
        return Err(Error::shape(op, expected, weight.shape()));
    }
    let outs = out_channels(weight.dims());
    match bias {
        Some(bias) if bias.dims() != [outs] => {
            let expected = format!(
                "a bias of shape [{outs}] for a weight of shape {}",
                weight.shape()
            );
            Err(Error::shape(op, expected, bias.shape()))
        }
        _ => Ok(()),
    }
}

/// That the groups divide both numbers of channels.
fn check_groups(op: &'static str, groups: usize, channels: [usize; 2]) -> Result<()> {
    if groups > 0 && channels.iter().all(|n| n % groups == 0) {
        return Ok(());
    }
    let [a, b] = channels;
    let expected = format!("a number of groups that divides the channels, {a} and {b}");
    Err(Error::argument(op, "groups", expected, groups))
}

/// `y` with one number of `bias` added a channel, and without the batch axis if the input had none.
#[track_caller]
fn finish(y: Tensor, bias: Option<&Tensor>, single: bool) -> Result<Tensor> {
    let y = match bias {
        Some(bias) => biased(&y, bias)?,
        None => y,
    };
    if single { y.squeeze(0) } else { Ok(y) }
}

#[track_caller]
fn conv<const N: usize>(
    op: &'static str,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvOptions,
) -> Result<Tensor> {
    let (input, weight) = (&*lower(input)?, &*lower(weight)?);
    let bias = bias.map(lower).transpose()?;
    let bias = bias.as_deref();
    let (x, single) = batched::<N>(op, input)?;
    check::<N>(op, input, weight, bias, |w| w[0])?;
    let channels = x.dims()[1];
    check_groups(op, options.groups, [channels, weight.dims()[0]])?;
    if weight.dims()[1] != channels / options.groups {
        let expected = format!(
            "a weight of shape [.., {}, ..] for {channels} channels of the input, {}, in {} group(s)",
            channels / options.groups,
            input.shape(),
            options.groups
        );
        return Err(Error::shape(op, expected, weight.shape()));
    }
    let stride = options.stride.resolve(op, "stride", N, 1)?;
    let dilation = options.dilation.resolve(op, "dilation", N, 1)?;
    let (sizes, kernel) = (Dims::from(&x.dims()[2..]), Dims::from(&weight.dims()[2..]));
    let (low, high): (Dims, Dims) = match &options.padding {
        Padding::Zeros(zeros) => {
            let zeros = zeros.resolve(op, "padding", N, 0)?;
            (zeros.clone(), zeros)
        }
        Padding::Valid => ((0..N).map(|_| 0).collect(), (0..N).map(|_| 0).collect()),
        Padding::Same if stride.iter().any(|&s| s != 1) => {
            let got = format!("{stride:?}");
            return Err(Error::argument(op, "stride", "1 with padding 'same'", got));
        }
        Padding::Same => {
            let total = |i: usize| covered(kernel[i], dilation[i]) - 1;
            (
                (0..N).map(|i| total(i) / 2).collect(),
                (0..N).map(|i| total(i) - total(i) / 2).collect(),
            )
        }
    };
    let mut output = Dims::new();
    for i in 0..N {
        let (reach, room) = (
            covered(kernel[i], dilation[i]),
            sizes[i].saturating_add(low[i] + high[i]),
        );
        if reach > room || room >= LIMIT {
            let expected = format!(
                "an input whose spatial axis {i}, padded by {} and {}, holds the kernel's {reach} elements",
                low[i], high[i]
            );
            let got = format!(
                "{} with a weight of shape {}",
                input.shape(),
                weight.shape()
            );
            return Err(Error::shape(op, expected, got));
        }
        output.push((room - reach) / stride[i] + 1);
    }
    let window = Window {
        input: sizes,
        output,
        kernel,
        stride,
        low,
        dilation,
    };
    let operator = Convolution::<OUTPUT> {
        window,
        groups: options.groups,
        precision: get_float32_matmul_precision(),
    };
    let y = record_op(operator, &[(&x).into(), weight.into()])?;
    finish(y, bias, single)
}

#[track_caller]
fn conv_transpose<const N: usize>(
    op: &'static str,
    input: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvTransposeOptions,
) -> Result<Tensor> {
    let (input, weight) = (&*lower(input)?, &*lower(weight)?);
    let bias = bias.map(lower).transpose()?;
    let bias = bias.as_deref();
    let (x, single) = batched::<N>(op, input)?;
    let groups = options.groups;
    check::<N>(op, input, weight, bias, |w| w[1].saturating_mul(groups))?;
    let channels = x.dims()[1];
    if weight.dims()[0] != channels {
        let expected = format!(
            "a weight of shape [{channels}, ..] for the channels of an input of shape {}",
            input.shape()
        );
        return Err(Error::shape(op, expected, weight.shape()));
    }
    check_groups(op, groups, [channels, channels])?;
    let stride = options.stride.resolve(op, "stride", N, 1)?;
    let low = options.padding.resolve(op, "padding", N, 0)?;
    let more = options.output_padding.resolve(op, "output_padding", N, 0)?;
    let dilation = options.dilation.resolve(op, "dilation", N, 1)?;
    let (sizes, kernel) = (Dims::from(&x.dims()[2..]), Dims::from(&weight.dims()[2..]));
    let mut output = Dims::new();
    for i in 0..N {
        if more[i] >= stride[i].max(dilation[i]) {
            let expected = format!(
                "less than the stride, {}, or the dilation, {}",
                stride[i], dilation[i]
            );
            return Err(Error::argument(op, "output_padding", expected, more[i]));
        }
        let spread = sizes[i].saturating_sub(1).saturating_mul(stride[i]);
        let reach = spread
            .saturating_add(covered(kernel[i], dilation[i]))
            .saturating_add(more[i]);
        if sizes[i] == 0 || reach <= 2 * low[i] || reach >= LIMIT {
            let expected = format!(
                "an input with at least one element on spatial axis {i}, and an output there of at least one (of {reach}, {} are cut off as padding)",
                2 * low[i]
            );
            return Err(Error::shape(op, expected, input.shape()));
        }
        output.push(reach - 2 * low[i]);
    }
    let window = Window {
        input: output,
        output: sizes,
        kernel,
        stride,
        low,
        dilation,
    };
    let operator = Convolution::<INPUT> {
        window,
        groups,
        precision: get_float32_matmul_precision(),
    };
    let y = record_op(operator, &[(&x).into(), weight.into()])?;
    finish(y, bias, single)
}

macro_rules! convolutions {
    ($options:ident $body:ident; $($(#[$doc:meta])* $name:ident: $axes:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// `groups` divides the channels; each group of outputs sees only its group of inputs. The
        /// bias is added to each channel. Half precision is accumulated in `f32`. As in PyTorch, an
        /// input without the batch axis gives an output without it.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`] for ranks, channels, a bias or a kernel that do not fit the
        /// input; [`Error::DTypeMismatch`] for dtypes that differ or are not floating-point;
        /// [`Error::Argument`] for a stride or dilation of 0, a padding that is negative or without
        /// meaning, or groups that do not divide the channels.
        #[track_caller]
        pub fn $name(
            input: &Tensor,
            weight: &Tensor,
            bias: Option<&Tensor>,
            options: $options,
        ) -> Result<Tensor> {
            let here = Location::caller();
            $body::<$axes>(stringify!($name), input, weight, bias, &options).map_err(|e| e.at(here))
        }
    )*};
}

convolutions! {
    ConvOptions conv;

    /// The convolution over one axis: input `[batch, channels, length]`, weight
    /// `[out channels, channels / groups, kernel]`, bias `[out channels]`.
    conv1d: 1;

    /// The convolution over two axes: input `[batch, channels, height, width]`, weight
    /// `[out channels, channels / groups, kernel height, kernel width]`, bias `[out channels]`.
    conv2d: 2;

    /// The convolution over three axes: input `[batch, channels, depth, height, width]`, weight
    /// `[out channels, channels / groups, kernel depth, kernel height, kernel width]`, bias
    /// `[out channels]`.
    conv3d: 3;
}

convolutions! {
    ConvTransposeOptions conv_transpose;

    /// The transposed convolution over one axis, the adjoint of [`conv1d`]: input
    /// `[batch, channels, length]`, weight `[channels, out channels / groups, kernel]`, bias
    /// `[out channels]`.
    conv_transpose1d: 1;

    /// The transposed convolution over two axes, the adjoint of [`conv2d`]: input
    /// `[batch, channels, height, width]`, weight
    /// `[channels, out channels / groups, kernel height, kernel width]`, bias `[out channels]`.
    conv_transpose2d: 2;

    /// The transposed convolution over three axes, the adjoint of [`conv3d`]: input
    /// `[batch, channels, depth, height, width]`, weight
    /// `[channels, out channels / groups, kernel depth, kernel height, kernel width]`, bias
    /// `[out channels]`.
    conv_transpose3d: 3;
}
