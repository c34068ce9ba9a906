//! Max pooling.

use super::{PoolOptions, cast, place_in, windows, with_spatial};
use crate::functional::window::{PerAxis, Window, batched};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};
use xla_lazy::stablehlo::{Compare, Func, Reduction, Value};
use xla_lazy::{Derivative, Gradients, InputType, Operator, Saves, Tensor, Ty, record_op, ty};

/// The arguments of [`max_pool2d`] and its siblings beside input and kernel size.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MaxPoolOptions {
    /// Distance between two windows; the kernel size where `None`.
    pub stride: Option<PerAxis>,
    /// Elements less than any other around the input, at most half of the kernel; 0.
    pub padding: PerAxis,
    /// Distance of the elements in a window; 1.
    pub dilation: PerAxis,
    /// Whether a last window may reach beyond the input.
    pub ceil_mode: bool,
}

impl Default for MaxPoolOptions {
    fn default() -> Self {
        MaxPoolOptions {
            stride: None,
            padding: 0.into(),
            dilation: 1.into(),
            ceil_mode: false,
        }
    }
}

/// The largest element of each window. Windows are products of intervals, so one axis is done after
/// the other, the last first. All is done with the channels last.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MaxPool(Window);

/// From `(x, g)`: each element of `g` at the place in `x` of its window's largest element. The
/// adjoint of [`MaxPoolPick`].
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MaxPoolPlace(Window);

/// From `(x, h)`: what `h`, of `x`'s shape, holds at the place of each window's largest element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct MaxPoolPick(pub(super) Window);

/// The place, in the flattened spatial axes, of each window's largest element.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MaxPoolIndices(Window);

/// The largest of the taps.
fn largest(f: &mut Func, taps: &[Value]) -> Value {
    let combine = |best: Value, &tap: &Value| f.binary("maximum", best, tap);
    taps[1..].iter().fold(taps[0], combine)
}

impl Window {
    /// What [`Window::taps`] gives for `x`, with the least value as padding.
    fn max_taps(&self, f: &mut Func, x: Value, axis: usize) -> Vec<Value> {
        let least = f.identity(Reduction::Max, x.dtype());
        self.taps(f, x, least, place_in(self, x, axis))
    }

    /// Which tap holds the largest element of each window along one axis, `i32`: the first of equal
    /// ones, the last NaN where there are any, never padding.
    fn max_position(&self, f: &mut Func, taps: &[Value], axis: usize) -> Value {
        let shape = taps[0].shape();
        let mut best = taps[0];
        let mut position = f.constant_int(DType::I32, shape, 0);
        for (k, &tap) in taps.iter().enumerate().skip(1) {
            let mut better = f.compare(Compare::Gt, tap, best);
            if tap.dtype().is_float() {
                let nan = f.compare(Compare::Ne, tap, tap);
                better = f.binary("or", better, nan);
            }
            let here = f.constant_int(DType::I32, shape, k as i64);
            position = f.select(better, here, position);
            best = f.select(better, tap, best);
        }
        // Padding is found only before elements that are all as little as it is.
        if self.low[axis] > 0 {
            let first: Vec<i64> = (0..self.output[axis])
                .map(|o| {
                    let outside = self.low[axis].saturating_sub(o * self.stride[axis]);
                    outside.div_ceil(self.dilation[axis]) as i64
                })
                .collect();
            let first = f.constant_indices(&first);
            let first = f.convert(first, DType::I32);
            let (_, at) = place_in(self, position, axis);
            let first = f.broadcast_in_dim(first, shape, &[at]);
            position = f.binary("maximum", position, first);
        }
        position
    }

    /// The positions along each axis, that of the first axis first.
    fn max_positions(&self, f: &mut Func, x: Value) -> Vec<Value> {
        let mut x = x;
        let mut all = Vec::new();
        for axis in (0..self.axes()).rev() {
            let taps = self.max_taps(f, x, axis);
            all.insert(0, self.max_position(f, &taps, axis));
            x = largest(f, &taps);
        }
        all
    }

