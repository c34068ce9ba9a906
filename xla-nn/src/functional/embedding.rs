//! Rows of a table.

use super::floating;
use std::panic::Location;
use xla_core::{Error, Result, Shape};
use xla_lazy::{Tensor, no_grad};

/// Arguments of [`embedding`] by PyTorch's names.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EmbeddingOptions {
    /// The row whose gradient is 0; negative from the end.
    pub padding_idx: Option<i64>,
    /// Rows that are looked up and have a larger norm are first scaled down to it, in place.
    pub max_norm: Option<f64>,
    /// The p of that norm.
    pub norm_type: f64,
    /// Whether a row's gradient is divided by how often it was looked up.
    pub scale_grad_by_freq: bool,
}

impl Default for EmbeddingOptions {
    fn default() -> Self {
        EmbeddingOptions {
            padding_idx: None,
            max_norm: None,
            norm_type: 2.0,
            scale_grad_by_freq: false,
        }
    }
}

/// The rows of `weight`, `[rows, ...]`, that `indices` of any shape name: the result has the
/// indices' axes followed by a row's.
///
/// # Errors
/// [`Error::IndexOutOfRange`] for indices that came from the host; [`Error::DTypeMismatch`] for
/// indices that are no integers or a weight that is not floating-point; [`Error::ShapeMismatch`]
/// for a weight without axes; [`Error::Argument`] for a `padding_idx` that is no row.
#[track_caller]
pub fn embedding(weight: &Tensor, indices: &Tensor, options: EmbeddingOptions) -> Result<Tensor> {
    const OP: &str = "embedding";
    let at = Location::caller();
    let Some((&rows, row)) = weight.dims().split_first() else {
        return Err(Error::shape(OP, "a weight of shape [rows, ...]", weight.shape()).at(at));
    };
    floating(OP, "a weight", weight).map_err(|e| e.at(at))?;
    let mut dims = indices.dims().to_vec();
    dims.extend_from_slice(row);
    let named = |error: Error| match error {
        Error::IndexOutOfRange { index, at, .. } => Error::IndexOutOfRange {
            op: OP,
            index,
            axis: 0,
            size: rows,
            at,
        },
        Error::DTypeMismatch {
            expected, got, at, ..
        } => Error::DTypeMismatch {
            op: OP,
            expected,
            got,
            at,
        },
        other => other,
    };
    let flat = indices.reshape([-1])?;
    if let Some(max_norm) = options.max_norm {
        no_grad(|| renormalise(weight, &flat, max_norm, options.norm_type)).map_err(named)?;
    }
    let mut taken = weight.index_select(0, &flat).map_err(named)?;
    let shown = taken.detach()?;
    let mut column = vec![1; taken.rank()];
    column[0] = flat.numel();
    if let Some(padding) = options.padding_idx {
        let size = i64::try_from(rows).unwrap_or(i64::MAX);
        if !(-size..size).contains(&padding) {
            let expected = format!("a row of {rows}");
            return Err(Error::argument(OP, "padding_idx", expected, padding).at(at));
        }
        let hit = flat
            .eq(padding.rem_euclid(size))?
            .reshape(column.as_slice())?;
        taken = hit.select_from(&shown, &taken)?;
    }
    if options.scale_grad_by_freq {
        let one = Tensor::ones(flat.shape(), (weight.dtype(), weight.device()))?;
        let counts = Tensor::zeros([rows], (weight.dtype(), weight.device()))?;
        let counts = counts.index_add(0, &flat.detach()?, &one, None)?;
        let share = counts.index_select(0, &flat)?.reshape(column.as_slice())?;
        // The value stays; what flows back through the quotient is divided.
        let scaled = taken.div(&share)?;
        taken = scaled.add(&shown.sub(&scaled.detach()?)?)?;
    }
    taken.reshape(Shape::new(&dims))
}

/// Scales rows with too large a norm down to it.
fn renormalise(weight: &Tensor, rows: &Tensor, max_norm: f64, p: f64) -> Result<()> {
    let taken = weight.index_select(0, rows)?;
    let flat = taken.reshape([taken.dims()[0] as i64, -1])?;
    let norms = if p.is_infinite() {
        flat.abs()?.amax(1, true)?
    } else {
        flat.abs()?.pow(p)?.sum(1, true)?.pow(1.0 / p)?
    };
    let scale = norms.add(1e-7)?.rdiv(max_norm)?;
    let small = norms.le(max_norm)?;
    let scale = scale.masked_fill(&small, 1)?;
    let scaled = flat.mul(&scale)?.reshape(taken.shape())?;
    weight.index_copy_(0, rows, &scaled).map(drop)
}
