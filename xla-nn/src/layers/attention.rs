//! Multi-head attention.

use super::at_users_line;
use super::builder::{optional, setters};
use crate::functional::{self, AttentionOptions};
use crate::{Linear, Module, Training, init};
use std::panic::Location;
use xla_core::{DType, Error, Result};
use xla_lazy::{Tensor, TensorOptions};

/// Attention with several heads ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)).
///
/// Names and initial values are PyTorch's: `in_proj_weight` (or `q_proj_weight`, `k_proj_weight`,
/// `v_proj_weight` where keys or values have other sizes), `in_proj_bias`, `out_proj.weight`,
/// `out_proj.bias`.
///
/// ```no_run
/// use xla_lazy::Tensor;
/// use xla_nn::{MultiheadAttention, MultiheadAttentionOptions};
/// let attention = MultiheadAttention::builder(64, 8).batch_first(true).build(())?;
/// let x = Tensor::zeros([4, 10, 64], ())?;
/// let (y, weights) = attention.forward(&x, &x, &x, MultiheadAttentionOptions::default())?;
/// assert_eq!(y.dims(), [4, 10, 64]);
/// assert_eq!(weights.map(|w| w.dims()), Some(&[4, 10, 10][..]));
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Module)]
pub struct MultiheadAttention {
    in_proj_weight: Option<Tensor>,
    q_proj_weight: Option<Tensor>,
    k_proj_weight: Option<Tensor>,
    v_proj_weight: Option<Tensor>,
    in_proj_bias: Option<Tensor>,
    out_proj: Linear,
    embed_dim: usize,
    num_heads: usize,
    dropout: f64,
    batch_first: bool,
    training: Training,
}

/// The arguments of [`MultiheadAttention::forward`] besides the tensors, with PyTorch's defaults.
#[derive(Debug, Clone, Copy)]
pub struct MultiheadAttentionOptions<'a> {
    /// `[batch, keys]` (or `[keys]` without a batch): of `bool`, true for keys that are not seen, or
    /// of floats, which are added to the scores.
    pub key_padding_mask: Option<&'a Tensor>,
    /// Whether the weights are returned. Without, a faster way may be taken.
    pub need_weights: bool,
    /// `[queries, keys]` or `[batch · heads, queries, keys]`: of `bool`, true where a key is not
    /// seen, or of floats, which are added to the scores.
    pub attn_mask: Option<&'a Tensor>,
    /// Whether the weights that are returned are averaged over the heads.
    pub average_attn_weights: bool,
}

impl Default for MultiheadAttentionOptions<'_> {
    fn default() -> Self {
        MultiheadAttentionOptions {
            key_padding_mask: None,
            need_weights: true,
            attn_mask: None,
            average_attn_weights: true,
        }
    }
}

/// Makes a [`MultiheadAttention`].
#[derive(Debug, Clone)]
pub struct MultiheadAttentionBuilder {
    embed_dim: usize,
    num_heads: usize,
    dropout: f64,
    bias: bool,
    kdim: Option<usize>,
    vdim: Option<usize>,
    batch_first: bool,
}

impl MultiheadAttentionBuilder {
    setters! {
        /// The probability with which a weight is dropped in training: 0 unless set.
        dropout: f64,
        /// Whether the projections have biases: true unless set.
        bias: bool,
        /// Whether inputs are `[batch, length, features]`: false unless set, which means
        /// `[length, batch, features]`.
        batch_first: bool,
    }

    optional! {
        /// The features of keys: those of queries unless set.
        kdim: usize,
        /// The features of values: those of queries unless set.
        vdim: usize,
    }

    /// Draws the parameters.
    ///
    /// # Errors
    /// As [`MultiheadAttention::new`].
    #[track_caller]
    pub fn build(self, options: impl Into<TensorOptions>) -> Result<MultiheadAttention> {
        let here = Location::caller();
        self.draw(options.into(), here)
            .map_err(|error| at_users_line(error, here))
    }

    fn draw(
        &self,
        options: TensorOptions,
        here: &'static Location<'static>,
    ) -> Result<MultiheadAttention> {
        const OP: &str = "MultiheadAttention";
        let (features, heads) = (self.embed_dim, self.num_heads);
        if heads == 0 || features == 0 || !features.is_multiple_of(heads) {
            let expected = format!("a divisor of embed_dim, {features}");
            return Err(Error::argument(OP, "num_heads", expected, heads).at(here));
        }
        if !(0.0..=1.0).contains(&self.dropout) {
            return Err(Error::argument(OP, "dropout", "a probability", self.dropout).at(here));
        }
        // Glorot's bound for a matrix of this shape.
        let draw = |rows: usize, columns: usize| -> Result<Tensor> {
            let bound = (6.0 / (rows as f64 + columns as f64)).sqrt();
            init::uniform([rows, columns], -bound, bound, options)?.requires_grad_(true)
        };
        let (kdim, vdim) = (self.kdim.unwrap_or(features), self.vdim.unwrap_or(features));
        let alike = kdim == features && vdim == features;
        let joined = alike.then(|| draw(3 * features, features)).transpose()?;
        let one = |columns: usize| (!alike).then(|| draw(features, columns)).transpose();
        let (q, k, v) = (one(features)?, one(kdim)?, one(vdim)?);
        let out_proj = Linear::builder(features, features)
            .bias(self.bias)
            .build(options)?;
        if let Some(bias) = out_proj.bias() {
            bias.set_data(&bias.zeros_like()?)?;
        }
        let in_proj_bias = match self.bias {
            true => Some(Tensor::zeros([3 * features], options)?.requires_grad_(true)?),
            false => None,
        };
        Ok(MultiheadAttention {
            in_proj_weight: joined,
            q_proj_weight: q,
            k_proj_weight: k,
            v_proj_weight: v,
            in_proj_bias,
            out_proj,
            embed_dim: features,
            num_heads: heads,
            dropout: self.dropout,
            batch_first: self.batch_first,
            training: Training::new(),
        })
    }
}

