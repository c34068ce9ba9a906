//! Pooling.

use super::at_users_line;
use crate::functional::{self, AvgPoolOptions, MaxPoolOptions, OutputSize, PerAxis};
use crate::{Forward, Module};
use std::panic::Location;
use xla_core::Result;
use xla_lazy::Tensor;

/// The largest elements of windows over `D` axes: [`MaxPool1d`], [`MaxPool2d`], [`MaxPool3d`].
///
/// ```no_run
/// use xla_lazy::Tensor;
/// use xla_nn::MaxPool2d;
/// let pool = MaxPool2d::new(3).stride(2).padding(1);
/// assert_eq!(pool.forward(&Tensor::zeros([8, 64, 112, 112], ())?)?.dims(), [8, 64, 56, 56]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Clone, Module, Forward)]
pub struct MaxPool<const D: usize> {
    #[module(skip)]
    kernel: PerAxis,
    #[module(skip)]
    options: MaxPoolOptions,
}

/// Over `[batch, channels, length]`.
pub type MaxPool1d = MaxPool<1>;
/// Over `[batch, channels, height, width]`.
pub type MaxPool2d = MaxPool<2>;
/// Over `[batch, channels, depth, height, width]`.
pub type MaxPool3d = MaxPool<3>;

impl<const D: usize> MaxPool<D> {
    /// With windows of this size: one number for all axes, or one for each.
    pub fn new(kernel: impl Into<PerAxis>) -> Self {
        MaxPool {
            kernel: kernel.into(),
            options: MaxPoolOptions::default(),
        }
    }

    /// Distance between two windows: the kernel's size unless set.
    #[must_use]
    pub fn stride(mut self, stride: impl Into<PerAxis>) -> Self {
        self.options.stride = Some(stride.into());
        self
    }

    /// Elements less than any other around the input: 0 unless set.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<PerAxis>) -> Self {
        self.options.padding = padding.into();
        self
    }

    /// Distance of the elements in a window: 1 unless set.
    #[must_use]
    pub fn dilation(mut self, dilation: impl Into<PerAxis>) -> Self {
        self.options.dilation = dilation.into();
        self
    }

    /// Whether a last window may reach beyond the input: false unless set.
    #[must_use]
    pub fn ceil_mode(mut self, ceil_mode: bool) -> Self {
        self.options.ceil_mode = ceil_mode;
        self
    }

    /// From `[batch, channels, ..]` to the same with shorter axes; the batch axis may be absent.
    ///
    /// # Errors
    /// [`xla_core::Error::ShapeMismatch`] for another rank or an input smaller than a window,
    /// [`xla_core::Error::Argument`] for options without meaning.
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let pool = match D {
            1 => functional::max_pool1d,
            2 => functional::max_pool2d,
            _ => functional::max_pool3d,
        };
        // A function's address does not tell it the caller.
        let here = Location::caller();
        pool(input, self.kernel.clone(), self.options.clone())
            .map_err(|error| at_users_line(error, here))
    }
}

/// The means of windows over `D` axes: [`AvgPool1d`], [`AvgPool2d`], [`AvgPool3d`].
#[derive(Debug, Clone, Module, Forward)]
pub struct AvgPool<const D: usize> {
    #[module(skip)]
    kernel: PerAxis,
    #[module(skip)]
    options: AvgPoolOptions,
}

/// Over `[batch, channels, length]`.
pub type AvgPool1d = AvgPool<1>;
/// Over `[batch, channels, height, width]`.
pub type AvgPool2d = AvgPool<2>;
/// Over `[batch, channels, depth, height, width]`.
pub type AvgPool3d = AvgPool<3>;

impl<const D: usize> AvgPool<D> {
    /// With windows of this size: one number for all axes, or one for each.
    pub fn new(kernel: impl Into<PerAxis>) -> Self {
        AvgPool {
            kernel: kernel.into(),
            options: AvgPoolOptions::default(),
        }
    }

    /// Distance between two windows: the kernel's size unless set.
    #[must_use]
    pub fn stride(mut self, stride: impl Into<PerAxis>) -> Self {
        self.options.stride = Some(stride.into());
        self
    }

    /// Zeros around the input: 0 unless set.
    #[must_use]
    pub fn padding(mut self, padding: impl Into<PerAxis>) -> Self {
        self.options.padding = padding.into();
        self
    }

    /// Whether a last window may reach beyond the input: false unless set.
    #[must_use]
    pub fn ceil_mode(mut self, ceil_mode: bool) -> Self {
        self.options.ceil_mode = ceil_mode;
        self
    }

    /// Whether the zeros around the input count in the means: true unless set.
    #[must_use]
    pub fn count_include_pad(mut self, count_include_pad: bool) -> Self {
        self.options.count_include_pad = count_include_pad;
        self
    }

    /// From `[batch, channels, ..]` to the same with shorter axes; the batch axis may be absent.
    ///
    /// # Errors
    /// As [`MaxPool::forward`].
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let pool = match D {
            1 => functional::avg_pool1d,
            2 => functional::avg_pool2d,
            _ => functional::avg_pool3d,
        };
        let here = Location::caller();
        pool(input, self.kernel.clone(), self.options.clone())
            .map_err(|error| at_users_line(error, here))
    }
}

macro_rules! adaptive {
    ($(#[$doc:meta])* $layer:ident [$one:ident $two:ident $three:ident] $f1:ident $f2:ident $f3:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Module, Forward)]
        pub struct $layer<const D: usize> {
            #[module(skip)]
            output_size: OutputSize,
        }

        /// To `[batch, channels, length]`.
        pub type $one = $layer<1>;
        /// To `[batch, channels, height, width]`.
        pub type $two = $layer<2>;
        /// To `[batch, channels, depth, height, width]`.
        pub type $three = $layer<3>;

        impl<const D: usize> $layer<D> {
            /// Into so many parts: one number for all axes, or one for each.
            pub fn new(output_size: impl Into<OutputSize>) -> Self {
                $layer {
                    output_size: output_size.into(),
                }
            }

            /// From `[batch, channels, ..]` to axes of the output's size; the batch axis may be
            /// absent.
            ///
            /// # Errors
            /// [`xla_core::Error::ShapeMismatch`] for another rank or an empty axis.
            #[track_caller]
            pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
                let pool = match D {
                    1 => functional::$f1,
                    2 => functional::$f2,
                    _ => functional::$f3,
                };
                let here = Location::caller();
                pool(input, self.output_size.clone()).map_err(|error| at_users_line(error, here))
            }
        }
    };
}

adaptive! {
    /// The means of as many parts of each axis as the output is to have.
    AdaptiveAvgPool [AdaptiveAvgPool1d AdaptiveAvgPool2d AdaptiveAvgPool3d]
    adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
}

adaptive! {
    /// The largest elements of as many parts of each axis as the output is to have.
    AdaptiveMaxPool [AdaptiveMaxPool1d AdaptiveMaxPool2d AdaptiveMaxPool3d]
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d
}
