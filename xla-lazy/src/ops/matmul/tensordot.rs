//! Sums of products over pairs of axes.

use super::{Labelled, contract, same_dtype};
use crate::Tensor;
use crate::autocast::lower;
use std::panic::Location;
use xla_core::{Axes, Error, IntoAxes, Result};

impl Tensor {
    /// The sum of products over pairs of axes, the first of `dims` with the first of `other_dims` and
    /// so on; the result has the remaining axes of this tensor, then those of the other.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] for lists of different lengths or an axis named twice;
    /// [`Error::ShapeMismatch`] when a pair differs in length, [`Error::DTypeMismatch`].
    #[track_caller]
    pub fn tensordot(
        &self,
        other: &Tensor,
        dims: impl IntoAxes,
        other_dims: impl IntoAxes,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let (lowered, other) = (lower(self)?, &*lower(other)?);
        lowered.contracted(other, dims.into_axes(), other_dims.into_axes(), at)
    }

    fn contracted(
        &self,
        other: &Tensor,
        dims: Axes,
        other_dims: Axes,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        const OP: &str = "tensordot";
        let mine = paired(OP, self, dims).map_err(|e| e.at(at))?;
        let theirs = paired(OP, other, other_dims).map_err(|e| e.at(at))?;
        if mine.len() != theirs.len() {
            let expected = format!("{} axes, as many as dims", mine.len());
            return Err(Error::argument(OP, "other_dims", expected, theirs.len()).at(at));
        }
        same_dtype(OP, self, other).map_err(|e| e.at(at))?;
        for (&i, &j) in mine.iter().zip(&theirs) {
            let (size, other_size) = (self.dims()[i], other.dims()[j]);
            if size != other_size {
                let expected =
                    format!("axis {i} as long as axis {j}: {size} equal to {other_size}");
                let got = format!("{} x {}", self.shape(), other.shape());
                return Err(Error::shape(OP, expected, got).at(at));
            }
        }
        let labels: Vec<usize> = (0..self.rank()).collect();
        let other_labels: Vec<usize> = (0..other.rank())
            .map(|j| match theirs.iter().position(|&t| t == j) {
                Some(pair) => mine[pair],
                None => self.rank() + j,
            })
            .collect();
        let out: Vec<usize> = labels
            .iter()
            .filter(|l| !mine.contains(l))
            .chain(other_labels.iter().filter(|&&l| l >= self.rank()))
            .copied()
            .collect();
        let named = |tensor: &Tensor, labels| Labelled {
            tensor: tensor.clone(),
            labels,
        };
        Ok(contract(named(self, labels), named(other, other_labels), &out)?.tensor)
    }
}

/// The axes as positions in the order given, which is that of their pairing.
fn paired(op: &'static str, x: &Tensor, axes: Axes) -> Result<Vec<usize>> {
    let sorted = axes.resolve(op, x.rank())?;
    match axes {
        Axes::All => Ok(sorted.to_vec()),
        Axes::List(list) => list.iter().map(|&d| x.shape().axis(op, d)).collect(),
    }
}