impl MultiheadAttention {
    /// Of `embed_dim` features in `num_heads` heads, over inputs of shape
    /// `[length, batch, features]`. `options` is a device, a float dtype, both, or `()`.
    ///
    /// # Errors
    /// [`Error::Argument`] when the heads do not divide the features; [`Error::DTypeMismatch`] for a
    /// dtype that is no float; what creating the tensors returns.
    #[track_caller]
    pub fn new(
        embed_dim: usize,
        num_heads: usize,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        MultiheadAttention::builder(embed_dim, num_heads).build(options)
    }

    /// What may differ from [`MultiheadAttention::new`].
    pub fn builder(embed_dim: usize, num_heads: usize) -> MultiheadAttentionBuilder {
        MultiheadAttentionBuilder {
            embed_dim,
            num_heads,
            dropout: 0.0,
            bias: true,
            kdim: None,
            vdim: None,
            batch_first: false,
        }
    }

    /// What the queries find: a tensor of the query's shape and, if they are asked for, the weights:
    /// `[batch, queries, keys]`, or `[batch, heads, queries, keys]` if they are not averaged. Inputs
    /// may all lack the batch axis, then results do too.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the shapes do not fit the layer or each other,
    /// [`Error::DTypeMismatch`] for a mask that is neither `bool` nor of floats.
    #[track_caller]
    pub fn forward(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: MultiheadAttentionOptions<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let here = Location::caller();
        self.attend(query, key, value, options)
            .map_err(|error| at_users_line(error, here))
    }

    #[track_caller]
    fn attend(
        &self,
        query: &Tensor,
        key: &Tensor,
        value: &Tensor,
        options: MultiheadAttentionOptions<'_>,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let batched = query.rank() == 3;
        let [q, k, v] = self.inputs(query, key, value)?;
        let (batch, queries, keys) = (q.dims()[0], q.dims()[1], k.dims()[1]);
        let mask = self.mask(&options, [batch, queries, keys], batched, query.dtype())?;
        let dropout = if self.training.get() {
            self.dropout
        } else {
            0.0
        };
        let [q, k, v] = self.project([&q, &k, &v])?;
        let (mixed, weights) = if options.need_weights {
            let scale = 1.0 / (q.dims()[3] as f64).sqrt();
            let mut scores = q.mul(scale)?.matmul(&k.transpose(-2, -1)?)?;
            if let Some(mask) = &mask {
                scores = scores.add(mask)?;
            }
            let mut weights = scores.softmax(-1)?;
            if dropout > 0.0 {
                weights = functional::dropout(&weights, dropout, true)?;
            }
            (weights.matmul(&v)?, Some(weights))
        } else {
            let options = AttentionOptions {
                attn_mask: mask.as_ref(),
                dropout_p: dropout,
                ..AttentionOptions::default()
            };
            let mixed = functional::scaled_dot_product_attention(&q, &k, &v, options)?;
            (mixed, None)
        };
        // From [batch, heads, queries, size] back to the query's shape.
        let dims = [batch, queries, self.embed_dim];
        let joined = mixed.transpose(1, 2)?.reshape(dims)?;
        let output = self.out_proj.forward(&joined)?;
        let output = match (batched, self.batch_first) {
            (false, _) => output.squeeze(0)?,
            (true, true) => output,
            (true, false) => output.transpose(0, 1)?,
        };
        let weights = match weights {
            Some(weights) => {
                let weights = match options.average_attn_weights {
                    true => weights.mean(1, false)?,
                    false => weights,
                };
                Some(if batched {
                    weights
                } else {
                    weights.squeeze(0)?
                })
            }
            None => None,
        };
        Ok((output, weights))
    }

