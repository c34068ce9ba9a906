//! PyTorch's functions that draw from the replica's generator.

use super::{Generator, default_generator, within};
use crate::Tensor;
use crate::op::{Number, Operand};
use crate::tensor::TensorOptions;
use crate::trace::no_grad;
use std::panic::Location;
use xla_core::{DType, Error, IntoShape, Result};

fn source(
    op: &'static str,
    options: impl Into<TensorOptions>,
    default: DType,
) -> Result<(Generator, DType, TensorOptions)> {
    let options = options.into();
    let generator = default_generator(options.device_or_current(op)?)?;
    Ok((generator, options.dtype().unwrap_or(default), options))
}

/// An error unless a standard deviation is at least 0.
fn deviation(std: Number) -> Result<()> {
    within("normal", "std", std, 0.0, f64::INFINITY)
}

impl Tensor {
    /// Uniform random numbers in `[0, 1)` from the replica's generator. `f32` unless the options
    /// name another floating-point dtype.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for another dtype, [`Error::Argument`] for a negative length.
    #[track_caller]
    pub fn rand(shape: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
        let (generator, dtype, options) = source("rand", options, DType::F32)?;
        let drawn = generator.rand(shape, dtype)?;
        options.spread("rand", drawn, Location::caller())
    }

    /// Random numbers of the standard normal distribution from the replica's generator; as
    /// [`Tensor::rand`].
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    #[track_caller]
    pub fn randn(shape: impl IntoShape, options: impl Into<TensorOptions>) -> Result<Tensor> {
        let (generator, dtype, options) = source("randn", options, DType::F32)?;
        let drawn = generator.randn(shape, dtype)?;
        options.spread("randn", drawn, Location::caller())
    }

    /// Uniform random numbers in `[low, high)`; the bounds are data.
    ///
    /// # Errors
    /// As [`Generator::uniform`].
    #[track_caller]
    pub fn uniform(
        low: impl Into<Number>,
        high: impl Into<Number>,
        shape: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        let (generator, dtype, options) = source("uniform", options, DType::F32)?;
        let drawn = generator.uniform(low, high, shape, dtype)?;
        options.spread("uniform", drawn, Location::caller())
    }

    /// Random numbers of a normal distribution; mean and standard deviation are data.
    ///
    /// # Errors
    /// [`Error::Argument`] for a standard deviation below 0; otherwise as [`Tensor::rand`].
    #[track_caller]
    pub fn normal(
        mean: impl Into<Number>,
        std: impl Into<Number>,
        shape: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        let std = std.into();
        let at = Location::caller();
        deviation(std).map_err(|e| e.at(at))?;
        let drawn = Tensor::randn(shape, options)?;
        no_grad(|| drawn.mul(std)?.add(mean.into()))
    }

