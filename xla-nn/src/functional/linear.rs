//! The affine map.

use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::Tensor;
use xla_lazy::autocast::lower;

/// `x Wᵀ + b` over the last axis of the input: from `[.., inputs]` to `[.., outputs]`, with a
/// `weight` of `[outputs, inputs]` (or `[inputs]`, when the last axis vanishes) and a `bias` of
/// `[outputs]`.
///
/// # Errors
/// [`Error::ShapeMismatch`] when the sizes do not fit each other, [`Error::DTypeMismatch`] when the
/// dtypes differ.
#[track_caller]
pub fn linear(input: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Result<Tensor> {
    const OP: &str = "linear";
    let at = Location::caller();
    let (input, weight) = (&*lower(input)?, &*lower(weight)?);
    let bias = bias.map(lower).transpose()?;
    let bias = bias.as_deref();
    let (inputs, outputs) = match *weight.dims() {
        [outputs, inputs] => (inputs, Some(outputs)),
        [inputs] => (inputs, None),
        _ => {
            let expected = "a weight of shape [outputs, inputs] or [inputs]";
            return Err(Error::shape(OP, expected, weight.shape()).at(at));
        }
    };
    if input.dims().last() != Some(&inputs) {
        let expected = format!(
            "an input of shape [.., {inputs}] for a weight of shape {}",
            weight.shape()
        );
        return Err(Error::shape(OP, expected, input.shape()).at(at));
    }
    let product = match outputs {
        Some(_) => input.matmul(&weight.t()?)?,
        None => input.matmul(weight)?,
    };
    let Some(bias) = bias else {
        return Ok(product);
    };
    let fits = match (bias.dims(), outputs) {
        ([], _) => true,
        ([n], Some(outputs)) => *n == outputs,
        _ => false,
    };
    if !fits {
        let expected = match outputs {
            Some(outputs) => format!("a bias of shape [{outputs}]"),
            None => "a bias of shape []".to_owned(),
        };
        return Err(Error::shape(OP, expected, bias.shape()).at(at));
    }
    if bias.dtype() != product.dtype() {
        let expected = format!("a bias of {}", product.dtype());
        return Err(Error::dtype(OP, expected, bias.dtype()).at(at));
    }
    product.add(bias)
}
