//! Average pooling.

use super::{PoolOptions, cast, place_in, windows, with_spatial};
use crate::functional::accumulator;
use crate::functional::window::{PerAxis, Window, batched};
use std::panic::Location;
use xla_core::{DType, Error, Result, Shape};
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, record_op, ty};

/// The arguments of [`avg_pool2d`] and its siblings beside input and kernel size.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AvgPoolOptions {
    /// Distance between two windows; the kernel size where `None`.
    pub stride: Option<PerAxis>,
    /// Zeros around the input, at most half of the kernel; 0.
    pub padding: PerAxis,
    /// Whether a last window may reach beyond the input and its padding.
    pub ceil_mode: bool,
    /// Whether the zeros around the input count as elements; they do by default.
    pub count_include_pad: bool,
    /// What sums are divided by, in place of the number of elements.
    pub divisor_override: Option<i64>,
}

impl Default for AvgPoolOptions {
    fn default() -> Self {
        AvgPoolOptions {
            stride: None,
            padding: 0.into(),
            ceil_mode: false,
            count_include_pad: true,
            divisor_override: None,
        }
    }
}

/// What a window's sum is divided by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Divisor {
    /// The number of its elements in the input and the padding around it.
    Padded,
    /// The number of its elements in the input.
    Inside,
    /// This.
    Given(i64),
}

/// The mean of each window, or the adjoint. One axis is done after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct AvgPool<const ADJOINT: bool> {
    window: Window,
    divisor: Divisor,
}

impl<const ADJOINT: bool> AvgPool<ADJOINT> {
    /// How many elements of the windows along one axis count.
    fn counts(&self, axis: usize, padded: bool) -> Vec<i64> {
        let w = &self.window;
        let (low, input) = (w.low[axis] as i64, w.input[axis] as i64);
        let (first, last) = if padded {
            (-low, input + low)
        } else {
            (0, input)
        };
        (0..w.output[axis])
            .map(|o| {
                let start = (o * w.stride[axis]) as i64 - low;
                let end = start + w.kernel[axis] as i64;
                end.min(last) - start.max(first)
            })
            .collect()
    }

    fn divide(&self, f: &mut Func, sums: Value) -> Value {
        let padded = match self.divisor {
            Divisor::Given(by) => {
                let by = f.constant_int(sums.dtype(), sums.shape(), by);
                return f.binary("divide", sums, by);
            }
            Divisor::Padded => true,
            Divisor::Inside => false,
        };
        let mut count = f.constant_int(sums.dtype(), sums.shape(), 1);
        for axis in 0..self.window.axes() {
            let counts = self.counts(axis, padded);
            let along = if counts.iter().all(|&n| n == counts[0]) {
                f.constant_int(sums.dtype(), sums.shape(), counts[0])
            } else {
                let counts = f.constant_indices(&counts);
                let counts = f.convert(counts, sums.dtype());
                f.broadcast_in_dim(
                    counts,
                    sums.shape(),
                    &[place_in(&self.window, sums, axis).1],
                )
            };
            count = f.binary("multiply", count, along);
        }
        f.binary("divide", sums, count)
    }

    fn sum(&self, f: &mut Func, x: Value) -> Value {
        let axes = (0..self.window.axes()).rev();
        axes.fold(x, |x, axis| {
            let zero = f.constant(x.dtype(), &Shape::scalar(), 0.0);
            let taps = self
                .window
                .taps(f, x, zero, place_in(&self.window, x, axis));
            let add = |sum: Value, &tap: &Value| f.binary("add", sum, tap);
            taps[1..].iter().fold(taps[0], add)
        })
    }

    fn spread(&self, f: &mut Func, g: Value) -> Value {
        let w = &self.window;
        (0..w.axes()).fold(g, |g, axis| {
            let place = place_in(w, g, axis);
            if let Some(tiled) = w.tiled(f, g, place) {
                return w.untiled(f, tiled, place.1);
            }
            let taps = vec![g; w.kernel[axis]];
            w.untaps(f, &taps, place).unwrap_or(g)
        })
    }
}

impl<const ADJOINT: bool> Operator for AvgPool<ADJOINT> {
    const NAME: &'static str = if ADJOINT {
        "avg_pool_spread"
    } else {
        "avg_pool"
    };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let (window, divisor) = (op.window.clone(), op.divisor);
            let g = [vjp.grad().into()];
            vjp.only(if ADJOINT {
                record_op(AvgPool::<false> { window, divisor }, &g)
            } else {
                record_op(AvgPool::<true> { window, divisor }, &g)
            })
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let spatial = if ADJOINT {
            &self.window.input
        } else {
            &self.window.output
        };
        Ok(ty(x.dtype(), &with_spatial(x.shape(), spatial)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        if out.shape().numel() == 0 {
            return Ok(f.constant(out.dtype(), out.shape(), 0.0));
        }
        let x = self.window.channels_last(f, inputs[0]);
        let x = f.convert(x, accumulator(out.dtype()));
        let y = if ADJOINT {
            let shares = self.divide(f, x);
            self.spread(f, shares)
        } else {
            let sums = self.sum(f, x);
            self.divide(f, sums)
        };
        let y = f.convert(y, out.dtype());
        Ok(self.window.channels_first(f, y))
    }
}

#[track_caller]
pub(super) fn avg_pool<const N: usize>(
    op: &'static str,
    input: &Tensor,
    kernel: &PerAxis,
    options: &AvgPoolOptions,
) -> Result<Tensor> {
    let input = &*cast::<N>(input)?;
    batched::<N>(op, input)?;
    if !(input.dtype().is_float() || input.dtype() == DType::I64) {
        let expected = "a floating-point dtype or i64";
        return Err(Error::dtype(op, expected, input.dtype()));
    }
    let dilation = 1.into();
    let pool = PoolOptions {
        stride: options.stride.as_ref(),
        padding: &options.padding,
        dilation: &dilation,
        ceil_mode: options.ceil_mode,
    };
    let window = windows::<N>(op, input, kernel, pool)?;
    let divisor = match options.divisor_override {
        Some(0) => {
            let expected = "a number other than 0";
            return Err(Error::argument(op, "divisor_override", expected, 0));
        }
        Some(by) => Divisor::Given(by),
        None if options.count_include_pad => Divisor::Padded,
        None => Divisor::Inside,
    };
    record_op(AvgPool::<false> { window, divisor }, &[input.into()])
}

macro_rules! avg_pools {
    ($($(#[$doc:meta])* $name:ident: $axes:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// Half precision is summed in `f32`; `i64` is divided toward 0. As in PyTorch, an input
        /// without the batch axis gives an output without it.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`] for another rank or an input smaller than a window;
        /// [`Error::Argument`] for a kernel, stride or divisor of 0, or a padding that is negative
        /// or more than half of the kernel; [`Error::DTypeMismatch`] for a dtype that is neither
        /// floating-point nor `i64`.
        #[track_caller]
        pub fn $name(
            input: &Tensor,
            kernel_size: impl Into<PerAxis>,
            options: AvgPoolOptions,
        ) -> Result<Tensor> {
            let here = Location::caller();
            avg_pool::<$axes>(stringify!($name), input, &kernel_size.into(), &options)
                .map_err(|e| e.at(here))
        }
    )*};
}

avg_pools! {
    /// The mean of each window of `[batch, channels, length]`.
    avg_pool1d: 1;

    /// The mean of each window of `[batch, channels, height, width]`.
    avg_pool2d: 2;

    /// The mean of each window of `[batch, channels, depth, height, width]`.
    avg_pool3d: 3;
}
