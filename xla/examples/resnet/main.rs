//! A residual network for handwritten digits.
//!
//! ```text
//! cargo run --release --example resnet
//! cargo run --release --example resnet -- --width 64 --steps 500
//! ```
//!
//! With `--width 64` it is ResNet-18.

mod model;

use clap::Parser;
use model::{Config, ResNet};
use std::path::PathBuf;
use xla::data::{DataLoader, IdxDataset};
use xla::nn::{self, Module};
use xla::{Tensor, optim};

/// Trains a residual network on handwritten digits.
#[derive(Parser)]
struct Args {
    /// Steps to train for.
    #[arg(long, default_value_t = 40)]
    steps: usize,
    /// Images a step.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Channels of the first stage.
    #[arg(long, default_value_t = 8)]
    width: usize,
    /// Learning rate.
    #[arg(long, default_value_t = 0.05)]
    lr: f64,
    /// Folder with MNIST's gzipped files.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/mnist"))]
    data: PathBuf,
}

fn main() -> xla::Result<()> {
    let args = Args::parse();
    xla::manual_seed(1)?;
    let config = Config {
        channels: 1,
        width: args.width,
        blocks: [2, 2, 2, 2],
        classes: 10,
    };
    let model = ResNet::new(config, xla::device()?)?;
    println!("{} parameters", model.num_parameters());

    let mut optimizer = optim::Sgd::new(model.parameters(), args.lr)
        .momentum(0.9)
        .nesterov(true)
        .weight_decay(5e-4);
    let train = loader(&args, "train")?.shuffle(1).drop_last(true);
    for (step, batch) in train.iter().take(args.steps).enumerate() {
        let (images, labels) = batch?;
        let logits = model.forward(&images.unsqueeze(1)?)?;
        let loss = nn::cross_entropy(&logits, &labels)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        xla::sync()?;
        // Reading a value waits for the device: not at every step.
        if step % 10 == 9 {
            println!("step {:4}  loss {:.4}", step + 1, loss.item::<f32>()?);
        }
    }
    println!("test accuracy {:.1} %", 100.0 * accuracy(&model, &args)?);
    Ok(())
}

/// The share of the first thousand or so test images that the model names correctly.
fn accuracy(model: &ResNet, args: &Args) -> xla::Result<f64> {
    model.eval();
    let test = loader(args, "t10k")?;
    let batches = 1000_usize.div_ceil(args.batch);
    xla::no_grad(|| {
        let correct = Tensor::scalar(0, ())?;
        for batch in test.iter().take(batches) {
            let (images, labels) = batch?;
            let logits = model.forward(&images.unsqueeze(1)?)?;
            let named = logits.argmax(Some(1), false)?;
            correct.add_(&named.eq(&labels)?.sum((), false)?)?;
            xla::sync()?;
        }
        Ok(correct.item::<i64>()? as f64 / (batches * args.batch) as f64)
    })
}

fn loader(args: &Args, part: &str) -> xla::Result<DataLoader> {
    let file = |kind: &str| args.data.join(format!("{part}-{kind}-ubyte.gz"));
    let digits = IdxDataset::open(file("images-idx3"), file("labels-idx1"))?;
    Ok(DataLoader::new(digits.normalize(0.1307, 0.3081)).batch_size(args.batch))
}
