//! Normalisation.

use super::builder::{optional, setters};
use crate::{Forward, Module, Training, functional};
use std::panic::Location;
use xla_core::DType;
use xla_core::{Error, IntoShape, Result, Shape};
use xla_lazy::{Tensor, TensorOptions, no_grad};

const EPS: f64 = 1e-5;

/// The scale and shift of a normalisation, from 1 and 0.
#[track_caller]
fn affine(
    shape: &Shape,
    scale: bool,
    shift: bool,
    options: TensorOptions,
) -> Result<[Option<Tensor>; 2]> {
    let weight = match scale {
        true => Some(Tensor::ones(shape, options)?.requires_grad_(true)?),
        false => None,
    };
    let bias = match shift {
        true => Some(Tensor::zeros(shape, options)?.requires_grad_(true)?),
        false => None,
    };
    Ok([weight, bias])
}

/// Normalisation over the batch ([Ioffe & Szegedy 2015](https://arxiv.org/abs/1502.03167)), for
/// inputs with `D` axes behind the channels: [`BatchNorm1d`], [`BatchNorm2d`], [`BatchNorm3d`].
///
/// In training each channel is normalised by the batch's mean and variance, which enter the running
/// ones; in evaluation by the running ones. Names are PyTorch's: `weight`, `bias`, `running_mean`,
/// `running_var`, `num_batches_tracked`.
///
/// ```no_run
/// use xla_nn::{BatchNorm2d, Module};
/// let norm = BatchNorm2d::new(64, ())?;
/// let plain = BatchNorm2d::builder(64).eps(1e-3).affine(false).build(())?;
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Module, Forward)]
pub struct BatchNorm<const D: usize> {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    #[module(buffer)]
    running_mean: Option<Tensor>,
    #[module(buffer)]
    running_var: Option<Tensor>,
    #[module(buffer)]
    num_batches_tracked: Option<Tensor>,
    eps: f64,
    momentum: Option<f64>,
    training: Training,
}

/// For `[batch, channels]` and `[batch, channels, length]`.
pub type BatchNorm1d = BatchNorm<1>;
/// For `[batch, channels, height, width]`.
pub type BatchNorm2d = BatchNorm<2>;
/// For `[batch, channels, depth, height, width]`.
pub type BatchNorm3d = BatchNorm<3>;

impl<const D: usize> BatchNorm<D> {
    /// For so many channels. `options` is a device, a float dtype, both, or `()`.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for a dtype that is no float; what creating the tensors returns.
    #[track_caller]
    pub fn new(channels: usize, options: impl Into<TensorOptions>) -> Result<Self> {
        Self::builder(channels).build(options)
    }

    /// What may differ from [`BatchNorm::new`].
    pub fn builder(channels: usize) -> BatchNormBuilder<D> {
        BatchNormBuilder {
            channels,
            eps: EPS,
            momentum: Some(0.1),
            affine: true,
            track_running_stats: true,
        }
    }

    /// The input normalised, of its shape.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for an input of another rank or number of channels, and in training
    /// for one value a channel.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let here = Location::caller();
        let fits = input.rank() == D + 2 || D == 1 && input.rank() == 2;
        if !fits {
            let expected = match D {
                1 => "an input of shape [batch, channels] or [batch, channels, length]".to_owned(),
                _ => format!("an input of {} axes, [batch, channels, ..]", D + 2),
            };
            return Err(Error::shape("batch_norm", expected, input.shape()).at(here));
        }
        let tracks = self.running_mean.is_some();
        let options = functional::BatchNormOptions {
            weight: self.weight.as_ref(),
            bias: self.bias.as_ref(),
            // Without running statistics there are only the batch's.
            training: self.training.get() || !tracks,
            momentum: self.momentum.unwrap_or(0.0),
            eps: self.eps,
        };
        let [mean, var] = [&self.running_mean, &self.running_var].map(Option::as_ref);
        let (Some(mean), Some(var), true) = (mean, var, self.training.get()) else {
            return functional::batch_norm(input, mean, var, options);
        };
        let counted = self.num_batches_tracked.as_ref();
        if let Some(momentum) = self.momentum {
            let options = functional::BatchNormOptions {
                momentum,
                ..options
            };
            let y = functional::batch_norm(input, Some(mean), Some(var), options)?;
            counted.map(|n| no_grad(|| n.add_(1))).transpose()?;
            return Ok(y);
        }
        // The mean of all batches so far: with momentum 1 the batch's own statistics come out.
        let (batch_mean, batch_var) = (mean.zeros_like()?, var.zeros_like()?);
        let options = functional::BatchNormOptions {
            momentum: 1.0,
            ..options
        };
        let y = functional::batch_norm(input, Some(&batch_mean), Some(&batch_var), options)?;
        if let Some(n) = counted {
            no_grad(|| {
                n.add_(1)?;
                mean.add_(&batch_mean.sub(mean)?.div(n)?)?;
                var.add_(&batch_var.sub(var)?.div(n)?)
            })
            .map_err(|error: Error| error.relocated(here))?;
        }
        Ok(y)
    }
}

