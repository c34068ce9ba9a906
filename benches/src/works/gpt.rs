//! Four pre-norm transformer blocks of width 256 with 8 heads, learned positions and an untied head
//! on sequences of 128 bytes; AdamW at 3e-4, batches of 8.

use super::{Step, labels, training};
use xla::nn::functional::{AttentionOptions, layer_norm, scaled_dot_product_attention};
use xla::nn::{Linear, Module, cross_entropy};
use xla::spmd::{self, Mesh};
use xla::{GeluApproximation, Result, Tensor, optim};

const WIDTH: usize = 256;
const HEADS: usize = 8;
const BLOCKS: usize = 4;
const LENGTH: usize = 128;
const VOCABULARY: usize = 256;
const BATCH: usize = 8;

#[derive(Module)]
struct Norm {
    weight: Tensor,
    bias: Tensor,
}

impl Norm {
    fn new() -> Result<Self> {
        Ok(Norm {
            weight: Tensor::ones([WIDTH], ())?.requires_grad_(true)?,
            bias: Tensor::zeros([WIDTH], ())?.requires_grad_(true)?,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        layer_norm(x, [WIDTH], Some(&self.weight), Some(&self.bias), 1e-5)
    }
}

#[derive(Module)]
struct Block {
    ln1: Norm,
    ln2: Norm,
    qkv: Linear,
    proj: Linear,
    fc: Linear,
    out: Linear,
}

impl Block {
    fn new() -> Result<Self> {
        Ok(Block {
            ln1: Norm::new()?,
            ln2: Norm::new()?,
            qkv: Linear::new(WIDTH, 3 * WIDTH, ())?,
            proj: Linear::new(WIDTH, WIDTH, ())?,
            fc: Linear::new(WIDTH, 4 * WIDTH, ())?,
            out: Linear::new(4 * WIDTH, WIDTH, ())?,
        })
    }

    fn forward(&self, h: &Tensor) -> Result<Tensor> {
        let qkv = self
            .qkv
            .forward(&self.ln1.forward(h)?)?
            .reshape([BATCH, LENGTH, 3, HEADS, WIDTH / HEADS])?
            .permute([2, 0, 3, 1, 4])?;
        let parts = qkv.unbind(0)?;
        let [q, k, v] = [&parts[0], &parts[1], &parts[2]];
        let options = AttentionOptions {
            is_causal: true,
            ..Default::default()
        };
        let attended = scaled_dot_product_attention(q, k, v, options)?
            .transpose(1, 2)?
            .reshape([BATCH, LENGTH, WIDTH])?;
        let h = h.add(&self.proj.forward(&attended)?)?;
        let wide = self.fc.forward(&self.ln2.forward(&h)?)?;
        h.add(&self.out.forward(&wide.gelu(GeluApproximation::Tanh)?)?)
    }
}

#[derive(Module)]
struct Gpt {
    tok: Tensor,
    pos: Tensor,
    blocks: Vec<Block>,
    ln: Norm,
    head: Linear,
}

impl Gpt {
    fn new() -> Result<Self> {
        Ok(Gpt {
            tok: Tensor::randn([VOCABULARY, WIDTH], ())?.requires_grad_(true)?,
            pos: Tensor::randn([LENGTH, WIDTH], ())?.requires_grad_(true)?,
            blocks: (0..BLOCKS).map(|_| Block::new()).collect::<Result<_>>()?,
            ln: Norm::new()?,
            head: Linear::without_bias(WIDTH, VOCABULARY, ())?,
        })
    }

    fn forward(&self, tokens: &Tensor) -> Result<Tensor> {
        let mut h = self
            .tok
            .index_select(0, tokens)?
            .reshape([BATCH, LENGTH, WIDTH])?
            .add(&self.pos)?;
        for block in &self.blocks {
            h = block.forward(&h)?;
        }
        self.head.forward(&self.ln.forward(&h)?)?.flatten(0, 1)
    }
}

pub(super) fn step() -> Result<Step> {
    trained(|_| Ok(()))
}

/// The same step over 4 devices, two of the batch's sequences on each.
pub(super) fn partitioned_step() -> Result<Step> {
    let mesh = Mesh::new(&[0, 1, 2, 3], &[4], &["data"])?;
    spmd::enable(&mesh)?;
    trained(|batch| spmd::mark_sharding(batch, &mesh, "data"))
}

/// Training on one batch, after `place` of its tensors.
fn trained(place: impl Fn(&Tensor) -> Result<()>) -> Result<Step> {
    let model = Gpt::new()?;
    let x = labels(BATCH * LENGTH, VOCABULARY)?;
    let y = labels(BATCH * LENGTH, VOCABULARY)?;
    place(&x)?;
    place(&y)?;
    let optimizer = optim::AdamW::new(model.parameters(), 3e-4);
    training(optimizer, move || cross_entropy(&model.forward(&x)?, &y))
}
