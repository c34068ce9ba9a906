//! Convolutions.

use super::at_users_line;
use super::builder::setters;
use super::linear::fan_in_uniform;
use crate::functional::{self, ConvOptions, ConvTransposeOptions, Padding, PerAxis};
use crate::{Forward, Module};
use std::panic::Location;
use xla_core::{Dims, Error, Result};
use xla_lazy::{Tensor, TensorOptions};

/// A convolution over `D` axes: [`Conv1d`], [`Conv2d`], [`Conv3d`].
///
/// `weight` is `[outputs, inputs / groups, kernel..]` and `bias` `[outputs]`, both drawn uniformly
/// from `-1/sqrt(n)..1/sqrt(n)`, `n` being the number of inputs of one output.
///
/// ```no_run
/// use xla_lazy::Tensor;
/// use xla_nn::Conv2d;
/// let first = Conv2d::new(3, 64, 3, ())?;
/// let next = Conv2d::builder(64, 128, [3, 5]).stride(2).padding([1, 2]).bias(false).build(())?;
/// let x = next.forward(&first.forward(&Tensor::zeros([8, 3, 34, 34], ())?)?)?;
/// assert_eq!(x.dims(), [8, 128, 16, 16]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Module, Forward)]
pub struct Conv<const D: usize> {
    weight: Tensor,
    bias: Option<Tensor>,
    #[module(skip)]
    options: ConvOptions,
}

/// Over `[batch, channels, length]`.
pub type Conv1d = Conv<1>;
/// Over `[batch, channels, height, width]`.
pub type Conv2d = Conv<2>;
/// Over `[batch, channels, depth, height, width]`.
pub type Conv3d = Conv<3>;

/// A transposed convolution over `D` axes, the adjoint of a [`Conv`]: [`ConvTranspose1d`],
/// [`ConvTranspose2d`], [`ConvTranspose3d`].
///
/// `weight` is `[inputs, outputs / groups, kernel..]`; otherwise as [`Conv`].
#[derive(Debug, Module, Forward)]
pub struct ConvTranspose<const D: usize> {
    weight: Tensor,
    bias: Option<Tensor>,
    #[module(skip)]
    options: ConvTransposeOptions,
}

/// Over `[batch, channels, length]`.
pub type ConvTranspose1d = ConvTranspose<1>;
/// Over `[batch, channels, height, width]`.
pub type ConvTranspose2d = ConvTranspose<2>;
/// Over `[batch, channels, depth, height, width]`.
pub type ConvTranspose3d = ConvTranspose<3>;

/// Makes a [`Conv`].
#[derive(Debug, Clone)]
pub struct ConvBuilder<const D: usize> {
    inputs: usize,
    outputs: usize,
    kernel: PerAxis,
    bias: bool,
    options: ConvOptions,
}

/// Makes a [`ConvTranspose`].
#[derive(Debug, Clone)]
pub struct ConvTransposeBuilder<const D: usize> {
    inputs: usize,
    outputs: usize,
    kernel: PerAxis,
    bias: bool,
    options: ConvTransposeOptions,
}

macro_rules! options {
    ($($(#[$doc:meta])* $name:ident: $ty:ty,)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $name(mut self, $name: impl Into<$ty>) -> Self {
            self.options.$name = $name.into();
            self
        }
    )*};
}

