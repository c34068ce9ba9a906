//! Activations as modules, for use in [`Sequential`](crate::Sequential).

use crate::{Forward, Module};
use xla_core::Result;
use xla_lazy::Tensor;

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
