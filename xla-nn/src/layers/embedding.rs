//! Embedding.

use super::builder::{optional, setters};
use crate::functional::{self, EmbeddingOptions};
use crate::{Forward, Module};
use std::panic::Location;
use xla_core::{DType, Error, Result};
use xla_lazy::{Tensor, TensorOptions, no_grad};

/// A table of vectors, looked up by index.
///
/// `weight` is `[count, features]`, drawn from the standard normal distribution.
#[derive(Debug, Module, Forward)]
pub struct Embedding {
    weight: Tensor,
    padding_idx: Option<usize>,
    max_norm: Option<f64>,
    norm_type: f64,
    scale_grad_by_freq: bool,
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
            max_norm: None,
            norm_type: 2.0,
            scale_grad_by_freq: false,
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
        let options = EmbeddingOptions {
            padding_idx: self.padding_idx.map(|index| index as i64),
            max_norm: self.max_norm,
            norm_type: self.norm_type,
            scale_grad_by_freq: self.scale_grad_by_freq,
        };
        functional::embedding(&self.weight, indices, options)
    }
}

/// Makes an [`Embedding`].
#[derive(Debug, Clone)]
pub struct EmbeddingBuilder {
    count: usize,
    features: usize,
    padding_idx: Option<usize>,
    max_norm: Option<f64>,
    norm_type: f64,
    scale_grad_by_freq: bool,
}

impl EmbeddingBuilder {
    setters! {
        /// The p of that norm: 2 unless set.
        norm_type: f64,
        /// Whether a vector's gradient is divided by how often it was looked up: false unless set.
        scale_grad_by_freq: bool,
    }

    optional! {
        /// The index that stands for nothing: its vector starts as zeros and takes no gradient.
        padding_idx: usize,
        /// The norm that a vector is scaled down to when it is looked up: none unless set.
        max_norm: f64,
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
            max_norm: self.max_norm,
            norm_type: self.norm_type,
            scale_grad_by_freq: self.scale_grad_by_freq,
        })
    }
}
