//! Pooling.

use super::at_users_line;
use crate::functional::{self, MaxPoolOptions, PerAxis};
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
