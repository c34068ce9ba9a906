//! A U-Net that names the noise in an image, as diffusion models use it
//! ([Ho et al. 2020](https://arxiv.org/abs/2006.11239)).

use xla::nn::{Conv2d, ConvTranspose2d, GroupNorm, Linear, Module, Sequential, Silu};
use xla::{DType, Result, Tensor, TensorOptions};

/// The model's sizes.
#[derive(Debug, Clone)]
pub(crate) struct Config {
    /// Channels of the images.
    pub(crate) channels: usize,
    /// Channels at each resolution, the full one first; each has half the sides of the one before.
    pub(crate) widths: Vec<usize>,
    /// Groups of the normalisations: a divisor of all widths.
    pub(crate) groups: usize,
    /// Features of the time: an even number.
    pub(crate) time: usize,
}

/// Two convolutions, between which the time is added, and a way around them.
#[derive(Debug, Module)]
struct ResBlock {
    norm1: GroupNorm,
    conv1: Conv2d,
    time: Linear,
    norm2: GroupNorm,
    conv2: Conv2d,
    skip: Option<Conv2d>,
}

impl ResBlock {
    fn new(inputs: usize, outputs: usize, config: &Config, options: TensorOptions) -> Result<Self> {
        let conv = |inputs| {
            Conv2d::builder(inputs, outputs, 3)
                .padding(1)
                .build(options)
        };
        Ok(ResBlock {
            norm1: GroupNorm::new(config.groups, inputs, options)?,
            conv1: conv(inputs)?,
            time: Linear::new(config.time, outputs, options)?,
            norm2: GroupNorm::new(config.groups, outputs, options)?,
            conv2: conv(outputs)?,
            skip: match inputs == outputs {
                true => None,
                false => Some(Conv2d::new(inputs, outputs, 1, options)?),
            },
        })
    }

    fn forward(&self, x: &Tensor, time: &Tensor) -> Result<Tensor> {
        let y = self.conv1.forward(&self.norm1.forward(x)?.silu()?)?;
        let time = self.time.forward(&time.silu()?)?;
        let y = (y + time.unsqueeze(-1)?.unsqueeze(-1)?)?;
        let y = self.conv2.forward(&self.norm2.forward(&y)?.silu()?)?;
        match &self.skip {
            Some(skip) => y + skip.forward(x),
            None => y + x,
        }
    }
}

/// Predicts the noise in images `[batch, channels, height, width]`, whose sides have a factor of 2
/// for each resolution but one.
#[derive(Debug, Module)]
pub(crate) struct UNet {
    time: Sequential,
    first: Conv2d,
    down: Vec<ResBlock>,
    shrink: Vec<Conv2d>,
    middle: ResBlock,
    grow: Vec<ConvTranspose2d>,
    up: Vec<ResBlock>,
    norm: GroupNorm,
    last: Conv2d,
    features: usize,
}

impl UNet {
    /// With PyTorch's initial values.
    pub(crate) fn new(config: &Config, options: impl Into<TensorOptions>) -> Result<Self> {
        let options = options.into();
        let block = |inputs, outputs| ResBlock::new(inputs, outputs, config, options);
        let (width, deepest) = match config.widths.as_slice() {
            [first, .., last] | [first @ last] => (*first, *last),
            [] => {
                return Err(xla::Error::argument(
                    "UNet",
                    "widths",
                    "at least one",
                    "none",
                ));
            }
        };
        let pairs = || config.widths.windows(2).map(|pair| (pair[0], pair[1]));
        Ok(UNet {
            time: Sequential::new()
                .add(Linear::new(config.time, config.time, options)?)
                .add(Silu)
                .add(Linear::new(config.time, config.time, options)?),
            first: Conv2d::builder(config.channels, width, 3)
                .padding(1)
                .build(options)?,
            down: pairs()
                .map(|(wide, _)| block(wide, wide))
                .collect::<Result<_>>()?,
            shrink: pairs()
                .map(|(wide, deep)| {
                    Conv2d::builder(wide, deep, 3)
                        .stride(2)
                        .padding(1)
                        .build(options)
                })
                .collect::<Result<_>>()?,
            middle: block(deepest, deepest)?,
            grow: pairs()
                .rev()
                .map(|(wide, deep)| {
                    ConvTranspose2d::builder(deep, wide, 2)
                        .stride(2)
                        .build(options)
                })
                .collect::<Result<_>>()?,
            up: pairs()
                .rev()
                .map(|(wide, _)| block(2 * wide, wide))
                .collect::<Result<_>>()?,
            norm: GroupNorm::new(config.groups, width, options)?,
            last: Conv2d::builder(width, config.channels, 3)
                .padding(1)
                .build(options)?,
            features: config.time,
        })
    }

    /// The noise in images that have been noised for so many steps, `[batch]`.
    pub(crate) fn forward(&self, images: &Tensor, steps: &Tensor) -> Result<Tensor> {
        let time = self.time.forward(&sinusoids(steps, self.features)?)?;
        let mut x = self.first.forward(images)?;
        let mut skipped = Vec::new();
        for (block, shrink) in self.down.iter().zip(&self.shrink) {
            x = block.forward(&x, &time)?;
            skipped.push(x.clone());
            x = shrink.forward(&x)?;
        }
        x = self.middle.forward(&x, &time)?;
        for ((grow, block), skip) in self.grow.iter().zip(&self.up).zip(skipped.iter().rev()) {
            x = Tensor::cat(&[&grow.forward(&x)?, skip], 1)?;
            x = block.forward(&x, &time)?;
        }
        self.last.forward(&self.norm.forward(&x)?.silu()?)
    }
}

/// Numbers as sines and cosines of many frequencies: from `[batch]` to `[batch, features]`.
fn sinusoids(numbers: &Tensor, features: usize) -> Result<Tensor> {
    let half = features / 2;
    let exponents = (Tensor::arange(0, half, 1, numbers.device())? / half as f64)?;
    let frequencies = (exponents * -(1e4_f64.ln()))?.exp()?;
    let angles = (numbers.to_dtype(DType::F32)?.unsqueeze(-1)? * frequencies)?;
    Tensor::cat(&[&angles.sin()?, &angles.cos()?], -1)
}
