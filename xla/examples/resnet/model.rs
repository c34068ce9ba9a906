//! ResNet with basic blocks ([He et al. 2016](https://arxiv.org/abs/1512.03385)).
//!
//! Layers have torchvision's names, so that its saved weights of `resnet18` and `resnet34` fit.

use xla::nn::{AdaptiveAvgPool2d, BatchNorm2d, Conv2d, Forward, Linear, MaxPool2d, Module};
use xla::nn::{Sequential, init};
use xla::{Result, Tensor, TensorOptions};

/// What ResNets differ in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Config {
    /// Channels of the images.
    pub(crate) channels: usize,
    /// Channels of the first stage: each of the other three has twice as many as the one before.
    pub(crate) width: usize,
    /// Blocks of each stage.
    pub(crate) blocks: [usize; 4],
    /// Classes to tell apart.
    pub(crate) classes: usize,
}

/// Two convolutions, and a way around them.
#[derive(Debug, Module, Forward)]
struct BasicBlock {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    conv2: Conv2d,
    bn2: BatchNorm2d,
    /// Where the way around has to change the image's size.
    downsample: Option<Sequential>,
}

impl BasicBlock {
    fn new(inputs: usize, outputs: usize, stride: usize, options: TensorOptions) -> Result<Self> {
        let downsample = match stride != 1 || inputs != outputs {
            true => Some(
                Sequential::new()
                    .add(conv(inputs, outputs, 1, stride, options)?)
                    .add(BatchNorm2d::new(outputs, options)?),
            ),
            false => None,
        };
        Ok(BasicBlock {
            conv1: conv(inputs, outputs, 3, stride, options)?,
            bn1: BatchNorm2d::new(outputs, options)?,
            conv2: conv(outputs, outputs, 3, 1, options)?,
            bn2: BatchNorm2d::new(outputs, options)?,
            downsample,
        })
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.bn1.forward(&self.conv1.forward(x)?)?.relu()?;
        let y = self.bn2.forward(&self.conv2.forward(&y)?)?;
        match &self.downsample {
            Some(downsample) => (y + downsample.forward(x))?.relu(),
            None => (y + x)?.relu(),
        }
    }
}

/// A classifier of images `[batch, channels, height, width]`.
#[derive(Debug, Module, Forward)]
pub(crate) struct ResNet {
    conv1: Conv2d,
    bn1: BatchNorm2d,
    maxpool: MaxPool2d,
    layer1: Sequential,
    layer2: Sequential,
    layer3: Sequential,
    layer4: Sequential,
    avgpool: AdaptiveAvgPool2d,
    fc: Linear,
}

impl ResNet {
    /// With torchvision's initial values.
    pub(crate) fn new(config: Config, options: impl Into<TensorOptions>) -> Result<Self> {
        let options = options.into();
        let widths = [1, 2, 4, 8].map(|factor| factor * config.width);
        // The first block of a stage widens, and, but for the first stage, halves the image's sides.
        let stage = |i: usize, inputs: usize| -> Result<Sequential> {
            let stride = if i == 0 { 1 } else { 2 };
            (0..config.blocks[i])
                .map(|block| match block {
                    0 => BasicBlock::new(inputs, widths[i], stride, options),
                    _ => BasicBlock::new(widths[i], widths[i], 1, options),
                })
                .collect()
        };
        Ok(ResNet {
            conv1: conv(config.channels, config.width, 7, 2, options)?,
            bn1: BatchNorm2d::new(config.width, options)?,
            maxpool: MaxPool2d::new(3).stride(2).padding(1),
            layer1: stage(0, widths[0])?,
            layer2: stage(1, widths[0])?,
            layer3: stage(2, widths[1])?,
            layer4: stage(3, widths[2])?,
            avgpool: AdaptiveAvgPool2d::new(1),
            fc: Linear::new(widths[3], config.classes, options)?,
        })
    }

    /// The logits, `[batch, classes]`.
    pub(crate) fn forward(&self, images: &Tensor) -> Result<Tensor> {
        let mut x = self.bn1.forward(&self.conv1.forward(images)?)?.relu()?;
        x = self.maxpool.forward(&x)?;
        for layer in [&self.layer1, &self.layer2, &self.layer3, &self.layer4] {
            x = layer.forward(&x)?;
        }
        self.fc.forward(&self.avgpool.forward(&x)?.flatten(1, -1)?)
    }
}

/// A convolution that keeps the image's size but for the stride, without a bias: what follows
/// normalises.
fn conv(
    inputs: usize,
    outputs: usize,
    kernel: usize,
    stride: usize,
    options: TensorOptions,
) -> Result<Conv2d> {
    let conv = Conv2d::builder(inputs, outputs, kernel)
        .stride(stride)
        .padding(kernel / 2)
        .bias(false)
        .build(options)?;
    let fan_out = init::KaimingOptions {
        mode: init::FanMode::FanOut,
        nonlinearity: init::Nonlinearity::Relu,
    };
    init::kaiming_normal_(conv.weight(), fan_out)?;
    Ok(conv)
}