    /// What `h` holds at these positions.
    fn pick(&self, f: &mut Func, h: Value, positions: &[Value]) -> Value {
        let mut h = h;
        for axis in (0..self.axes()).rev() {
            let zero = f.constant(h.dtype(), &Shape::scalar(), 0.0);
            let taps = self.taps(f, h, zero, place_in(self, h, axis));
            let mut picked = taps[0];
            for (k, &tap) in taps.iter().enumerate().skip(1) {
                let here = f.constant_int(DType::I32, tap.shape(), k as i64);
                let here = f.compare(Compare::Eq, positions[axis], here);
                picked = f.select(here, tap, picked);
            }
            h = picked;
        }
        h
    }

    /// `g` at these positions, zero elsewhere.
    fn place(&self, f: &mut Func, g: Value, positions: &[Value]) -> Value {
        let mut g = g;
        for (axis, &position) in positions.iter().enumerate() {
            let place = place_in(self, g, axis);
            let tiled = [g, position].map(|x| self.tiled(f, x, place));
            if let [Some(wide), Some(position)] = tiled {
                let here = f.iota(DType::I32, wide.shape(), place.1 + 1);
                let here = f.compare(Compare::Eq, position, here);
                let zero = f.constant(g.dtype(), wide.shape(), 0.0);
                let placed = f.select(here, wide, zero);
                g = self.untiled(f, placed, place.1);
                continue;
            }
            let zero = f.constant(g.dtype(), g.shape(), 0.0);
            let taps: Vec<Value> = (0..self.kernel[axis])
                .map(|k| {
                    let here = f.constant_int(DType::I32, g.shape(), k as i64);
                    let here = f.compare(Compare::Eq, position, here);
                    f.select(here, g, zero)
                })
                .collect();
            g = self.untaps(f, &taps, place).unwrap_or(g);
        }
        g
    }
}

