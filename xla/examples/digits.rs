//! Handwritten digits: a multilayer perceptron trained by every device at once.
//!
//! ```text
//! CPU_NUM_DEVICES=4 cargo run --release --example digits
//! XLA_LAUNCH_MODE=debug cargo run --release --example digits -- --epochs 3
//! XLA_LAUNCH_PROCESSES=2 cargo run --release --features gloo --example digits
//! torchrun --no-python --nproc-per-node 2 target/release/examples/digits
//! ```
//!
//! Each replica takes an equal part of every batch, so neither the number of devices nor how they
//! are divided among processes changes the batches, or the model that comes out beyond rounding.

use clap::Parser;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;
use xla::data::{DataLoader, Dataset, IdxDataset, Sample};
use xla::metrics::Scope;
use xla::nn::Forward;
use xla::{Literal, Tensor, dist, nn, optim};

/// Trains a digit classifier and tests it.
#[derive(Parser)]
struct Args {
    /// Passes over the training images.
    #[arg(long, default_value_t = 10)]
    epochs: u64,
    /// Train on so many images an epoch, others in each; all of them unless given.
    #[arg(long)]
    train_limit: Option<usize>,
    /// Images a step, over all devices.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Learning rate.
    #[arg(long, default_value_t = 0.05)]
    lr: f64,
    /// Seed of the initial weights and of the order of the images.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Folder with MNIST's four gzipped files.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/data/mnist"))]
    data: PathBuf,
}

/// Programs that a process may compile in training: one to initialise, a first step, which has no momentum yet,
/// and the step that all others repeat.
const TRAINING_COMPILES: u64 = 3;
/// Programs that a process may compile in evaluation: one for its batches, one to add up the ranks' counts.
const EVALUATION_COMPILES: u64 = 2;
/// Test images a step on one device.
const TEST_BATCH: usize = 500;
/// How often, in steps, the progress bar shows a new loss.
const REFRESH: u64 = 10;

/// What one replica found.
#[derive(Serialize, Deserialize)]
struct Report {
    rank: usize,
    world_size: usize,
    /// The process that it ran in.
    process: u32,
    accuracy: f64,
    images_per_second: f64,
    /// Compiled in training, of these after its second step, and in evaluation. A program that
    /// replicas share is compiled by one of them.
    compiles: [u64; 3],
}

type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Visible so that a cell of a notebook may have this file as a module and call it.
pub(crate) fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Outcome<()> {
    let reports = xla::Launcher::new().run_serialized(|rank| replica(rank, args))?;
    let [training, late, evaluation] = most_compiles(&reports);
    // Where another launcher has started the processes, each has its own replicas' reports.
    if let Some(first) = reports.iter().find(|report| report.rank == 0) {
        println!("devices               {}", first.world_size);
        println!("images per second     {:.0}", first.images_per_second);
        println!("test accuracy         {:.2} %", 100.0 * first.accuracy);
        println!("compiles, training    {training} (at most {TRAINING_COMPILES})");
        println!("  after its 2nd step  {late} (must be 0)");
        println!("compiles, evaluation  {evaluation} (at most {EVALUATION_COMPILES})");
    }
    if training > TRAINING_COMPILES || late > 0 || evaluation > EVALUATION_COMPILES {
        return Err("more programs were compiled than the loop asks for".into());
    }
    Ok(())
}

/// The most that any process has compiled.
fn most_compiles(reports: &[Report]) -> [u64; 3] {
    let mut processes: BTreeMap<u32, [u64; 3]> = BTreeMap::new();
    for report in reports {
        let sums = processes.entry(report.process).or_default();
        for (sum, compiles) in sums.iter_mut().zip(report.compiles) {
            *sum += compiles;
        }
    }
    [0, 1, 2].map(|i| processes.values().map(|sums| sums[i]).max().unwrap_or(0))
}

fn replica(rank: usize, args: &Args) -> Outcome<Report> {
    dist::init_process_group("xla", "xla://")?;
    xla::manual_seed(args.seed)?;
    let device = xla::device()?;

    let training = Scope::new();
    let model = nn::Sequential::new()
        .add(nn::Flatten)
        .add(nn::Linear::new(784, 128, device)?)
        .add(nn::Relu)
        .add(nn::Linear::new(128, 10, device)?);
    let model = nn::DistributedDataParallel::new(model)?.gradient_as_bucket_view(true);
    let (images_per_second, late) = train(rank, args, &model, &training)?;
    let in_training = training.compiles();

    let evaluation = Scope::new();
    let accuracy = test(rank, args, &model)?;
    let compiles = [in_training, late, evaluation.compiles()];
    Ok(Report {
        rank,
        world_size: dist::get_world_size()?,
        process: std::process::id(),
        accuracy,
        images_per_second,
        compiles,
    })
}

