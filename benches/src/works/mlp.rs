//! 784-512-512-10 with relu and cross entropy, SGD at 0.05, batches of 128.

use super::{Step, labels, training};
use xla::nn::{Linear, Module, Relu, Sequential, cross_entropy};
use xla::{Result, Tensor, optim};

/// The model, which `ddp` trains too.
pub(super) fn model() -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Linear::new(784, 512, ())?)
        .add(Relu)
        .add(Linear::new(512, 512, ())?)
        .add(Relu)
        .add(Linear::new(512, 10, ())?))
}

pub(super) fn step() -> Result<Step> {
    let model = model()?;
    let (x, y) = (Tensor::rand([128, 784], ())?, labels(128, 10)?);
    let optimizer = optim::Sgd::new(model.parameters(), 0.05);
    training(optimizer, move || cross_entropy(&model.forward(&x)?, &y))
}
