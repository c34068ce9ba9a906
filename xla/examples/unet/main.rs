//! A diffusion model of handwritten digits.
//!
//! ```text
//! cargo run --release --example unet
//! cargo run --release --example unet -- --width 64 --depth 3 --steps 5000 --diffusion 1000
//! ```

mod model;

use clap::Parser;
use model::{Config, UNet};
use std::path::PathBuf;
use xla::data::{DataLoader, IdxDataset};
use xla::nn::{Module, functional};
use xla::{Tensor, optim};

/// Trains a network to find noise in digits, and makes one of noise with it.
#[derive(Parser)]
struct Args {
    /// Steps to train for.
    #[arg(long, default_value_t = 60)]
    steps: usize,
    /// Images a step.
    #[arg(long, default_value_t = 32)]
    batch: usize,
    /// Channels at the full resolution: a multiple of 4.
    #[arg(long, default_value_t = 8)]
    width: usize,
    /// Resolutions, of which each has half the sides of the one before; of digits at most 3.
    #[arg(long, default_value_t = 2)]
    depth: usize,
    /// Steps from an image to noise.
    #[arg(long, default_value_t = 50)]
    diffusion: usize,
    /// Learning rate.
    #[arg(long, default_value_t = 2e-3)]
    lr: f64,
    /// Folder with MNIST's gzipped files.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/mnist"))]
    data: PathBuf,
}

/// How much noise there is after each step.
struct Diffusion {
    /// The variance that the step adds.
    added: Vec<f64>,
    /// The share of the image in the variance after it.
    kept: Vec<f64>,
}

impl Diffusion {
    fn new(steps: usize) -> Self {
        // The schedule of Ho et al., who take 1000 steps, over as many as there are.
        let scale = 1000.0 / steps as f64;
        let added: Vec<f64> = (0..steps)
            .map(|i| (scale * (1e-4 + (0.02 - 1e-4) * i as f64 / steps as f64)).min(0.999))
            .collect();
        let kept = added.iter().scan(1.0, |kept, added| {
            *kept *= 1.0 - added;
            Some(*kept)
        });
        Diffusion {
            kept: kept.collect(),
            added,
        }
    }

    /// How well the model finds the noise in images after any number of steps.
    fn loss(&self, model: &UNet, kept: &Tensor, images: &Tensor) -> xla::Result<Tensor> {
        let steps = Tensor::randint(0, self.kept.len() as i64, [images.size(0)?], ())?;
        let kept = kept.index_select(0, &steps)?.reshape([-1, 1, 1, 1])?;
        let noise = images.randn_like()?;
        let noised = (images * kept.sqrt() + (&noise * (1.0 - &kept)?.sqrt())?)?;
        let found = model.forward(&noised, &steps)?;
        functional::mse_loss(&found, &noise, functional::Reduction::Mean)
    }

    /// An image of this shape, from noise.
    fn sample(&self, model: &UNet, shape: [usize; 4]) -> xla::Result<Tensor> {
        let mut image = Tensor::randn(shape, ())?;
        for (step, (added, kept)) in self.added.iter().zip(&self.kept).enumerate().rev() {
            let noise = model.forward(&image, &Tensor::full([1], step, ())?)?;
            let found = (noise * (added / (1.0 - kept).sqrt()))?;
            image = ((image - found)? / (1.0 - added).sqrt())?;
            if step > 0 {
                image = (&image + image.randn_like()? * added.sqrt())?;
            }
            xla::sync()?;
        }
        Ok(image)
    }
}

fn main() -> xla::Result<()> {
    let args = Args::parse();
    xla::manual_seed(1)?;
    let config = Config {
        channels: 1,
        widths: (0..args.depth).map(|i| args.width << i).collect(),
        groups: 4,
        time: 4 * args.width,
    };
    let model = UNet::new(&config, ())?;
    println!("{} parameters", model.num_parameters());

    let diffusion = Diffusion::new(args.diffusion);
    let kept: Vec<f32> = diffusion.kept.iter().map(|kept| *kept as f32).collect();
    let kept = Tensor::from_slice(&kept, kept.len(), ())?;
    let file = |kind: &str| args.data.join(format!("train-{kind}-ubyte.gz"));
    let digits = IdxDataset::open(file("images-idx3"), file("labels-idx1"))?.normalize(0.5, 0.5);
    let loader = DataLoader::new(digits)
        .batch_size(args.batch)
        .shuffle(1)
        .drop_last(true);
    let mut optimizer = optim::Adam::new(model.parameters(), args.lr);
    for (step, batch) in loader.iter().take(args.steps).enumerate() {
        let (images, _) = batch?;
        let loss = diffusion.loss(&model, &kept, &images.unsqueeze(1)?)?;
        loss.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        xla::sync()?;
        if step % 10 == 9 {
            println!("step {:4}  loss {:.4}", step + 1, loss.item::<f32>()?);
        }
    }

    model.eval();
    let image = xla::no_grad(|| diffusion.sample(&model, [1, 1, 28, 28]))?;
    for row in image.to_vec::<f32>()?.chunks(28) {
        let shade = |x: &f32| ['#', '+', '.', ' '][(2.0 - 2.0 * x).clamp(0.0, 3.0) as usize];
        println!("{}", row.iter().map(shade).collect::<String>());
    }
    Ok(())
}
