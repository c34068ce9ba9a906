//! Affine layers.

use super::builder::setters;
use crate::{Forward, Module, functional, init};
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::{Tensor, TensorOptions};

/// `x Wᵀ + b`, over the last axis of the input.
///
/// `weight` has shape `[outputs, inputs]` and `bias` shape `[outputs]`, both drawn uniformly from
/// `-1/sqrt(inputs)..1/sqrt(inputs)`. Shapes, names and initial values are those of PyTorch's
/// `Linear`, so its saved weights fit.
#[derive(Debug, Module, Forward)]
pub struct Linear {
    weight: Tensor,
    bias: Option<Tensor>,
}

impl Linear {
    /// A layer from `inputs` to `outputs` features. `options` is a device, a float dtype, both, or
    /// `()` for the replica's device and `f32`.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for a dtype that is no float; what creating the tensors
    /// returns.
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize, options: impl Into<TensorOptions>) -> Result<Self> {
        Linear::builder(inputs, outputs).build(options)
    }

    /// What may differ from [`Linear::new`].
    pub fn builder(inputs: usize, outputs: usize) -> LinearBuilder {
        LinearBuilder {
            inputs,
            outputs,
            bias: true,
        }
    }

    /// As [`Linear::new`], without `b`.
    ///
    /// # Errors
    /// As [`Linear::new`].
    #[track_caller]
    pub fn without_bias(
        inputs: usize,
        outputs: usize,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        Linear::builder(inputs, outputs).bias(false).build(options)
    }

    /// A layer of parameters that there are already, `[outputs, inputs]` and `[outputs]`. With
    /// another layer's weight the two share it, also in training.
    ///
    /// ```no_run
    /// use xla_nn::{Embedding, Linear};
    /// let table = Embedding::new(256, 64, ())?;
    /// let head = Linear::from_parameters(table.weight(), None)?;
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a weight without two axes, or a bias that does not fit it.
    #[track_caller]
    pub fn from_parameters(weight: &Tensor, bias: Option<&Tensor>) -> Result<Self> {
        let at = Location::caller();
        let [outputs, _] = *weight.dims() else {
            let expected = "a weight of shape [outputs, inputs]";
            return Err(Error::shape("Linear", expected, weight.shape()).at(at));
        };
        if let Some(bias) = bias.filter(|bias| bias.dims() != [outputs]) {
            let expected = format!("a bias of shape [{outputs}]");
            return Err(Error::shape("Linear", expected, bias.shape()).at(at));
        }
        Ok(Linear {
            weight: weight.clone(),
            bias: bias.cloned(),
        })
    }

    /// The weight, `[outputs, inputs]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The bias, `[outputs]`.
    pub fn bias(&self) -> Option<&Tensor> {
        self.bias.as_ref()
    }

    /// From `[.., inputs]` to `[.., outputs]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the last axis is not `inputs` long.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::linear(input, &self.weight, self.bias.as_ref())
    }
}

/// Makes a [`Linear`].
#[derive(Debug, Clone)]
pub struct LinearBuilder {
    inputs: usize,
    outputs: usize,
    bias: bool,
}

impl LinearBuilder {
    setters! {
        /// Whether `b` is added: true unless set.
        bias: bool,
    }

    /// Draws the parameters.
    ///
    /// # Errors
    /// As [`Linear::new`].
    #[track_caller]
    pub fn build(self, options: impl Into<TensorOptions>) -> Result<Linear> {
        let options = options.into();
        let weight = init::kaiming_uniform([self.outputs, self.inputs], 5f64.sqrt(), options)?;
        let bias = match self.bias {
            true => Some(fan_in_uniform([self.outputs], self.inputs, options)?),
            false => None,
        };
        Ok(Linear {
            weight: weight.requires_grad_(true)?,
            bias,
        })
    }
}

/// A parameter drawn uniformly from `-1/sqrt(fan_in)..1/sqrt(fan_in)`, PyTorch's choice for most
/// layers; 0 where nothing comes in.
#[track_caller]
pub(super) fn fan_in_uniform(
    shape: impl xla_core::IntoShape,
    fan_in: usize,
    options: TensorOptions,
) -> Result<Tensor> {
    let bound = match fan_in {
        0 => 0.0,
        n => 1.0 / (n as f64).sqrt(),
    };
    init::uniform(shape, -bound, bound, options)?.requires_grad_(true)
}
