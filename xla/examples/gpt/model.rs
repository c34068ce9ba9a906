//! A decoder-only transformer ([Radford et al. 2019](https://openai.com/index/better-language-models/)):
//! normalisation before attention and perceptron, and a head that shares the table of embeddings.

use std::sync::Arc;
use xla::nn::functional::{self, AttentionOptions};
use xla::nn::{Dropout, Embedding, Forward, LayerNorm, Linear, Module, Training, init};
use xla::{GeluApproximation, Result, Tensor, TensorOptions};

/// The model's sizes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    /// Different tokens.
    pub(crate) vocabulary: usize,
    /// Tokens that the model looks back on, at most.
    pub(crate) context: usize,
    /// Blocks.
    pub(crate) layers: usize,
    /// Heads of attention in each block.
    pub(crate) heads: usize,
    /// Features of a token: a multiple of the heads.
    pub(crate) features: usize,
    /// Probability with which a value is dropped in training.
    pub(crate) dropout: f64,
    /// Whether blocks are computed again in the backward pass, which saves memory.
    pub(crate) checkpoint: bool,
}

/// Attention of each token to those before it and itself.
#[derive(Debug, Module, Forward)]
struct Attention {
    qkv: Linear,
    proj: Linear,
    heads: usize,
    dropout: f64,
    training: Training,
}

impl Attention {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let (batch, length, features) = (x.size(0)?, x.size(1)?, x.size(2)?);
        let qkv = self
            .qkv
            .forward(x)?
            .reshape([batch, length, 3, self.heads, features / self.heads])?
            .permute([2, 0, 3, 1, 4])?;
        let dropout = if self.training.get() {
            self.dropout
        } else {
            0.0
        };
        let options = AttentionOptions {
            is_causal: true,
            dropout_p: dropout,
            ..Default::default()
        };
        let [q, k, v] = [qkv.select(0, 0)?, qkv.select(0, 1)?, qkv.select(0, 2)?];
        let y = functional::scaled_dot_product_attention(&q, &k, &v, options)?;
        self.proj
            .forward(&y.transpose(1, 2)?.reshape([batch, length, features])?)
    }
}

/// Attention, then a perceptron for each token; both are added to what they are given.
#[derive(Debug, Module, Forward)]
struct Block {
    ln_1: LayerNorm,
    attn: Attention,
    ln_2: LayerNorm,
    fc: Linear,
    proj: Linear,
    dropout: Dropout,
}

impl Block {
    fn new(config: Config, options: TensorOptions) -> Result<Self> {
        let features = config.features;
        Ok(Block {
            ln_1: LayerNorm::new(features, options)?,
            attn: Attention {
                qkv: Linear::new(features, 3 * features, options)?,
                proj: Linear::new(features, features, options)?,
                heads: config.heads,
                dropout: config.dropout,
                training: Training::new(),
            },
            ln_2: LayerNorm::new(features, options)?,
            fc: Linear::new(features, 4 * features, options)?,
            proj: Linear::new(4 * features, features, options)?,
            dropout: Dropout::new(config.dropout),
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let attended = self.attn.forward(&self.ln_1.forward(x)?)?;
        let x = (x + self.dropout.forward(&attended))?;
        let hidden = self.fc.forward(&self.ln_2.forward(&x)?)?;
        let mixed = self.proj.forward(&hidden.gelu(GeluApproximation::None)?)?;
        x + self.dropout.forward(&mixed)
    }
}

/// A language model.
#[derive(Debug, Module, Forward)]
pub(crate) struct Gpt {
    wte: Embedding,
    wpe: Embedding,
    dropout: Dropout,
    h: Vec<Arc<Block>>,
    ln_f: LayerNorm,
    lm_head: Linear,
    context: usize,
    checkpoint: bool,
}

impl Gpt {
    /// With GPT-2's initial values.
    pub(crate) fn new(config: Config, options: impl Into<TensorOptions>) -> Result<Self> {
        let options = options.into();
        let wte = Embedding::new(config.vocabulary, config.features, options)?;
        let model = Gpt {
            wpe: Embedding::new(config.context, config.features, options)?,
            dropout: Dropout::new(config.dropout),
            h: (0..config.layers)
                .map(|_| Block::new(config, options).map(Arc::new))
                .collect::<Result<_>>()?,
            ln_f: LayerNorm::new(config.features, options)?,
            lm_head: Linear::from_parameters(wte.weight(), None)?,
            wte,
            context: config.context,
            checkpoint: config.checkpoint,
        };
        for (name, parameter) in model.named_parameters() {
            // What is added to the residual stream is smaller the more there is of it.
            let std = match name.ends_with("proj.weight") {
                true => 0.02 / (2.0 * config.layers as f64).sqrt(),
                false => 0.02,
            };
            match parameter.rank() {
                2 => init::normal_(&parameter, 0.0, std)?,
                _ if name.ends_with("bias") => init::zeros_(&parameter)?,
                _ => parameter,
            };
        }
        Ok(model)
    }

    /// From tokens, `[batch, length]`, to the logits of what comes after each, `[batch, length,
    /// vocabulary]`.
    pub(crate) fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let positions = Tensor::arange(0, tokens.size(1)?, 1, tokens.device())?;
        let x = (self.wte.forward(tokens)? + self.wpe.forward(&positions))?;
        let mut x = self.dropout.forward(&x)?;
        for block in &self.h {
            x = match self.checkpoint {
                true => {
                    let block = Arc::clone(block);
                    xla::checkpoint(move |x| block.forward(&x[0]), &[&x])?
                }
                false => block.forward(&x)?,
            };
        }
        self.lm_head.forward(&self.ln_f.forward(&x)?)
    }

    /// `prompt`, which must not be empty, and so many more tokens, each drawn from what the model
    /// expects after those before it.
    pub(crate) fn generate(
        &self,
        prompt: &[i64],
        count: usize,
        temperature: f64,
    ) -> Result<Vec<i64>> {
        let device = self.wte.weight().device();
        let mut tokens = prompt.to_vec();
        for _ in 0..count {
            // The window always has the same length, so that there is one program: what comes after
            // the last token is not seen by it.
            let seen = &tokens[tokens.len().saturating_sub(self.context)..];
            let mut window = seen.to_vec();
            window.resize(self.context, 0);
            let window = Tensor::from_vec(window, [1, self.context], device)?;
            let logits = self.forward(&window)?.select(1, seen.len() as i64 - 1)?;
            let probabilities = (logits / temperature)?.softmax(-1)?;
            tokens.push(probabilities.multinomial(1, false)?.item()?);
        }
        Ok(tokens)
    }
}
