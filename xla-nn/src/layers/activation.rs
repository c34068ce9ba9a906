//! Activations as modules, for use in [`Sequential`](crate::Sequential).

use crate::{Forward, Module, functional};
use xla_core::Result;
use xla_lazy::{GeluApproximation, Tensor, TensorOptions};

macro_rules! activations {
    ($($(#[$doc:meta])* $layer:ident $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default, Module, Forward)]
        pub struct $layer;

        impl $layer {
            #[doc = concat!("See [`Tensor::", stringify!($method), "`].")]
            ///
            /// # Errors
            /// As the method.
            #[track_caller]
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                input.$method()
            }
        }
    )*};
}

activations! {
    /// `max(x, 0)`, elementwise.
    Relu relu;
    /// The hyperbolic tangent, elementwise.
    Tanh tanh;
    /// `1 / (1 + exp(-x))`, elementwise.
    Sigmoid sigmoid;
    /// The logarithm of [`Sigmoid`], elementwise.
    LogSigmoid logsigmoid;
    /// `x` times its [`Sigmoid`], elementwise ([Ramachandran et al. 2017](https://arxiv.org/abs/1710.05941)).
    Silu silu;
    /// `x` times the hyperbolic tangent of its softplus, elementwise
    /// ([Misra 2019](https://arxiv.org/abs/1908.08681)).
    Mish mish;
    /// [`Relu`] of at most 6, elementwise.
    Relu6 relu6;
    /// [`Sigmoid`] made of three lines, elementwise.
    Hardsigmoid hardsigmoid;
    /// `x` times its [`Hardsigmoid`], elementwise ([Howard et al. 2019](https://arxiv.org/abs/1905.02244)).
    Hardswish hardswish;
    /// [`Elu`] with the constants that keep mean 0 and variance 1, elementwise
    /// ([Klambauer et al. 2017](https://arxiv.org/abs/1706.02515)).
    Selu selu;
    /// `x / (1 + |x|)`, elementwise.
    Softsign softsign;
    /// `x - tanh(x)`, elementwise.
    Tanhshrink tanhshrink;
}

macro_rules! with_numbers {
    ($($(#[$doc:meta])* $layer:ident $method:ident { $($number:ident: $default:expr),* };)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Module, Forward)]
        pub struct $layer {
            $($number: f64,)*
        }

        impl $layer {
            #[doc = concat!("See [`Tensor::", stringify!($method), "`] for the numbers.")]
            pub fn new($($number: f64),*) -> Self {
                $layer { $($number),* }
            }

            #[doc = concat!("See [`Tensor::", stringify!($method), "`].")]
            ///
            /// # Errors
            /// As the method.
            #[track_caller]
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                input.$method($(self.$number),*)
            }
        }

        impl Default for $layer {
            /// PyTorch's numbers.
            fn default() -> Self {
                $layer { $($number: $default),* }
            }
        }
    )*};
}

with_numbers! {
    /// `x` where it is positive, else a fraction of it (0.01), elementwise.
    LeakyRelu leaky_relu { negative_slope: 0.01 };
    /// `x` where it is positive, else `alpha * (exp(x) - 1)` (1), elementwise
    /// ([Clevert et al. 2015](https://arxiv.org/abs/1511.07289)).
    Elu elu { alpha: 1.0 };
    /// [`Elu`] without a kink for any `alpha` (1), elementwise
    /// ([Barron 2017](https://arxiv.org/abs/1704.07483)).
    Celu celu { alpha: 1.0 };
    /// A smooth [`Relu`], `log(1 + exp(beta x)) / beta`, which is `x` where `beta x` is above a
    /// threshold (1, 20), elementwise.
    Softplus softplus { beta: 1.0, threshold: 20.0 };
    /// `x` limited to a range (-1, 1), elementwise.
    Hardtanh hardtanh { min_val: -1.0, max_val: 1.0 };
    /// `x` where it is further from 0 than some number (0.5), else 0, elementwise.
    Hardshrink hardshrink { lambd: 0.5 };
    /// `x` moved towards 0 by some number (0.5) but not beyond, elementwise.
    Softshrink softshrink { lambd: 0.5 };
}

/// `x` times the normal distribution's function of it, elementwise
/// ([Hendrycks & Gimpel 2016](https://arxiv.org/abs/1606.08415)).
#[derive(Debug, Clone, Copy, Module, Forward)]
pub struct Gelu {
    #[module(skip)]
    approximate: GeluApproximation,
}

impl Gelu {
    /// The exact function.
    pub fn new() -> Self {
        Gelu {
            approximate: GeluApproximation::None,
        }
    }

    /// Another way to compute it.
    #[must_use]
    pub fn approximate(self, approximate: GeluApproximation) -> Self {
        Gelu { approximate }
    }

    /// See [`Tensor::gelu`].
    ///
    /// # Errors
    /// As the method.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        input.gelu(self.approximate)
    }
}

impl Default for Gelu {
    fn default() -> Self {
        Gelu::new()
    }
}

/// `x` where it is positive, else a learned number times it, one for all or one a channel
/// ([He et al. 2015](https://arxiv.org/abs/1502.01852)).
#[derive(Debug, Module, Forward)]
pub struct PRelu {
    weight: Tensor,
}

impl PRelu {
    /// A layer of 1 slope, or of as many as the input has channels, all `init` (0.25 in PyTorch).
    ///
    /// # Errors
    /// [`xla_core::Error::DTypeMismatch`] for a dtype that is no float; what creating the tensor
    /// returns.
    #[track_caller]
    pub fn new(
        num_parameters: usize,
        init: f64,
        options: impl Into<TensorOptions>,
    ) -> Result<Self> {
        let weight = Tensor::full(num_parameters, init, options)?;
        Ok(PRelu {
            weight: weight.requires_grad_(true)?,
        })
    }

    /// The slopes.
    pub fn weight(&self) -> &Tensor {
        &self.weight
    }

    /// See [`functional::prelu`].
    ///
    /// # Errors
    /// As the function.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::prelu(input, &self.weight)
    }
}

/// Its input: a place for a module that is not there.
#[derive(Debug, Clone, Copy, Default, Module, Forward)]
pub struct Identity;

impl Identity {
    /// A handle on the input.
    ///
    /// # Errors
    /// None.
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        Ok(input.clone())
    }
}

macro_rules! along_an_axis {
    ($($(#[$doc:meta])* $layer:ident $method:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Module, Forward)]
        pub struct $layer {
            dim: i64,
        }

        impl $layer {
            /// Along this axis, counted from the end when negative.
            pub fn new(dim: i64) -> Self {
                $layer { dim }
            }

            #[doc = concat!("See [`Tensor::", stringify!($method), "`].")]
            ///
            /// # Errors
            /// [`xla_core::Error::Axis`] when there is no such axis.
            #[track_caller]
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                input.$method(self.dim)
            }
        }
    )*};
}

along_an_axis! {
    /// Exponentials, scaled to sum up to 1 along an axis.
    Softmax softmax;
    /// The logarithms of [`Softmax`].
    LogSoftmax log_softmax;
}