/// Makes a [`BatchNorm`].
#[derive(Debug, Clone)]
pub struct BatchNormBuilder<const D: usize> {
    channels: usize,
    eps: f64,
    momentum: Option<f64>,
    affine: bool,
    track_running_stats: bool,
}

impl<const D: usize> BatchNormBuilder<D> {
    setters! {
        /// Added to the variance: 1e-5 unless set.
        eps: f64,
        /// Whether each channel is scaled and shifted afterwards: true unless set.
        affine: bool,
        /// Whether there are running statistics: true unless set. Without, evaluation uses the
        /// batch's as well.
        track_running_stats: bool,
    }

    optional! {
        /// The weight of the batch's statistics in the running ones: 0.1 unless set. With `None`
        /// they are the mean over all batches.
        momentum: f64,
    }

    /// Makes the parameters and buffers.
    ///
    /// # Errors
    /// As [`BatchNorm::new`].
    #[track_caller]
    pub fn build(self, options: impl Into<TensorOptions>) -> Result<BatchNorm<D>> {
        let options = options.into();
        let shape = Shape::new(&[self.channels]);
        let [weight, bias] = affine(&shape, self.affine, self.affine, options)?;
        let [mean, var, count] = match self.track_running_stats {
            true => {
                let device = options.device_or_current("BatchNorm::new")?;
                [
                    Some(Tensor::zeros(&shape, options)?),
                    Some(Tensor::ones(&shape, options)?),
                    Some(Tensor::zeros((), (DType::I64, device))?),
                ]
            }
            false => [None, None, None],
        };
        Ok(BatchNorm {
            weight,
            bias,
            running_mean: mean,
            running_var: var,
            num_batches_tracked: count,
            eps: self.eps,
            momentum: self.momentum,
            training: Training::new(),
        })
    }
}

/// Normalisation over the last axes of each element
/// ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)).
#[derive(Debug, Module, Forward)]
pub struct LayerNorm {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    normalized_shape: Shape,
    eps: f64,
}

impl LayerNorm {
    /// Over last axes of this shape. `options` is a device, a float dtype, both, or `()`.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for a dtype that is no float; what creating the tensors returns.
    #[track_caller]
    pub fn new(
        normalized_shape: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        LayerNorm::builder(normalized_shape)?.build(options)
    }

    /// What may differ from [`LayerNorm::new`].
    ///
    /// # Errors
    /// [`Error::Argument`] for lengths that are none.
    #[track_caller]
    pub fn builder(normalized_shape: impl IntoShape) -> Result<LayerNormBuilder> {
        let here = Location::caller();
        let shape = normalized_shape.into_shape("LayerNorm");
        Ok(LayerNormBuilder {
            normalized_shape: shape.map_err(|error| error.at(here))?,
            eps: EPS,
            elementwise_affine: true,
            bias: true,
        })
    }

    /// The input normalised, of its shape.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the last axes are others.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let [weight, bias] = [&self.weight, &self.bias].map(Option::as_ref);
        functional::layer_norm(input, &self.normalized_shape, weight, bias, self.eps)
    }
}

/// Makes a [`LayerNorm`].
#[derive(Debug, Clone)]
pub struct LayerNormBuilder {
    normalized_shape: Shape,
    eps: f64,
    elementwise_affine: bool,
    bias: bool,
}

impl LayerNormBuilder {
    setters! {
        /// Added to the variance: 1e-5 unless set.
        eps: f64,
        /// Whether each element is scaled and shifted afterwards: true unless set.
        elementwise_affine: bool,
        /// Whether it is shifted if it is scaled: true unless set.
        bias: bool,
    }

    /// Makes the parameters.
    ///
    /// # Errors
    /// As [`LayerNorm::new`].
    #[track_caller]
    pub fn build(self, options: impl Into<TensorOptions>) -> Result<LayerNorm> {
        let shift = self.elementwise_affine && self.bias;
        let shape = self.normalized_shape;
        let [weight, bias] = affine(&shape, self.elementwise_affine, shift, options.into())?;
        Ok(LayerNorm {
            weight,
            bias,
            normalized_shape: shape,
            eps: self.eps,
        })
    }
}

/// Division by the root of the mean square over the last axes
/// ([Zhang & Sennrich 2019](https://arxiv.org/abs/1910.07467)).
#[derive(Debug, Module, Forward)]
pub struct RmsNorm {
    weight: Option<Tensor>,
    normalized_shape: Shape,
    eps: Option<f64>,
}

