//! Initial values of parameters, by PyTorch's rules.
//!
//! Functions that end in `_` fill a tensor in place without recording a gradient and return a handle
//! on it. What they draw comes from the replica's generator.

mod structured;

pub use structured::{dirac_, eye_, orthogonal_, sparse_};

use std::panic::Location;
use xla_core::{Error, IntoShape, Result, Shape};
use xla_lazy::{Number, Tensor, TensorOptions, default_generator, no_grad};

/// A leaf tensor of independent values from the uniform distribution on `low..high`, of a float
/// dtype.
///
/// # Errors
/// [`Error::Argument`] when `low > high` or either is not finite; what `rand` returns.
#[track_caller]
pub fn uniform(
    shape: impl IntoShape,
    low: f64,
    high: f64,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    Tensor::uniform(low, high, shape, options)
}

/// [`uniform`] on `-bound..bound` with `bound = sqrt(6 / ((1 + a²) fan_in))`: He's initialisation
/// for layers before a leaky ReLU of negative slope `a`.
///
/// `fan_in`, the number of inputs that one output sums over, is the product of all axes but the
/// first.
///
/// # Errors
/// [`Error::ShapeMismatch`] for a shape of fewer than two axes; what [`uniform`] returns.
#[track_caller]
pub fn kaiming_uniform(
    shape: impl IntoShape,
    a: f64,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    const OP: &str = "init::kaiming_uniform";
    let at = Location::caller();
    let shape = shape.into_shape(OP).map_err(|e| e.at(at))?;
    let fans = Fans::of(OP, &shape).map_err(|e| e.at(at))?;
    let bound = 3f64.sqrt() * deviation(Nonlinearity::LeakyRelu(a), fans.input);
    uniform(&shape, -bound, bound, options)
}

/// How many inputs one output sums over, and how many outputs one input is part of.
struct Fans {
    input: f64,
    output: f64,
}

impl Fans {
    fn of(op: &'static str, shape: &Shape) -> Result<Fans> {
        let [outputs, inputs, window @ ..] = shape.dims() else {
            return Err(Error::shape(op, "a shape of at least two axes", shape));
        };
        let window: f64 = window.iter().map(|&d| d as f64).product();
        Ok(Fans {
            input: *inputs as f64 * window,
            output: *outputs as f64 * window,
        })
    }
}

/// What comes after a layer, by PyTorch's names.
#[derive(Debug, Clone, Copy, PartialEq)]
#[allow(missing_docs)] // the names say it
pub enum Nonlinearity {
    Linear,
    Sigmoid,
    Tanh,
    Relu,
    /// With this slope below 0.
    LeakyRelu(f64),
    Selu,
}

/// By how much weights are larger before this function, so that the variance stays: PyTorch's
/// recommended values.
pub fn calculate_gain(nonlinearity: Nonlinearity) -> f64 {
    match nonlinearity {
        Nonlinearity::Linear | Nonlinearity::Sigmoid => 1.0,
        Nonlinearity::Tanh => 5.0 / 3.0,
        Nonlinearity::Relu => 2f64.sqrt(),
        Nonlinearity::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
        Nonlinearity::Selu => 0.75,
    }
}

/// The standard deviation of He's initialisation; 0 where nothing is summed.
fn deviation(nonlinearity: Nonlinearity, fan: f64) -> f64 {
    match fan {
        0.0 => 0.0,
        fan => calculate_gain(nonlinearity) / fan.sqrt(),
    }
}

/// Which variance He's initialisation keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FanMode {
    /// Of activations in the forward pass.
    #[default]
    FanIn,
    /// Of gradients in the backward pass.
    FanOut,
}

/// How [`kaiming_uniform_`] and [`kaiming_normal_`] scale.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KaimingOptions {
    /// Which variance is kept.
    pub mode: FanMode,
    /// What follows the layer; a leaky ReLU of slope 0 unless set.
    pub nonlinearity: Nonlinearity,
}

impl Default for KaimingOptions {
    fn default() -> Self {
        KaimingOptions {
            mode: FanMode::FanIn,
            nonlinearity: Nonlinearity::LeakyRelu(0.0),
        }
    }
}

impl KaimingOptions {
    fn deviation(self, op: &'static str, tensor: &Tensor) -> Result<f64> {
        let fans = Fans::of(op, tensor.shape())?;
        let fan = match self.mode {
            FanMode::FanIn => fans.input,
            FanMode::FanOut => fans.output,
        };
        Ok(deviation(self.nonlinearity, fan))
    }
}

/// Fills with uniform numbers in `[low, high)`.
///
/// # Errors
/// As [`Tensor::uniform`].
#[track_caller]
pub fn uniform_(
    tensor: &Tensor,
    low: impl Into<Number>,
    high: impl Into<Number>,
) -> Result<Tensor> {
    let at = Location::caller();
    no_grad(|| tensor.uniform_(low, high)).map_err(|e| e.relocated(at))
}

/// Fills with numbers of a normal distribution.
///
/// # Errors
/// As [`Tensor::normal`].
#[track_caller]
pub fn normal_(tensor: &Tensor, mean: impl Into<Number>, std: impl Into<Number>) -> Result<Tensor> {
    let at = Location::caller();
    no_grad(|| tensor.normal_(mean, std)).map_err(|e| e.relocated(at))
}

