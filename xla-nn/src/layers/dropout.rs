//! Dropout.

use crate::{Forward, Module, Training};
use std::panic::Location;
use xla_core::{DType, Error, Result};
use xla_lazy::Tensor;

/// Sets elements to 0 in training, each with probability `p`, and scales the others by `1 / (1 - p)`
/// ([Srivastava et al. 2014](https://jmlr.org/papers/v15/srivastava14a.html)). In evaluation it
/// changes nothing.
#[derive(Debug, Clone, Module, Forward)]
pub struct Dropout {
    p: f64,
    training: Training,
}

/// Sets whole channels to 0 in training: [`Dropout`] with one choice for each of the first two axes,
/// batch and channel ([Tompson et al. 2015](https://arxiv.org/abs/1411.4280)).
#[derive(Debug, Clone, Module, Forward)]
pub struct Dropout2d {
    p: f64,
    training: Training,
}

impl Dropout {
    /// With this probability: PyTorch's default is 0.5. One that is none is an error at the first
    /// call.
    pub fn new(p: f64) -> Self {
        Dropout {
            p,
            training: Training::new(),
        }
    }

    /// # Errors
    /// [`Error::Argument`] for a probability outside of `0..=1`, [`Error::DTypeMismatch`] for a dtype
    /// that is no float.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        dropout("dropout", input, input.dims(), self.p, &self.training)
    }
}

impl Dropout2d {
    /// With this probability: PyTorch's default is 0.5. One that is none is an error at the first
    /// call.
    pub fn new(p: f64) -> Self {
        Dropout2d {
            p,
            training: Training::new(),
        }
    }

    /// From `[batch, channels, height, width]` to the same.
    ///
    /// # Errors
    /// As [`Dropout::forward`]; [`Error::ShapeMismatch`] for an input of fewer than two axes.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let [batch, channels, ..] = *input.dims() else {
            let expected = "an input of shape [batch, channels, ..]";
            let error = Error::shape("dropout2d", expected, input.shape());
            return Err(error.at(Location::caller()));
        };
        let mut choices = vec![1; input.rank()];
        choices[..2].copy_from_slice(&[batch, channels]);
        dropout("dropout2d", input, &choices, self.p, &self.training)
    }
}

#[track_caller]
fn dropout(
    op: &'static str,
    input: &Tensor,
    choices: &[usize],
    p: f64,
    training: &Training,
) -> Result<Tensor> {
    let here = Location::caller();
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::argument(op, "p", "a probability", p).at(here));
    }
    if !input.dtype().is_float() {
        return Err(Error::dtype(op, "a float dtype", input.dtype()).at(here));
    }
    match training.get() && p > 0.0 {
        true => drop_some(input, choices, p),
        false => Ok(input.clone()),
    }
}

/// The tensor with each element dropped with probability `p`.
#[track_caller]
pub(super) fn dropped(input: &Tensor, p: f64) -> Result<Tensor> {
    drop_some(input, input.dims(), p)
}

#[track_caller]
fn drop_some(input: &Tensor, choices: &[usize], p: f64) -> Result<Tensor> {
    let drawn = Tensor::rand(choices, (DType::F32, input.device()))?;
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    drawn.ge(p)?.select_from(&input.mul(scale)?, 0)
}
