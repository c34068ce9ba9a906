//! Losses.

use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::Tensor;

/// The mean over a batch of `-log softmax(logits)[label]`: PyTorch's `cross_entropy` with class
/// indices and its default reduction.
///
/// `logits` are `[batch, classes]` of a float dtype, not yet normalised; `labels` are `[batch]` of an
/// integer dtype, each in `0..classes` (PyTorch's `ignore_index` has no counterpart: mask such rows
/// out). The result is a scalar of the logits' dtype. The mean over an empty batch is NaN.
///
/// Labels that come from the host are checked at the call. A label that was computed on the device
/// and is out of range makes the loss NaN.
///
/// # Errors
/// [`Error::ShapeMismatch`] for other shapes, [`Error::DTypeMismatch`] for other dtypes,
/// [`Error::IndexOutOfRange`] for a label that is no class.
#[track_caller]
pub fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Result<Tensor> {
    const OP: &str = "cross_entropy";
    let here = Location::caller();
    let [batch, classes] = *logits.dims() else {
        return Err(Error::shape(OP, "logits of shape [batch, classes]", logits.shape()).at(here));
    };
    if labels.dims() != [batch] {
        let expected = format!(
            "labels of shape [{batch}] for logits of shape {}",
            logits.shape()
        );
        return Err(Error::shape(OP, expected, labels.shape()).at(here));
    }
    if !logits.dtype().is_float() {
        return Err(Error::dtype(OP, "logits of a float dtype", logits.dtype()).at(here));
    }
    if !labels.dtype().is_integer() {
        return Err(Error::dtype(OP, "labels of an integer dtype", labels.dtype()).at(here));
    }
    let picked = logits.log_softmax(1)?.gather(1, &labels.unsqueeze(1)?);
    let picked = picked.map_err(|error| match error {
        Error::IndexOutOfRange { index, .. } => Error::IndexOutOfRange {
            op: OP,
            index,
            axis: 1,
            size: classes,
            at: here.into(),
        },
        other => other,
    })?;
    picked.mean((), false)?.neg()
}