/// Fills with numbers of the normal distribution restricted to `a..=b`.
///
/// # Errors
/// [`Error::Argument`] for a standard deviation that is not above 0 or bounds in the wrong order;
/// otherwise as [`Tensor::normal`].
#[track_caller]
pub fn trunc_normal_(
    tensor: &Tensor,
    mean: impl Into<Number>,
    std: impl Into<Number>,
    a: impl Into<Number>,
    b: impl Into<Number>,
) -> Result<Tensor> {
    let generator = default_generator(tensor.device())?;
    let parameters = [mean.into(), std.into(), a.into(), b.into()];
    let drawn = generator.trunc_normal(parameters, tensor.shape(), tensor.dtype())?;
    no_grad(|| tensor.copy_(&drawn))
}

/// Fills with a number, which is data.
///
/// # Errors
/// As [`Tensor::fill_`].
#[track_caller]
pub fn constant_(tensor: &Tensor, value: impl Into<Number>) -> Result<Tensor> {
    no_grad(|| tensor.fill_(value))
}

/// Fills with 1.
///
/// # Errors
/// As [`Tensor::fill_`].
#[track_caller]
pub fn ones_(tensor: &Tensor) -> Result<Tensor> {
    constant_(tensor, 1)
}

/// Fills with 0.
///
/// # Errors
/// As [`Tensor::fill_`].
#[track_caller]
pub fn zeros_(tensor: &Tensor) -> Result<Tensor> {
    constant_(tensor, 0)
}

/// Glorot's initialisation, uniform on `±gain sqrt(6 / (fan_in + fan_out))` (Glorot and Bengio,
/// "Understanding the difficulty of training deep feedforward neural networks", 2010).
///
/// # Errors
/// [`Error::ShapeMismatch`] for fewer than two axes; otherwise as [`uniform_`].
#[track_caller]
pub fn xavier_uniform_(tensor: &Tensor, gain: f64) -> Result<Tensor> {
    let std = xavier("init::xavier_uniform_", tensor, gain, Location::caller())?;
    let bound = 3f64.sqrt() * std;
    uniform_(tensor, -bound, bound)
}

/// Glorot's initialisation, normal with deviation `gain sqrt(2 / (fan_in + fan_out))`.
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn xavier_normal_(tensor: &Tensor, gain: f64) -> Result<Tensor> {
    let std = xavier("init::xavier_normal_", tensor, gain, Location::caller())?;
    normal_(tensor, 0.0, std)
}

fn xavier(
    op: &'static str,
    tensor: &Tensor,
    gain: f64,
    at: &'static Location<'static>,
) -> Result<f64> {
    let fans = Fans::of(op, tensor.shape()).map_err(|e| e.at(at))?;
    Ok(match fans.input + fans.output {
        0.0 => 0.0,
        both => gain * (2.0 / both).sqrt(),
    })
}

/// He's initialisation, uniform on `±gain sqrt(3 / fan)` (He et al., "Delving deep into rectifiers",
/// 2015).
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn kaiming_uniform_(tensor: &Tensor, options: KaimingOptions) -> Result<Tensor> {
    let at = Location::caller();
    let std = options.deviation("init::kaiming_uniform_", tensor);
    let bound = 3f64.sqrt() * std.map_err(|e| e.at(at))?;
    uniform_(tensor, -bound, bound)
}

/// He's initialisation, normal with deviation `gain / sqrt(fan)`.
///
/// # Errors
/// As [`xavier_uniform_`].
#[track_caller]
pub fn kaiming_normal_(tensor: &Tensor, options: KaimingOptions) -> Result<Tensor> {
    let at = Location::caller();
    let std = options.deviation("init::kaiming_normal_", tensor);
    normal_(tensor, 0.0, std.map_err(|e| e.at(at))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deviation_is_the_gain_over_the_root_of_the_fan() {
        let fans = Fans::of("test", &Shape::new(&[8, 784])).unwrap();
        // A slope of sqrt(5) makes the bound of a linear layer 1 / sqrt(fan_in).
        let bound = 3f64.sqrt() * deviation(Nonlinearity::LeakyRelu(5f64.sqrt()), fans.input);
        assert!((bound - 1.0 / 28.0).abs() < 1e-15, "{bound}");
        assert_eq!(deviation(Nonlinearity::Relu, 0.0), 0.0);
        let kernel = Fans::of("test", &Shape::new(&[16, 4, 3, 5])).unwrap();
        assert_eq!((kernel.input, kernel.output), (60.0, 240.0));
        assert!(Fans::of("test", &Shape::new(&[3])).is_err());
    }

    #[test]
    fn gains_are_those_of_pytorch() {
        assert_eq!(calculate_gain(Nonlinearity::Tanh), 5.0 / 3.0);
        assert_eq!(calculate_gain(Nonlinearity::LeakyRelu(0.0)), 2f64.sqrt());
        assert!(
            (calculate_gain(Nonlinearity::LeakyRelu(0.2)) - 1.386_750_490_563_073).abs() < 1e-15
        );
    }
}
