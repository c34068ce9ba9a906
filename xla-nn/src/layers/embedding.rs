//! Embedding.

use super::builder::setters;
use crate::{Forward, Module};
use std::panic::Location;
use xla_core::{DType, Error, Result, Shape};
use xla_lazy::{Tensor, TensorOptions, no_grad};

/// A table of vectors, looked up by index.
///
/// `weight` is `[count, features]`, drawn from the standard normal distribution.
#[derive(Debug, Module, Forward)]
pub struct Embedding {
    weight: Tensor,
    padding_idx: Option<usize>,
}

impl Embedding {
    /// A table of `count` vectors of `features` numbers. `options` is a device, a float dtype, both,
    /// or `()`.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for a dtype that is no float; what creating the tensors returns.
    #[track_caller]
    pub fn new(count: usize, features: usize, options: impl Into<TensorOptions>) -> Result<Self> {
        Embedding::builder(count, features).build(options)
    }

    /// What may differ from [`Embedding::new`].
    pub fn builder(count: usize, features: usize) -> EmbeddingBuilder {
        EmbeddingBuilder {
            count,
            features,
            padding_idx: None,
        }
    }

    /// The table, `[count, features]`.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// The vectors of these indices: from `[..]` of an integer dtype to `[.., features]`.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for indices that are no integers; [`Error::IndexOutOfRange`] for one
    /// that is not in `0..count`, where it came from the host.
    #[track_caller]
    pub fn forward(&self, indices: &Tensor) -> Result<Tensor> {
        let rows = self.weight.index_select(0, &indices.reshape([-1])?)?;
        let mut dims = indices.dims().to_vec();
        dims.push(self.weight.dims()[1]);
        let rows = rows.reshape(Shape::new(&dims))?;
        let Some(padding) = self.padding_idx else {
            return Ok(rows);
        };
        // The padding's vector is used but not learnt.
        let padding = indices.eq(padding as i64)?.unsqueeze(-1)?;
        padding.select_from(&rows.detach()?, &rows)
    }
}

/// Makes an [`Embedding`].
#[derive(Debug, Clone)]
pub struct EmbeddingBuilder {
    count: usize,
    features: usize,
    padding_idx: Option<usize>,
}

impl EmbeddingBuilder {
    setters! {
        /// The index that stands for nothing: its vector starts as zeros and takes no gradient.
        padding_idx: Option<usize>,
    }

    /// Draws the table.
    ///
    /// # Errors
    /// As [`Embedding::new`]; [`Error::Argument`] for a padding index beyond the table.
    #[track_caller]
    pub fn build(self, options: impl Into<TensorOptions>) -> Result<Embedding> {
        let here = Location::caller();
        let options = options.into();
        if let Some(index) = self.padding_idx.filter(|i| *i >= self.count) {
            let expected = format!("an index below {}", self.count);
            return Err(Error::argument("Embedding", "padding_idx", expected, index).at(here));
        }
        let dtype = options.dtype().unwrap_or(DType::F32);
        if !dtype.is_float() {
            return Err(Error::dtype("Embedding", "a float dtype", dtype).at(here));
        }
        let weight = Tensor::randn([self.count, self.features], options)?;
        if let Some(index) = self.padding_idx {
            no_grad(|| weight.select(0, index as i64)?.zero_())
                .map_err(|error: Error| error.relocated(here))?;
        }
        Ok(Embedding {
            weight: weight.requires_grad_(true)?,
            padding_idx: self.padding_idx,
        })
    }
}