impl Operator for MaxPool {
    const NAME: &'static str = "max_pool";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |op, vjp| {
            let place = MaxPoolPlace(op.0.clone());
            vjp.only(record_op(place, &[vjp.input(0)?.into(), vjp.grad().into()]))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        Ok(ty(x.dtype(), &with_spatial(x.shape(), &self.0.output)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        if out.shape().numel() == 0 {
            return Ok(f.constant(out.dtype(), out.shape(), 0.0));
        }
        let x = self.0.channels_last(f, inputs[0]);
        let y = (0..self.0.axes()).rev().fold(x, |x, axis| {
            let taps = self.0.max_taps(f, x, axis);
            largest(f, &taps)
        });
        Ok(self.0.channels_first(f, y))
    }
}

impl Operator for MaxPoolPlace {
    const NAME: &'static str = "max_pool_place";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(0),
        rule: |op, vjp| {
            let pick = MaxPoolPick(op.0.clone());
            let picked = record_op(pick, &[vjp.input(0)?.into(), vjp.grad().into()])?;
            Ok(Gradients::from_iter([None, Some(picked)]))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        if inputs[1].shape().numel() == 0 {
            return Ok(f.constant(out.dtype(), out.shape(), 0.0));
        }
        let [x, g] = [0, 1].map(|i| self.0.channels_last(f, inputs[i]));
        let positions = self.0.max_positions(f, x);
        let placed = self.0.place(f, g, &positions);
        Ok(self.0.channels_first(f, placed))
    }
}

impl Operator for MaxPoolPick {
    const NAME: &'static str = "max_pool_pick";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(0),
        rule: |op, vjp| {
            let place = MaxPoolPlace(op.0.clone());
            let placed = record_op(place, &[vjp.input(0)?.into(), vjp.grad().into()])?;
            Ok(Gradients::from_iter([None, Some(placed)]))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let (x, h) = (inputs[0].tensor(Self::NAME)?, inputs[1].tensor(Self::NAME)?);
        Ok(ty(h.dtype(), &with_spatial(x.shape(), &self.0.output)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        if out.shape().numel() == 0 {
            return Ok(f.constant(out.dtype(), out.shape(), 0.0));
        }
        let [x, h] = [0, 1].map(|i| self.0.channels_last(f, inputs[i]));
        let positions = self.0.max_positions(f, x);
        let picked = self.0.pick(f, h, &positions);
        Ok(self.0.channels_first(f, picked))
    }
}

impl Operator for MaxPoolIndices {
    const NAME: &'static str = "max_pool_indices";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        Ok(ty(DType::I64, &with_spatial(x.shape(), &self.0.output)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        if out.shape().numel() == 0 {
            return Ok(f.constant(out.dtype(), out.shape(), 0.0));
        }
        let x = self.0.channels_last(f, inputs[0]);
        let positions = self.0.max_positions(f, x);
        let flat: usize = self.0.input.iter().product();
        let places = f.iota(DType::I64, &Shape::new(&[flat]), 0);
        let places = f.reshape(places, &Shape::new(&self.0.input));
        let axes: Dims = (0..self.0.axes())
            .map(|axis| place_in(&self.0, x, axis).1)
            .collect();
        let places = f.broadcast_in_dim(places, x.shape(), &axes);
        let picked = self.0.pick(f, places, &positions);
        Ok(self.0.channels_first(f, picked))
    }
}

#[track_caller]
pub(super) fn max_pool<const N: usize>(
    op: &'static str,
    input: &Tensor,
    kernel: &PerAxis,
    options: &MaxPoolOptions,
) -> Result<(Tensor, Window)> {
    let input = &*cast::<N>(input)?;
    batched::<N>(op, input)?;
    if input.dtype() == DType::Bool {
        let expected = "an integer or floating-point dtype";
        return Err(Error::dtype(op, expected, input.dtype()));
    }
    let pool = PoolOptions {
        stride: options.stride.as_ref(),
        padding: &options.padding,
        dilation: &options.dilation,
        ceil_mode: options.ceil_mode,
    };
    let window = windows::<N>(op, input, kernel, pool)?;
    let pooled = record_op(MaxPool(window.clone()), &[input.into()])?;
    Ok((pooled, window))
}

macro_rules! max_pools {
    ($($(#[$doc:meta])* $name:ident $with_indices:ident: $axes:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// NaN where a window holds one; the gradient goes to the first of equal elements. As in
        /// PyTorch, an input without the batch axis gives an output without it.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`] for another rank or an input smaller than a window;
        /// [`Error::Argument`] for a kernel, stride or dilation of 0, or a padding that is negative
        /// or more than half of the kernel; [`Error::DTypeMismatch`] for `bool`.
        #[track_caller]
        pub fn $name(
            input: &Tensor,
            kernel_size: impl Into<PerAxis>,
            options: MaxPoolOptions,
        ) -> Result<Tensor> {
            let here = Location::caller();
            max_pool::<$axes>(stringify!($name), input, &kernel_size.into(), &options)
                .map(|(pooled, _)| pooled)
                .map_err(|e| e.at(here))
        }

        #[doc = concat!("[`", stringify!($name), "`] and, as `i64`, the places of the elements")]
        /// taken, in the flattened spatial axes of the input.
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($name), "`].")]
        #[track_caller]
        pub fn $with_indices(
            input: &Tensor,
            kernel_size: impl Into<PerAxis>,
            options: MaxPoolOptions,
        ) -> Result<(Tensor, Tensor)> {
            let here = Location::caller();
            let (pooled, window) =
                max_pool::<$axes>(stringify!($name), input, &kernel_size.into(), &options)
                    .map_err(|e| e.at(here))?;
            let indices = record_op(MaxPoolIndices(window), &[input.into()])?;
            Ok((pooled, indices))
        }
    )*};
}

max_pools! {
    /// The largest element of each window of `[batch, channels, length]`.
    max_pool1d max_pool1d_with_indices: 1;

    /// The largest element of each window of `[batch, channels, height, width]`.
    max_pool2d max_pool2d_with_indices: 2;

    /// The largest element of each window of `[batch, channels, depth, height, width]`.
    max_pool3d max_pool3d_with_indices: 3;
}
