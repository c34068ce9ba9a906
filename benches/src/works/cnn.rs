//! Two convolutions with relu and pooling, two affine layers; SGD at 0.05, batches of 64 images of
//! 28 by 28.

use super::{Step, labels, training};
use xla::nn::functional::{ConvOptions, MaxPoolOptions, conv2d, max_pool2d};
use xla::nn::{Linear, Module, cross_entropy, init};
use xla::{Result, Tensor, optim};

#[derive(Module)]
struct Conv {
    weight: Tensor,
    bias: Tensor,
}

impl Conv {
    fn new(inputs: usize, outputs: usize) -> Result<Self> {
        let bound = 1.0 / (9.0 * inputs as f64).sqrt();
        let parameter =
            |dims: &[usize]| init::uniform(dims, -bound, bound, ())?.requires_grad_(true);
        Ok(Conv {
            weight: parameter(&[outputs, inputs, 3, 3])?,
            bias: parameter(&[outputs])?,
        })
    }

    /// Convolved, rectified and pooled.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let options = ConvOptions {
            padding: 1.into(),
            ..Default::default()
        };
        let x = conv2d(x, &self.weight, Some(&self.bias), options)?.relu()?;
        max_pool2d(&x, 2, MaxPoolOptions::default())
    }
}

#[derive(Module)]
struct Cnn {
    conv1: Conv,
    conv2: Conv,
    fc1: Linear,
    fc2: Linear,
}

impl Cnn {
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let x = self.conv2.forward(&self.conv1.forward(x)?)?;
        let x = self.fc1.forward(&x.flatten(1, -1)?)?.relu()?;
        self.fc2.forward(&x)
    }
}

pub(super) fn step() -> Result<Step> {
    let model = Cnn {
        conv1: Conv::new(1, 32)?,
        conv2: Conv::new(32, 64)?,
        fc1: Linear::new(3136, 128, ())?,
        fc2: Linear::new(128, 10, ())?,
    };
    let (x, y) = (Tensor::rand([64, 1, 28, 28], ())?, labels(64, 10)?);
    let optimizer = optim::Sgd::new(model.parameters(), 0.05);
    training(optimizer, move || cross_entropy(&model.forward(&x)?, &y))
}
