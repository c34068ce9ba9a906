//! A small training run whose result does not depend on how many ranks divide the batch.

use xla::data::{DataLoader, TensorDataset};
use xla::nn::{self, DistributedDataParallel, Linear, Module, Relu, Sequential};
use xla::optim::{AdamW, Optimizer, Sgd, ZeroRedundancyOptimizer};
use xla::{Literal, Result, Tensor, dist};

const SAMPLES: usize = 48;
const BATCH: usize = 16;
const EPOCHS: u64 = 4;

/// Options of the wrapped model.
pub type Wrap =
    fn(DistributedDataParallel<Sequential>) -> Result<DistributedDataParallel<Sequential>>;

/// Makes the optimizer of these parameters.
pub type Make = fn(Vec<Tensor>) -> Result<Box<dyn Optimizer>>;

/// Points on curves, with the curve's number as label.
fn data() -> Result<TensorDataset> {
    let label = |i: usize| i * 7 % 3;
    let point =
        |i: usize| (0..6).map(move |k| ((i * 5 + k * 3 * (label(i) + 1)) as f32 * 0.37).sin());
    let points = (0..SAMPLES).flat_map(point).collect::<Vec<f32>>();
    let labels = (0..SAMPLES).map(|i| label(i) as i64).collect::<Vec<_>>();
    TensorDataset::new(
        Literal::from_vec(points, [SAMPLES, 6])?,
        Literal::from_vec(labels, [SAMPLES])?,
    )
}

/// Two layers.
///
/// # Errors
/// Whatever keeps the weights from being made.
pub fn model() -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Linear::new(6, 8, ())?)
        .add(Relu)
        .add(Linear::new(8, 3, ())?))
}

/// All values, one parameter after another.
///
/// # Errors
/// Those of reading.
pub fn values(parameters: &[Tensor]) -> Result<Vec<f32>> {
    let each: Result<Vec<Vec<f32>>> = parameters.iter().map(Tensor::to_vec).collect();
    Ok(each?.concat())
}

/// Gradient descent with momentum.
///
/// # Errors
/// None.
pub fn sgd(parameters: Vec<Tensor>) -> Result<Box<dyn Optimizer>> {
    Ok(Box::new(Sgd::new(parameters, 0.1).momentum(0.9)))
}

/// AdamW.
///
/// # Errors
/// None.
pub fn adam_w(parameters: Vec<Tensor>) -> Result<Box<dyn Optimizer>> {
    Ok(Box::new(AdamW::new(parameters, 0.01).weight_decay(0.1)))
}

/// The same with its state divided among the ranks.
///
/// # Errors
/// Those of dividing it.
pub fn divided_adam_w(parameters: Vec<Tensor>) -> Result<Box<dyn Optimizer>> {
    Ok(Box::new(ZeroRedundancyOptimizer::new(parameters, adam_w)?))
}

/// This rank's weights after data-parallel training in a world of so many.
///
/// # Errors
/// Those of training, which are not expected.
pub fn weights(rank: usize, world: usize, wrap: Wrap, make: Make) -> Result<Vec<f32>> {
    dist::init_process_group("xla", "xla://")?;
    assert_eq!(dist::get_world_size()?, world);
    // Only rank 0's initial weights may matter.
    xla::manual_seed(7 + rank as u64)?;
    let model = wrap(DistributedDataParallel::new(model()?)?)?;
    let mut optimizer = make(model.parameters())?;
    let mut loader = DataLoader::new(data()?)
        .batch_size(BATCH / world)
        .sampler(rank, world)
        .shuffle(11);
    for epoch in 0..EPOCHS {
        loader.set_epoch(epoch);
        for batch in &loader {
            let (points, labels) = batch?;
            nn::cross_entropy(&model.forward(&points)?, &labels)?.backward()?;
            optimizer.step()?;
            optimizer.zero_grad();
            xla::sync()?;
        }
    }
    values(&model.parameters())
}

/// Checks that all ranks have equal weights, which are nearly these.
///
/// # Panics
/// Where they are not.
#[track_caller]
pub fn assert_same_model(got: &[Vec<f32>], expected: &[f32]) {
    for (rank, weights) in got.iter().enumerate() {
        assert_eq!(weights, &got[0], "rank {rank} has left rank 0");
        assert_eq!(weights.len(), expected.len());
        for (w, e) in weights.iter().zip(expected) {
            assert!((w - e).abs() <= 1e-4, "rank {rank}: {w} is not {e}");
        }
    }
}

/// Layers of one weight each: `a · x`, and `b · x` where asked for; `c` is never used.
#[derive(Module)]
pub struct Pair {
    a: Linear,
    b: Linear,
    c: Linear,
}

impl Pair {
    /// Three layers.
    ///
    /// # Errors
    /// Whatever keeps the weights from being made.
    pub fn new() -> Result<Self> {
        let one = || Linear::without_bias(1, 1, ());
        Ok(Pair {
            a: one()?,
            b: one()?,
            c: one()?,
        })
    }

    /// `a · x`, with `b · x` added if `with_b`.
    ///
    /// # Errors
    /// What the operators return.
    pub fn forward(&self, x: &Tensor, with_b: bool) -> Result<Tensor> {
        let a = self.a.forward(x)?;
        match with_b {
            true => a.add(&self.b.forward(x)?),
            false => Ok(a),
        }
    }
}