impl RmsNorm {
    /// Over last axes of this shape. `options` is a device, a float dtype, both, or `()`.
    ///
    /// # Errors
    /// As [`LayerNorm::new`].
    #[track_caller]
    pub fn new(
        normalized_shape: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        RmsNorm::builder(normalized_shape)?.build(options)
    }

    /// What may differ from [`RmsNorm::new`].
    ///
    /// # Errors
    /// As [`LayerNorm::builder`].
    #[track_caller]
    pub fn builder(normalized_shape: impl IntoShape) -> Result<RmsNormBuilder> {
        let here = Location::caller();
        let shape = normalized_shape.into_shape("RmsNorm");
        Ok(RmsNormBuilder {
            normalized_shape: shape.map_err(|error| error.at(here))?,
            eps: None,
            elementwise_affine: true,
        })
    }

    /// The input normalised, of its shape.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the last axes are others.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::rms_norm(
            input,
            &self.normalized_shape,
            self.weight.as_ref(),
            self.eps,
        )
    }
}

/// Makes an [`RmsNorm`].
#[derive(Debug, Clone)]
pub struct RmsNormBuilder {
    normalized_shape: Shape,
    eps: Option<f64>,
    elementwise_affine: bool,
}

impl RmsNormBuilder {
    setters! {
        /// Whether each element is scaled afterwards: true unless set.
        elementwise_affine: bool,
    }

    optional! {
        /// Added to the mean square: the dtype's machine epsilon unless set.
        eps: f64,
    }

    /// Makes the parameter.
    ///
    /// # Errors
    /// As [`RmsNorm::new`].
    #[track_caller]
    pub fn build(self, options: impl Into<TensorOptions>) -> Result<RmsNorm> {
        let shape = self.normalized_shape;
        let [weight, _] = affine(&shape, self.elementwise_affine, false, options.into())?;
        Ok(RmsNorm {
            weight,
            normalized_shape: shape,
            eps: self.eps,
        })
    }
}

/// Normalisation over groups of channels ([Wu & He 2018](https://arxiv.org/abs/1803.08494)).
#[derive(Debug, Module, Forward)]
pub struct GroupNorm {
    weight: Option<Tensor>,
    bias: Option<Tensor>,
    num_groups: usize,
    channels: usize,
    eps: f64,
}

impl GroupNorm {
    /// So many channels in so many groups. `options` is a device, a float dtype, both, or `()`.
    ///
    /// # Errors
    /// [`Error::Argument`] when the groups do not divide the channels; otherwise as
    /// [`LayerNorm::new`].
    #[track_caller]
    pub fn new(
        num_groups: usize,
        channels: usize,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        GroupNorm::builder(num_groups, channels).build(options)
    }

    /// What may differ from [`GroupNorm::new`].
    pub fn builder(num_groups: usize, channels: usize) -> GroupNormBuilder {
        GroupNormBuilder {
            num_groups,
            channels,
            eps: EPS,
            affine: true,
        }
    }

    /// The input, `[batch, channels, ..]`, normalised.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for another number of channels.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        if input.dims().get(1) != Some(&self.channels) {
            let expected = format!("an input of shape [batch, {}, ..]", self.channels);
            let error = Error::shape("group_norm", expected, input.shape());
            return Err(error.at(Location::caller()));
        }
        let [weight, bias] = [&self.weight, &self.bias].map(Option::as_ref);
        functional::group_norm(input, self.num_groups, weight, bias, self.eps)
    }
}

/// Makes a [`GroupNorm`].
#[derive(Debug, Clone)]
pub struct GroupNormBuilder {
    num_groups: usize,
    channels: usize,
    eps: f64,
    affine: bool,
}

impl GroupNormBuilder {
    setters! {
        /// Added to the variance: 1e-5 unless set.
        eps: f64,
        /// Whether each channel is scaled and shifted afterwards: true unless set.
        affine: bool,
    }

    /// Makes the parameters.
    ///
    /// # Errors
    /// As [`GroupNorm::new`].
    #[track_caller]
    pub fn build(self, options: impl Into<TensorOptions>) -> Result<GroupNorm> {
        if self.num_groups == 0 || !self.channels.is_multiple_of(self.num_groups) {
            let expected = format!("a divisor of the {} channels", self.channels);
            let error = Error::argument("GroupNorm", "num_groups", expected, self.num_groups);
            return Err(error.at(Location::caller()));
        }
        let shape = Shape::new(&[self.channels]);
        let [weight, bias] = affine(&shape, self.affine, self.affine, options.into())?;
        Ok(GroupNorm {
            weight,
            bias,
            num_groups: self.num_groups,
            channels: self.channels,
            eps: self.eps,
        })
    }
}