    /// One random number for each mean and standard deviation, which are tensors or numbers, at least
    /// one a tensor of floats, and broadcast: PyTorch's `torch.normal(mean, std)`. No gradient flows to
    /// either.
    ///
    /// # Errors
    /// [`Error::Broadcast`], [`Error::DTypeMismatch`]; [`Error::Argument`] for two numbers or a number
    /// below 0 as standard deviation.
    #[track_caller]
    pub fn normal_of<'a>(
        mean: impl Into<Operand<'a>>,
        std: impl Into<Operand<'a>>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let (mean, std) = (mean.into(), std.into());
        if let Operand::Number(std) = std {
            deviation(std).map_err(|e| e.at(at))?;
        }
        let (shape, like) = match (mean, std) {
            (Operand::Tensor(mean), Operand::Tensor(std)) => {
                let shape = mean.shape().broadcast("normal", std.shape());
                (shape.map_err(|e| e.at(at))?, mean)
            }
            (Operand::Tensor(one), _) | (_, Operand::Tensor(one)) => (one.shape().clone(), one),
            _ => {
                let error = Error::argument("normal", "mean, std", "a tensor", "two numbers");
                return Err(error.at(at));
            }
        };
        let drawn = default_generator(like.device())?.randn(shape, like.dtype())?;
        no_grad(|| drawn.mul(std)?.add(mean))
    }

    /// Random numbers of the exponential distribution `lambd exp(-lambd x)`; the rate is data.
    ///
    /// # Errors
    /// As [`Generator::exponential`].
    #[track_caller]
    pub fn exponential(
        lambd: impl Into<Number>,
        shape: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        let (generator, dtype, options) = source("exponential", options, DType::F32)?;
        let drawn = generator.exponential(lambd, shape, dtype)?;
        options.spread("exponential", drawn, Location::caller())
    }

    /// Random whole numbers in `low..high`; the bounds are data. `i64` unless the options name another
    /// dtype.
    ///
    /// # Errors
    /// As [`Generator::randint`].
    #[track_caller]
    pub fn randint(
        low: i64,
        high: i64,
        shape: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        let (generator, dtype, options) = source("randint", options, DType::I64)?;
        let drawn = generator.randint(low, high, shape, dtype)?;
        options.spread("randint", drawn, Location::caller())
    }

    /// The whole numbers from 0 to `n` in a random order. `i64` unless the options name another dtype.
    ///
    /// # Errors
    /// As [`Generator::randperm`].
    #[track_caller]
    pub fn randperm(n: usize, options: impl Into<TensorOptions>) -> Result<Tensor> {
        let (generator, dtype, options) = source("randperm", options, DType::I64)?;
        let drawn = generator.randperm(n, dtype)?;
        options.spread("randperm", drawn, Location::caller())
    }

    /// [`Tensor::rand`] of this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    #[track_caller]
    pub fn rand_like(&self) -> Result<Tensor> {
        Tensor::rand(self.shape(), self.alike())
    }

    /// [`Tensor::randn`] of this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// As [`Tensor::rand`].
    #[track_caller]
    pub fn randn_like(&self) -> Result<Tensor> {
        Tensor::randn(self.shape(), self.alike())
    }

    /// [`Tensor::randint`] of this tensor's shape, dtype and device.
    ///
    /// # Errors
    /// As [`Generator::randint`].
    #[track_caller]
    pub fn randint_like(&self, low: i64, high: i64) -> Result<Tensor> {
        Tensor::randint(low, high, self.shape(), self.alike())
    }

    /// 1 with the probability that each element is, else 0.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for a tensor that is not of floats.
    #[track_caller]
    pub fn bernoulli(&self) -> Result<Tensor> {
        default_generator(self.device())?.bernoulli(self, self.shape(), self.dtype())
    }

    /// `num_samples` positions along the last axis, drawn with the elements as weights.
    ///
    /// # Errors
    /// As [`Generator::multinomial`].
    #[track_caller]
    pub fn multinomial(&self, num_samples: usize, replacement: bool) -> Result<Tensor> {
        default_generator(self.device())?.multinomial(self, num_samples, replacement)
    }

    /// Becomes uniform random numbers in `[low, high)`.
    ///
    /// # Errors
    /// As [`Generator::uniform`] and [`Tensor::add_`].
    #[track_caller]
    pub fn uniform_(&self, low: impl Into<Number>, high: impl Into<Number>) -> Result<Tensor> {
        let generator = default_generator(self.device())?;
        self.assign(
            "uniform_",
            generator.uniform(low, high, self.shape(), self.dtype())?,
        )
    }

    /// Becomes random numbers of a normal distribution.
    ///
    /// # Errors
    /// As [`Tensor::normal`] and [`Tensor::add_`].
    #[track_caller]
    pub fn normal_(&self, mean: impl Into<Number>, std: impl Into<Number>) -> Result<Tensor> {
        let options = (self.dtype(), self.device());
        self.assign("normal_", Tensor::normal(mean, std, self.shape(), options)?)
    }

    /// Becomes random numbers of the exponential distribution of rate `lambd`.
    ///
    /// # Errors
    /// As [`Generator::exponential`] and [`Tensor::add_`].
    #[track_caller]
    pub fn exponential_(&self, lambd: impl Into<Number>) -> Result<Tensor> {
        let generator = default_generator(self.device())?;
        self.assign(
            "exponential_",
            generator.exponential(lambd, self.shape(), self.dtype())?,
        )
    }

    /// Becomes 1 with probability `p`, a number or a tensor that broadcasts to this shape, else 0.
    ///
    /// # Errors
    /// As [`Generator::bernoulli`] and [`Tensor::add_`].
    #[track_caller]
    pub fn bernoulli_<'a>(&self, p: impl Into<Operand<'a>>) -> Result<Tensor> {
        let generator = default_generator(self.device())?;
        self.assign(
            "bernoulli_",
            generator.bernoulli(p, self.shape(), self.dtype())?,
        )
    }

    /// Becomes random whole numbers in `low..high`; without `high` as far as the dtype holds every
    /// whole number.
    ///
    /// # Errors
    /// As [`Generator::randint`] and [`Tensor::add_`].
    #[track_caller]
    pub fn random_(&self, low: i64, high: Option<i64>) -> Result<Tensor> {
        let at = Location::caller();
        let generator = default_generator(self.device())?;
        let last = match high {
            Some(high) if low < high => high - 1,
            None if low <= Generator::greatest(self.dtype()) => Generator::greatest(self.dtype()),
            _ => {
                let got = format!("{low}, {high:?}");
                return Err(Error::argument("random_", "low, high", "low below high", got).at(at));
            }
        };
        let drawn = generator.integers("random_", low, last, self.shape(), self.dtype(), at)?;
        self.assign("random_", drawn)
    }
}
