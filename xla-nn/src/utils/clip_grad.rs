//! Gradients of bounded size.

use crate::functional::accumulator;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::{Tensor, no_grad};

/// How [`clip_grad_norm_`] clips, by PyTorch's names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClipOptions {
    /// The order of the norm; may be infinite.
    pub norm_type: f64,
    /// Whether a norm that is not finite is an error. Only then the norm is read to the host.
    pub error_if_nonfinite: bool,
}

impl Default for ClipOptions {
    fn default() -> Self {
        ClipOptions {
            norm_type: 2.0,
            error_if_nonfinite: false,
        }
    }
}

impl From<f64> for ClipOptions {
    fn from(norm_type: f64) -> Self {
        ClipOptions {
            norm_type,
            ..ClipOptions::default()
        }
    }
}

/// The norm of one tensor, in its dtype; half precision is added up in `f32`.
fn norm(x: &Tensor, order: f64) -> Result<Tensor> {
    let dtype = x.dtype();
    let x = x.to_dtype(accumulator(dtype))?;
    let norm = match order {
        f64::INFINITY => x.abs()?.amax((), false),
        f64::NEG_INFINITY => x.abs()?.amin((), false),
        0.0 => x.ne(0)?.to_dtype(x.dtype())?.sum((), false),
        1.0 => x.abs()?.sum((), false),
        2.0 => x.square()?.sum((), false)?.sqrt(),
        order => x.abs()?.pow(order)?.sum((), false)?.pow(1.0 / order),
    };
    norm?.to_dtype(dtype)
}

/// The norm of the vector of all elements of these tensors: the norm of their norms. A scalar on the
/// device; 0 without tensors.
///
/// # Errors
/// [`Error::Argument`] for an order that is NaN, [`Error::DTypeMismatch`] for a tensor that is not of
/// floats, [`Error::DeviceMismatch`].
#[track_caller]
pub fn get_total_norm(tensors: &[&Tensor], norm_type: f64) -> Result<Tensor> {
    const OP: &str = "get_total_norm";
    let at = Location::caller();
    if norm_type.is_nan() {
        return Err(Error::argument(OP, "norm_type", "a number", norm_type).at(at));
    }
    if let Some(other) = tensors.iter().find(|t| !t.dtype().is_float()) {
        return Err(Error::dtype(OP, "tensors of a floating-point dtype", other.dtype()).at(at));
    }
    let norms: Vec<Tensor> = tensors
        .iter()
        .filter(|t| t.numel() > 0)
        .map(|t| norm(t, norm_type))
        .collect::<Result<_>>()?;
    let Some(dtype) = norms.iter().map(Tensor::dtype).reduce(|a, b| a.promote(b)) else {
        return Tensor::zeros((), ());
    };
    let norms: Vec<Tensor> = norms
        .iter()
        .map(|n| n.to_dtype(dtype))
        .collect::<Result<_>>()?;
    norm(
        &Tensor::stack(&norms.iter().collect::<Vec<_>>(), 0)?,
        norm_type,
    )
}

/// Scales the gradients of these parameters in place so that the norm of all of them together is at
/// most `max_norm`, and returns what it was: a scalar on the device. The bound is data, and nothing is
/// read to the host unless the options ask for an error.
///
/// # Errors
/// [`Error::Argument`] for a bound that is NaN or below 0, and, if asked for, for a norm that is not
/// finite; otherwise as [`get_total_norm`].
///
/// ```no_run
/// # fn demo(model: impl xla_nn::Module, loss: xla_lazy::Tensor) -> xla_core::Result<()> {
/// use xla_nn::utils::{ClipOptions, clip_grad_norm_};
/// loss.backward()?;
/// let norm = clip_grad_norm_(&model.parameters(), 1.0, ClipOptions::default())?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn clip_grad_norm_(
    parameters: &[Tensor],
    max_norm: f64,
    options: impl Into<ClipOptions>,
) -> Result<Tensor> {
    const OP: &str = "clip_grad_norm_";
    let at = Location::caller();
    let options = options.into();
    if max_norm.is_nan() || max_norm < 0.0 {
        let expected = "a number of at least 0";
        return Err(Error::argument(OP, "max_norm", expected, max_norm).at(at));
    }
    let gradients: Vec<Tensor> = parameters.iter().filter_map(Tensor::grad).collect();
    no_grad(|| {
        let total = get_total_norm(&gradients.iter().collect::<Vec<_>>(), options.norm_type)
            .map_err(|e| e.at(at))?;
        if options.error_if_nonfinite && !total.item::<f64>()?.is_finite() {
            let expected = "gradients of a finite norm";
            return Err(Error::argument(OP, "parameters", expected, "another").at(at));
        }
        // Not above 1: smaller gradients stay as they are, without a choice that is read.
        let scale = total.add(1e-6)?.rdiv(max_norm)?.clamp_max(1.0)?;
        for gradient in &gradients {
            gradient.mul_(&scale)?;
        }
        Ok(total)
    })
}

/// Limits the elements of the gradients of these parameters, in place, to `-clip_value..=clip_value`.
/// The bound is data.
///
/// # Errors
/// [`Error::Argument`] for a bound that is NaN or below 0.
#[track_caller]
pub fn clip_grad_value_(parameters: &[Tensor], clip_value: f64) -> Result<()> {
    if clip_value.is_nan() || clip_value < 0.0 {
        let expected = "a number of at least 0";
        let error = Error::argument("clip_grad_value_", "clip_value", expected, clip_value);
        return Err(error.at(Location::caller()));
    }
    no_grad(|| {
        for gradient in parameters.iter().filter_map(Tensor::grad) {
            gradient.copy_(&gradient.clamp(Some(-clip_value), Some(clip_value))?)?;
        }
        Ok(())
    })
}
