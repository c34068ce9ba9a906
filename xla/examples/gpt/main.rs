//! A language model of single bytes.
//!
//! ```text
//! cargo run --release --example gpt
//! cargo run --release --example gpt -- --text my.txt --steps 2000 --layers 6 --features 192
//! ```

mod model;

use clap::Parser;
use model::{Config, Gpt};
use std::error::Error;
use std::path::PathBuf;
use xla::nn::utils::clip_grad_norm_;
use xla::nn::{self, Module};
use xla::optim::lr_scheduler::{CosineAnnealingLR, LinearLR, Scheduler, SequentialLR};
use xla::optim::{AdamW, AdamWOptions, ParamGroup};
use xla::{DType, Tensor};

/// Trains a language model on a text and lets it write.
#[derive(Parser)]
struct Args {
    /// Steps to train for.
    #[arg(long, default_value_t = 100)]
    steps: u64,
    /// Steps until the learning rate is at its highest.
    #[arg(long, default_value_t = 10)]
    warmup: u64,
    /// Sequences a step.
    #[arg(long, default_value_t = 16)]
    batch: usize,
    /// Bytes that the model looks back on.
    #[arg(long, default_value_t = 64)]
    context: usize,
    /// Blocks.
    #[arg(long, default_value_t = 2)]
    layers: usize,
    /// Heads of attention.
    #[arg(long, default_value_t = 4)]
    heads: usize,
    /// Features of a byte.
    #[arg(long, default_value_t = 64)]
    features: usize,
    /// Highest learning rate.
    #[arg(long, default_value_t = 3e-3)]
    lr: f64,
    /// Compute blocks again in the backward pass instead of keeping what they computed.
    #[arg(long)]
    checkpoint: bool,
    /// The text to learn from.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/../ARCHITECTURE.md"))]
    text: PathBuf,
}

fn main() -> Result<(), Box<dyn Error>> {
    let args = Args::parse();
    xla::manual_seed(1)?;
    let text = std::fs::read(&args.text)?;
    let text = Tensor::from_slice(&text, text.len(), DType::I64)?;
    let config = Config {
        vocabulary: 256,
        context: args.context,
        layers: args.layers,
        heads: args.heads,
        features: args.features,
        dropout: 0.1,
        checkpoint: args.checkpoint,
    };
    let model = Gpt::new(config, ())?;
    println!("{} parameters", model.num_parameters());

    // Matrices shrink a little at each step; biases and the scales of normalisations do not.
    let (matrices, vectors) = model.parameters().into_iter().partition(|p| p.rank() >= 2);
    let group = |parameters: Vec<Tensor>, weight_decay| {
        let options = AdamWOptions {
            lr: args.lr,
            betas: (0.9, 0.95),
            weight_decay,
            ..Default::default()
        };
        ParamGroup::new(parameters, options)
    };
    let mut optimizer = AdamW::with_groups([group(matrices, 0.1), group(vectors, 0.0)])?;
    let schedule = SequentialLR::new(vec![args.warmup])
        .then(LinearLR {
            start_factor: 0.1,
            total_iters: args.warmup,
            ..Default::default()
        })
        .then(CosineAnnealingLR::new(
            args.steps.saturating_sub(args.warmup),
        ));
    let mut scheduler = Scheduler::new(&mut optimizer, schedule)?;

    for step in 1..=args.steps {
        let (inputs, targets) = batch(&text, &args)?;
        let logits = model.forward(&inputs)?;
        let loss = nn::cross_entropy(&logits.flatten(0, 1)?, &targets.flatten(0, 1)?)?;
        loss.backward()?;
        clip_grad_norm_(&model.parameters(), 1.0, 2.0)?;
        optimizer.step()?;
        optimizer.zero_grad();
        scheduler.step(&mut optimizer)?;
        xla::sync()?;
        if step % 10 == 0 {
            println!("step {step:4}  loss {:.4}", loss.item::<f32>()?);
        }
    }

    model.eval();
    let prompt: Vec<i64> = "A tensor ".bytes().map(i64::from).collect();
    let written = xla::no_grad(|| model.generate(&prompt, 100, 0.8))?;
    let written: Vec<u8> = written.into_iter().map(|token| token as u8).collect();
    println!("{}", String::from_utf8_lossy(&written));
    Ok(())
}

/// Sequences from anywhere in the text, and the same shifted by one: what comes next.
fn batch(text: &Tensor, args: &Args) -> xla::Result<(Tensor, Tensor)> {
    let last = text.numel().saturating_sub(args.context + 1);
    let starts = Tensor::randint(0, last as i64, [args.batch, 1], ())?;
    let inputs = (starts + Tensor::arange(0, args.context, 1, ()))?;
    let targets = (&inputs + 1)?;
    Ok((
        text.index(&[(&inputs).into()])?,
        text.index(&[(&targets).into()])?,
    ))
}