macro_rules! convolution {
    ($layer:ident, $builder:ident, $options:ident, $op:literal, [$($function:ident)*]) => {
        impl<const D: usize> $layer<D> {
            /// From `inputs` to `outputs` channels with a kernel of this size: one number for all
            /// axes, or one for each. `options` is a device, a float dtype, both, or `()`.
            ///
            /// # Errors
            /// [`Error::Argument`] for numbers that do not fit each other;
            /// [`Error::DTypeMismatch`] for a dtype that is no float; what creating the tensors
            /// returns.
            #[track_caller]
            pub fn new(
                inputs: usize,
                outputs: usize,
                kernel: impl Into<PerAxis>,
                options: impl Into<TensorOptions>,
            ) -> Result<Self> {
                Self::builder(inputs, outputs, kernel).build(options)
            }

            /// What may differ from `new`.
            pub fn builder(
                inputs: usize,
                outputs: usize,
                kernel: impl Into<PerAxis>,
            ) -> $builder<D> {
                $builder {
                    inputs,
                    outputs,
                    kernel: kernel.into(),
                    bias: true,
                    options: $options::default(),
                }
            }

            /// The weight.
            pub fn weight(&self) -> &Tensor {
                &self.weight
            }

            /// The bias, `[outputs]`.
            pub fn bias(&self) -> Option<&Tensor> {
                self.bias.as_ref()
            }

            /// From `[batch, inputs, ..]` to `[batch, outputs, ..]`; without a batch axis if the
            /// input has none.
            ///
            /// # Errors
            /// [`Error::ShapeMismatch`] for another rank, another number of channels, or an input
            /// smaller than the kernel.
            #[track_caller]
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let functions = [$(functional::$function),*];
                let function = functions[D.clamp(1, functions.len()) - 1];
                // A function's address does not tell it the caller.
                let here = Location::caller();
                function(input, &self.weight, self.bias.as_ref(), self.options.clone())
                    .map_err(|error| at_users_line(error, here))
            }
        }

        impl<const D: usize> $builder<D> {
            setters! {
                /// Whether a bias is added: true unless set.
                bias: bool,
            }

            /// Into how many groups the channels are divided: 1 unless set.
            #[must_use]
            pub fn groups(mut self, groups: usize) -> Self {
                self.options.groups = groups;
                self
            }

            /// The kernel's lengths, after a check of the channels.
            fn kernel(&self) -> Result<Dims> {
                let groups = self.options.groups;
                for (name, channels) in [("inputs", self.inputs), ("outputs", self.outputs)] {
                    if groups == 0 || channels == 0 || !channels.is_multiple_of(groups) {
                        let expected = format!("a positive multiple of {groups} groups");
                        return Err(Error::argument($op, name, expected, channels));
                    }
                }
                self.kernel.resolve($op, "kernel", D, 1)
            }
        }
    };
}

convolution!(Conv, ConvBuilder, ConvOptions, "Conv", [conv1d conv2d conv3d]);
convolution!(
    ConvTranspose,
    ConvTransposeBuilder,
    ConvTransposeOptions,
    "ConvTranspose",
    [conv_transpose1d conv_transpose2d conv_transpose3d]
);

impl<const D: usize> ConvBuilder<D> {
    options! {
        /// Distance between two positions of the kernel: 1 unless set.
        stride: PerAxis,
        /// Zeros around the input: 0 unless set.
        padding: Padding,
        /// Distance of the input's elements that the kernel covers: 1 unless set.
        dilation: PerAxis,
    }

    /// Draws the parameters.
    ///
    /// # Errors
    /// As [`Conv::new`].
    #[track_caller]
    pub fn build(self, options: impl Into<TensorOptions>) -> Result<Conv<D>> {
        let options = options.into();
        let here = Location::caller();
        let kernel = self.kernel().map_err(|error| error.at(here))?;
        let mut shape = vec![self.outputs, self.inputs / self.options.groups];
        shape.extend_from_slice(&kernel);
        let (weight, bias) = draw(&shape, self.outputs, self.bias, options)?;
        Ok(Conv {
            weight,
            bias,
            options: self.options,
        })
    }
}

impl<const D: usize> ConvTransposeBuilder<D> {
    options! {
        /// Distance in the output between what two of the input's elements spread to: 1 unless set.
        stride: PerAxis,
        /// How much is cut off the output on both sides: 0 unless set.
        padding: PerAxis,
        /// How much longer the output is at its end: 0 unless set.
        output_padding: PerAxis,
        /// Distance in the output of the kernel's elements: 1 unless set.
        dilation: PerAxis,
    }

    /// Draws the parameters.
    ///
    /// # Errors
    /// As [`ConvTranspose::new`].
    #[track_caller]
    pub fn build(self, options: impl Into<TensorOptions>) -> Result<ConvTranspose<D>> {
        let options = options.into();
        let here = Location::caller();
        let kernel = self.kernel().map_err(|error| error.at(here))?;
        let mut shape = vec![self.inputs, self.outputs / self.options.groups];
        shape.extend_from_slice(&kernel);
        let (weight, bias) = draw(&shape, self.outputs, self.bias, options)?;
        Ok(ConvTranspose {
            weight,
            bias,
            options: self.options,
        })
    }
}

/// A weight, and a bias of so many channels. The inputs of one output are all of the weight's axes
/// but the first, which is so for PyTorch's transposed convolutions as well.
#[track_caller]
fn draw(
    shape: &[usize],
    outputs: usize,
    bias: bool,
    options: TensorOptions,
) -> Result<(Tensor, Option<Tensor>)> {
    let fan_in = shape[1..]
        .iter()
        .fold(1, |n: usize, d| n.saturating_mul(*d));
    let weight = fan_in_uniform(shape, fan_in, options)?;
    let bias = match bias {
        true => Some(fan_in_uniform([outputs], fan_in, options)?),
        false => None,
    };
    Ok((weight, bias))
}
