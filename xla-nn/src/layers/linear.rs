//! The affine layer.

use crate::{Forward, Module, init};
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
    /// [`Error::DTypeMismatch`] for a dtype that is no float; what creating the tensors returns.
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize, options: impl Into<TensorOptions>) -> Result<Self> {
        let options = options.into();
        let linear = Linear::without_bias(inputs, outputs, options)?;
        let bound = if inputs == 0 {
            0.0
        } else {
            1.0 / (inputs as f64).sqrt()
        };
        let bias = init::uniform([outputs], -bound, bound, options)?;
        Ok(Linear {
            bias: Some(bias.requires_grad_(true)?),
            ..linear
        })
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
        let weight = init::kaiming_uniform([outputs, inputs], 5f64.sqrt(), options)?;
        Ok(Linear {
            weight: weight.requires_grad_(true)?,
            bias: None,
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
        let inputs = self.weight.dims()[1];
        if input.dims().last() != Some(&inputs) {
            return Err(Error::shape(
                "linear",
                format!("an input of shape [.., {inputs}]"),
                input.shape(),
            )
            .at(std::panic::Location::caller()));
        }
        let product = input.matmul(&self.weight.t()?)?;
        match &self.bias {
            Some(bias) => product.add(bias),
            None => Ok(product),
        }
    }
}
