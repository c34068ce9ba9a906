//! A window that moves over the spatial axes: what convolutions and pooling have in common.

use xla_core::{Dims, Error, Result, Shape};
use xla_lazy::Tensor;
use xla_lazy::stablehlo::{Func, Value};

/// One number for every spatial axis, or one for each.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PerAxis(Vec<i64>);

// Literals such as `[2, 3]` fall back to `i32`, lengths that a program computes are `usize`, and
// PyTorch's own are `i64`.
macro_rules! per_axis {
    ($($t:ty),*) => {$(
        impl From<$t> for PerAxis {
            fn from(value: $t) -> Self { PerAxis(vec![value as i64]) }
        }
        impl<const N: usize> From<[$t; N]> for PerAxis {
            fn from(values: [$t; N]) -> Self { values.as_slice().into() }
        }
        impl From<&[$t]> for PerAxis {
            fn from(values: &[$t]) -> Self { PerAxis(values.iter().map(|&v| v as i64).collect()) }
        }
        impl From<Vec<$t>> for PerAxis {
            fn from(values: Vec<$t>) -> Self { values.as_slice().into() }
        }
    )*};
}

per_axis!(i32, i64, usize);

impl PerAxis {
    /// The numbers for `axes` axes, each at least `least`.
    pub(crate) fn resolve(
        &self,
        op: &'static str,
        argument: &'static str,
        axes: usize,
        least: usize,
    ) -> Result<Dims> {
        let unfit = || {
            let expected = format!("one number or {axes}, of at least {least}");
            Error::argument(op, argument, expected, format!("{:?}", self.0))
        };
        let fit = |&v: &i64| usize::try_from(v).ok().filter(|&v| v >= least && v < LIMIT);
        let values: Option<Dims> = self.0.iter().map(fit).collect();
        match values.ok_or_else(unfit)? {
            values if values.len() == axes => Ok(values),
            values if values.len() == 1 => Ok((0..axes).map(|_| values[0]).collect()),
            _ => Err(unfit()),
        }
    }
}

/// Beyond any length of an axis, and far from where sums and products of two such overflow `i64`.
pub(super) const LIMIT: usize = 1 << 30;

/// Where the windows lie on the spatial axes. Output `o` sees, as element `k` of its window, the
/// input's element `o * stride + k * dilation - low`, or padding where there is none.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Window {
    pub input: Dims,
    pub output: Dims,
    pub kernel: Dims,
    pub stride: Dims,
    pub low: Dims,
    pub dilation: Dims,
}

impl Window {
    /// Number of spatial axes.
    pub(super) fn axes(&self) -> usize {
        self.kernel.len()
    }

    /// From the first to after the last element of a window, on this axis.
    pub(super) fn covered(&self, axis: usize) -> usize {
        covered(self.kernel[axis], self.dilation[axis])
    }

    /// How far before the first element the windows begin.
    pub(super) fn before(&self) -> Vec<i64> {
        self.low.iter().map(|&n| n as i64).collect()
    }

    /// How far the last window reaches beyond the last element; negative where it does not reach it.
    pub(super) fn after(&self) -> Vec<i64> {
        (0..self.axes())
            .map(|i| {
                let reach = self.output[i].saturating_sub(1) * self.stride[i] + self.covered(i);
                reach as i64 - self.low[i] as i64 - self.input[i] as i64
            })
            .collect()
    }

    /// The axis of `x`, whose last axes are the spatial ones, that is spatial axis `axis`.
    pub(super) fn place_of(&self, x: Value, axis: usize) -> usize {
        x.shape().rank() - self.axes() + axis
    }

    /// `[.., channels, spatial..]` with the channels last. Neighbours in memory then are alike in
    /// what a window does with them, so that compilers take several at once, and convolutions want
    /// them there too.
    pub(super) fn channels_last(&self, f: &mut Func, x: Value) -> Value {
        let (channels, rank) = (self.place_of(x, 0) - 1, x.shape().rank());
        let axes: Dims = (0..channels)
            .chain(channels + 1..rank)
            .chain([channels])
            .collect();
        f.transpose(x, &axes)
    }

    /// The inverse of [`Window::channels_last`].
    pub(super) fn channels_first(&self, f: &mut Func, x: Value) -> Value {
        let (channels, last) = (self.place_of(x, 0) - 1, x.shape().rank() - 1);
        let axes: Dims = (0..channels).chain([last]).chain(channels..last).collect();
        f.transpose(x, &axes)
    }

