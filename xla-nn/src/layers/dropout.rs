//! Dropout.

use crate::{Forward, Module, Training, functional};
use xla_core::Result;
use xla_lazy::Tensor;

macro_rules! dropouts {
    ($($(#[$doc:meta])* $layer:ident $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Module, Forward)]
        pub struct $layer {
            p: f64,
            training: Training,
        }

        impl $layer {
            /// With this probability, which [`Default`] takes to be 0.5. One that is none is an
            /// error at the first call.
            pub fn new(p: f64) -> Self {
                $layer {
                    p,
                    training: Training::new(),
                }
            }

            #[doc = concat!("See [`functional::", stringify!($function), "`].")]
            ///
            /// # Errors
            /// As the function.
            #[track_caller]
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                functional::$function(input, self.p, self.training.get())
            }
        }

        impl Default for $layer {
            fn default() -> Self {
                $layer::new(0.5)
            }
        }
    )*};
}

dropouts! {
    /// Sets elements to 0 in training, each with probability `p`, and scales the others by
    /// `1 / (1 - p)` ([Srivastava et al. 2014](https://jmlr.org/papers/v15/srivastava14a.html)). In
    /// evaluation it changes nothing.
    Dropout dropout;
    /// [`Dropout`] of whole channels of `[batch, channels, length]`.
    Dropout1d dropout1d;
    /// [`Dropout`] of whole channels of `[batch, channels, height, width]`
    /// ([Tompson et al. 2015](https://arxiv.org/abs/1411.4280)).
    Dropout2d dropout2d;
    /// [`Dropout`] of whole channels of `[batch, channels, depth, height, width]`.
    Dropout3d dropout3d;
    /// Dropout that keeps mean and variance, for [`Selu`](crate::Selu)
    /// ([Klambauer et al. 2017](https://arxiv.org/abs/1706.02515)).
    AlphaDropout alpha_dropout;
}