    /// The inputs as `[batch, length, features]`.
    #[track_caller]
    fn inputs(&self, query: &Tensor, key: &Tensor, value: &Tensor) -> Result<[Tensor; 3]> {
        let here = Location::caller();
        let features = [
            &self.q_proj_weight,
            &self.k_proj_weight,
            &self.v_proj_weight,
        ]
        .map(|own| own.as_ref().map_or(self.embed_dim, |w| w.dims()[1]));
        let rank = query.rank();
        let mut inputs = Vec::with_capacity(3);
        for ((name, input), features) in [("query", query), ("key", key), ("value", value)]
            .into_iter()
            .zip(features)
        {
            let fits = matches!(rank, 2 | 3)
                && input.rank() == rank
                && input.dims().last() == Some(&features);
            if !fits {
                let axes = match (rank, self.batch_first) {
                    (2, _) => "length",
                    (_, true) => "batch, length",
                    (_, false) => "length, batch",
                };
                let expected = format!("a {name} of shape [{axes}, {features}]");
                return Err(Error::shape("multi_head_attention", expected, input.shape()).at(here));
            }
            inputs.push(match (rank, self.batch_first) {
                (2, _) => input.unsqueeze(0)?,
                (_, true) => input.clone(),
                (_, false) => input.transpose(0, 1)?,
            });
        }
        let shape = |i: usize| &inputs[i].dims()[..2];
        if shape(1) != shape(2) || shape(0)[0] != shape(1)[0] {
            let expected = "as many values as keys, and one batch size";
            let got = format!("{}, {} and {}", query.shape(), key.shape(), value.shape());
            return Err(Error::shape("multi_head_attention", expected, got).at(here));
        }
        inputs.try_into().map_err(|_| Error::Internal {
            what: "multi_head_attention",
            expected: "three inputs".into(),
        })
    }

    /// Queries, keys and values as `[batch, heads, length, size]`.
    #[track_caller]
    fn project(&self, inputs: [&Tensor; 3]) -> Result<[Tensor; 3]> {
        let part = |joined: &Tensor, i: usize| {
            joined.narrow(0, (i * self.embed_dim) as i64, self.embed_dim)
        };
        let own = [
            &self.q_proj_weight,
            &self.k_proj_weight,
            &self.v_proj_weight,
        ];
        let project = |i: usize| -> Result<Tensor> {
            let weight = match (&self.in_proj_weight, own[i]) {
                (Some(joined), _) => part(joined, i)?,
                (None, Some(own)) => own.clone(),
                (None, None) => {
                    return Err(Error::Internal {
                        what: "multi_head_attention",
                        expected: "a weight for each projection".into(),
                    });
                }
            };
            let bias = self.in_proj_bias.as_ref().map(|b| part(b, i)).transpose()?;
            let [batch, length, _] = *inputs[i].dims() else {
                return Err(Error::shape(
                    "multi_head_attention",
                    "three axes",
                    inputs[i].shape(),
                ));
            };
            let size = self.embed_dim / self.num_heads;
            functional::linear(inputs[i], &weight, bias.as_ref())?
                .reshape([batch, length, self.num_heads, size])?
                .transpose(1, 2)
        };
        Ok([project(0)?, project(1)?, project(2)?])
    }

    /// What is added to the scores, to be broadcast to `[batch, heads, queries, keys]`.
    #[track_caller]
    fn mask(
        &self,
        options: &MultiheadAttentionOptions<'_>,
        [batch, queries, keys]: [usize; 3],
        batched: bool,
        dtype: DType,
    ) -> Result<Option<Tensor>> {
        const OP: &str = "multi_head_attention";
        let here = Location::caller();
        let additive = |mask: &Tensor| -> Result<Tensor> {
            match mask.dtype() {
                DType::Bool => {
                    let zeros = Tensor::zeros(mask.shape(), (dtype, mask.device()))?;
                    mask.select_from(f64::NEG_INFINITY, &zeros)
                }
                d if d.is_float() => mask.to_dtype(dtype),
                d => Err(Error::dtype(OP, "a mask of bool or floats", d).at(here)),
            }
        };
        let scores = match options.attn_mask {
            None => None,
            Some(mask) if mask.dims() == [queries, keys] => {
                Some(additive(mask)?.reshape([1, 1, queries, keys])?)
            }
            Some(mask) if mask.dims() == [batch * self.num_heads, queries, keys] => {
                Some(additive(mask)?.reshape([batch, self.num_heads, queries, keys])?)
            }
            Some(mask) => {
                let expected = format!(
                    "an attn_mask of shape [{queries}, {keys}] or [{}, {queries}, {keys}]",
                    batch * self.num_heads
                );
                return Err(Error::shape(OP, expected, mask.shape()).at(here));
            }
        };
        let wanted: &[usize] = if batched { &[batch, keys] } else { &[keys] };
        let padding = match options.key_padding_mask {
            None => None,
            Some(mask) if mask.dims() == wanted => {
                Some(additive(mask)?.reshape([batch, 1, 1, keys])?)
            }
            Some(mask) => {
                let expected = format!("a key_padding_mask of shape {wanted:?}");
                return Err(Error::shape(OP, expected, mask.shape()).at(here));
            }
        };
        match (scores, padding) {
            (Some(scores), Some(padding)) => scores.add(&padding).map(Some),
            (scores, padding) => Ok(scores.or(padding)),
        }
    }
}