    /// `x` with `value` around it so that every window lies inside, on spatial axis `axis`, which is
    /// axis `at` of `x`.
    fn padded(&self, f: &mut Func, x: Value, value: Value, axis: usize, at: usize) -> Value {
        let rank = x.shape().rank();
        let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
        low[at] = self.before()[axis];
        high[at] = self.after()[axis];
        if low[at] == 0 && high[at] == 0 {
            return x;
        }
        f.pad(x, value, &low, &high, &vec![0; rank])
    }

    /// What the windows on spatial axis `axis`, which is axis `at` of `x`, see as their first element,
    /// second, and so on; the axis has the output's length in each.
    pub(super) fn taps(
        &self,
        f: &mut Func,
        x: Value,
        padding: Value,
        (axis, at): (usize, usize),
    ) -> Vec<Value> {
        let x = self.padded(f, x, padding, axis, at);
        let rank = x.shape().rank();
        let (mut start, mut step) = (vec![0; rank], vec![1; rank]);
        let mut limit = x.shape().dims().to_vec();
        step[at] = self.stride[axis];
        (0..self.kernel[axis])
            .map(|k| {
                start[at] = k * self.dilation[axis];
                limit[at] = start[at] + (self.output[axis] - 1) * self.stride[axis] + 1;
                f.slice(x, &start, &limit, &step)
            })
            .collect()
    }

    /// The inverse of [`Window::taps`]: the sum of what the windows put on each of the input's
    /// elements.
    pub(super) fn untaps(
        &self,
        f: &mut Func,
        taps: &[Value],
        (axis, at): (usize, usize),
    ) -> Option<Value> {
        let mut sum = None;
        for (k, &tap) in taps.iter().enumerate() {
            let rank = tap.shape().rank();
            let (mut low, mut high, mut interior) = (vec![0; rank], vec![0; rank], vec![0; rank]);
            low[at] = (k * self.dilation[axis]) as i64 - self.low[axis] as i64;
            interior[at] = self.stride[axis] as i64 - 1;
            let spread = (self.output[axis] - 1) * self.stride[axis] + 1;
            high[at] = self.input[axis] as i64 - spread as i64 - low[at];
            let zero = f.constant(tap.dtype(), &Shape::scalar(), 0.0);
            let placed = f.pad(tap, zero, &low, &high, &interior);
            sum = Some(match sum {
                Some(sum) => f.binary("add", sum, placed),
                None => placed,
            });
        }
        sum
    }

    /// Where the windows on spatial axis `axis` lie side by side and fill it: `x`, which has one
    /// element for each on axis `at`, with an axis for the elements of a window inserted behind that
    /// one. Both taken together are the input's axis.
    pub(super) fn tiled(
        &self,
        f: &mut Func,
        x: Value,
        (axis, at): (usize, usize),
    ) -> Option<Value> {
        let kernel = self.kernel[axis];
        let side_by_side = self.low[axis] == 0
            && self.dilation[axis] == 1
            && self.stride[axis] == kernel
            && self.output[axis] * kernel == self.input[axis];
        if !side_by_side {
            return None;
        }
        let mut dims = Dims::from(x.shape().dims());
        dims.insert(at + 1, kernel);
        let kept: Dims = (0..dims.len()).filter(|&i| i != at + 1).collect();
        Some(f.broadcast_in_dim(x, &Shape::from(dims), &kept))
    }

    /// What [`Window::tiled`] gave, with the input's axis in place of the two.
    pub(super) fn untiled(&self, f: &mut Func, x: Value, at: usize) -> Value {
        let mut dims = Dims::from(x.shape().dims());
        dims[at] *= dims.remove(at + 1);
        f.reshape(x, &Shape::from(dims))
    }
}

/// Elements from the first to the last of a kernel's `n`, inclusive.
pub(super) fn covered(n: usize, dilation: usize) -> usize {
    n.saturating_sub(1)
        .saturating_mul(dilation)
        .saturating_add(1)
}

/// The input with a batch axis, and whether it had to be added: `N` spatial axes follow the
/// channels.
pub(super) fn batched<const N: usize>(op: &'static str, input: &Tensor) -> Result<(Tensor, bool)> {
    match input.rank() {
        rank if rank == N + 2 => Ok((input.clone(), false)),
        rank if rank == N + 1 => Ok((input.unsqueeze(0)?, true)),
        _ => {
            let spatial = ["length", "height, width", "depth, height, width"][N - 1];
            let expected =
                format!("an input of shape [batch, channels, {spatial}] or [channels, {spatial}]");
            Err(Error::shape(op, expected, input.shape()))
        }
    }
}
