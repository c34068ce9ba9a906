//! Images larger and smaller.

use crate::functional::{self, InterpolateMode, InterpolateOptions, Target};
use crate::{Forward, Module};
use xla_core::Result;
use xla_lazy::Tensor;

/// Spatial axes made longer or shorter.
#[derive(Debug, Clone, Module, Forward)]
pub struct Upsample {
    #[module(skip)]
    target: Target,
    #[module(skip)]
    options: InterpolateOptions,
}

impl Upsample {
    /// To a size or by a factor, taking the nearest element.
    pub fn new(target: Target) -> Self {
        Upsample {
            target,
            options: InterpolateOptions::default(),
        }
    }

    /// How elements between the input's are made: the nearest is taken unless set.
    #[must_use]
    pub fn mode(mut self, mode: InterpolateMode) -> Self {
        self.options.mode = mode;
        self
    }

    /// Whether the corners' centres stay where they are: false unless set.
    #[must_use]
    pub fn align_corners(mut self, align_corners: bool) -> Self {
        self.options.align_corners = align_corners;
        self
    }

    /// See [`functional::interpolate`].
    ///
    /// # Errors
    /// As the function.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        functional::interpolate(input, self.target.clone(), self.options)
    }
}

macro_rules! pixels {
    ($($(#[$doc:meta])* $layer:ident $function:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Module, Forward)]
        pub struct $layer {
            factor: usize,
        }

        impl $layer {
            /// By this factor on both axes.
            pub fn new(factor: usize) -> Self {
                $layer { factor }
            }

            #[doc = concat!("See [`functional::", stringify!($function), "`].")]
            ///
            /// # Errors
            /// As the function.
            #[track_caller]
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                functional::$function(input, self.factor)
            }
        }
    )*};
}

pixels! {
    /// Channels turned into a larger image ([Shi et al. 2016](https://arxiv.org/abs/1609.05158)).
    PixelShuffle pixel_shuffle;
    /// The reverse of [`PixelShuffle`].
    PixelUnshuffle pixel_unshuffle;
}
