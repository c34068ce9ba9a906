//! Lists of tensors, one for each member, as one tensor.

use super::separate::separate;
use xla_core::{Error, Result};
use xla_lazy::Tensor;

/// Checks that there are `count` tensors.
pub(super) fn check_count(op: &'static str, tensors: &[&Tensor], count: usize) -> Result<()> {
    if tensors.len() == count {
        return Ok(());
    }
    let expected = format!("{count}, one for each member of the group");
    Err(Error::argument(op, "tensors", expected, tensors.len()))
}

/// Checks that all tensors have the dtype of the first.
pub(super) fn check_dtypes(op: &'static str, tensors: &[&Tensor]) -> Result<()> {
    let Some((first, others)) = tensors.split_first() else {
        return Ok(());
    };
    match others.iter().find(|t| t.dtype() != first.dtype()) {
        None => Ok(()),
        Some(other) => {
            let expected = format!("{} as of the first tensor", first.dtype());
            Err(Error::dtype(op, expected, other.dtype()))
        }
    }
}

/// The tensors along a new first axis: `count` of one type.
pub(super) fn stacked(op: &'static str, tensors: &[&Tensor], count: usize) -> Result<Tensor> {
    check_count(op, tensors, count)?;
    check_dtypes(op, tensors)?;
    let mut parts = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        if tensor.shape() != tensors[0].shape() {
            let expected = format!("{} as of the first tensor", tensors[0].shape());
            return Err(Error::shape(op, expected, tensor.shape()));
        }
        parts.push(separate(tensor)?);
    }
    Tensor::stack(&parts.iter().collect::<Vec<_>>(), 0).map_err(|e| e.named(op))
}