/// Trains `model`; returns images per second over all replicas, and how many programs this replica
/// compiled after the second step.
fn train(rank: usize, args: &Args, model: &impl Forward, scope: &Scope) -> Outcome<(f64, u64)> {
    let world_size = dist::get_world_size()?;
    if args.batch == 0 || !args.batch.is_multiple_of(world_size) {
        return Err(format!(
            "--batch {} must be a multiple of {world_size} devices",
            args.batch
        )
        .into());
    }
    let mut loader = DataLoader::new(digits(args, "train")?)
        .batch_size(args.batch / world_size)
        .sampler(rank, world_size)
        .shuffle(args.seed)
        .drop_last(true);
    let mut optimizer = optim::Sgd::new(model.parameters(), args.lr).momentum(0.9);

    let steps = args
        .train_limit
        .map_or(loader.len(), |images| loader.len().min(images / args.batch));
    let bar = match rank {
        0 => progress(args.epochs * (steps * args.batch) as u64)?,
        _ => ProgressBar::hidden(),
    };
    let start = Instant::now();
    let mut step = 0;
    let mut settled = scope.compiles();
    let mut last_loss: Option<Tensor> = None;
    for epoch in 0..args.epochs {
        loader.set_epoch(epoch);
        for batch in loader.iter().take(steps) {
            let (images, labels) = batch?;
            let loss = nn::cross_entropy(&model.forward(&images)?, &labels)?;
            loss.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();
            xla::sync()?;

            step += 1;
            if step <= 2 {
                settled = scope.compiles();
            }
            bar.inc(args.batch as u64);
            // The device has just been given this step; the loss of the one before is there, or
            // about to be, so reading it does not leave the device idle.
            if rank == 0 {
                if step % REFRESH == 0
                    && let Some(loss) = last_loss
                {
                    bar.set_message(format!("{:.3}", loss.item::<f32>()?));
                }
                last_loss = Some(loss);
            }
        }
    }
    xla::sync()?.wait()?;
    let seconds = start.elapsed().as_secs_f64();
    bar.finish();
    Ok((
        step as f64 * args.batch as f64 / seconds,
        scope.compiles() - settled,
    ))
}

/// The share of all test images that `model` names correctly.
fn test(rank: usize, args: &Args, model: &impl Forward) -> Outcome<f64> {
    let world_size = dist::get_world_size()?;
    let images = digits(args, "t10k")?;
    let count = images.len();
    let padded = Padded {
        dataset: images,
        multiple: TEST_BATCH * world_size,
    };
    let loader = DataLoader::new(padded)
        .batch_size(TEST_BATCH)
        .sampler(rank, world_size);
    model.eval();
    xla::no_grad(|| {
        let correct = Tensor::from_slice(&[0i64], [1], ())?;
        for batch in &loader {
            let (images, labels) = batch?;
            let hits = model
                .forward(&images)?
                .argmax(Some(1), false)?
                .eq(&labels)?;
            correct.add_(&hits.sum((), false)?)?;
            xla::sync()?;
        }
        let correct = dist::all_reduce(&correct, dist::ReduceOp::Sum)?.item::<i64>()?;
        Ok(correct as f64 / count as f64)
    })
}

fn digits(args: &Args, part: &str) -> xla::Result<IdxDataset> {
    let file = |kind: &str| args.data.join(format!("{part}-{kind}-ubyte.gz"));
    Ok(IdxDataset::open(file("images-idx3"), file("labels-idx1"))?.normalize(0.1307, 0.3081))
}

/// A dataset continued to a multiple of some length, so that no batch has a shape of its own. The
/// label of what is added is no digit: it never counts as correct.
struct Padded {
    dataset: IdxDataset,
    multiple: usize,
}

impl Dataset for Padded {
    fn len(&self) -> usize {
        self.dataset.len().next_multiple_of(self.multiple)
    }

    fn get(&self, index: usize) -> xla::Result<Sample> {
        if index < self.dataset.len() {
            return self.dataset.get(index);
        }
        let (image, _) = self.dataset.get(0)?;
        Ok((image, Literal::scalar(-1i64)))
    }
}

fn progress(images: u64) -> Outcome<ProgressBar> {
    let style = ProgressStyle::with_template(
        "{bar:32} {human_pos}/{human_len} images, loss {msg}, {rate} images per second",
    )?
    .with_key("rate", |state: &ProgressState, out: &mut dyn Write| {
        // The only error is one of formatting, and the bar has no place for it.
        let _ = write!(out, "{:.0}", state.per_sec());
    });
    Ok(ProgressBar::new(images).with_style(style))
}
