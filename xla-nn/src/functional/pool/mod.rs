//! Pooling.

mod adaptive;
mod avg;
mod max;

pub use adaptive::{
    OutputSize, adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d, adaptive_max_pool1d,
    adaptive_max_pool1d_with_indices, adaptive_max_pool2d, adaptive_max_pool2d_with_indices,
    adaptive_max_pool3d, adaptive_max_pool3d_with_indices,
};
pub use avg::{AvgPoolOptions, avg_pool1d, avg_pool2d, avg_pool3d};
pub use max::{
    MaxPoolOptions, max_pool1d, max_pool1d_with_indices, max_pool2d, max_pool2d_with_indices,
    max_pool3d, max_pool3d_with_indices,
};

pub(super) use adaptive::adaptive_avg;

use super::window::{LIMIT, PerAxis, Window, covered};
use std::borrow::Cow;
use xla_core::{Dims, Error, Result, Shape};
use xla_lazy::Tensor;
use xla_lazy::autocast::full;
use xla_lazy::stablehlo::Value;

/// What all pooling operators have in common.
struct PoolOptions<'a> {
    stride: Option<&'a PerAxis>,
    padding: &'a PerAxis,
    dilation: &'a PerAxis,
    ceil_mode: bool,
}

/// Under autocast pooling over three axes computes in `f32`.
fn cast<const N: usize>(input: &Tensor) -> Result<Cow<'_, Tensor>> {
    match N {
        3 => full(input),
        _ => Ok(Cow::Borrowed(input)),
    }
}

/// The windows of a pooling operator over the spatial axes of a batch, by PyTorch's rules.
fn windows<const N: usize>(
    op: &'static str,
    input: &Tensor,
    kernel: &PerAxis,
    options: PoolOptions<'_>,
) -> Result<Window> {
    let kernel = kernel.resolve(op, "kernel_size", N, 1)?;
    let stride = match options.stride {
        Some(stride) => stride.resolve(op, "stride", N, 1)?,
        None => kernel.clone(),
    };
    let low = options.padding.resolve(op, "padding", N, 0)?;
    let dilation = options.dilation.resolve(op, "dilation", N, 1)?;
    let sizes = Dims::from(&input.dims()[input.rank() - N..]);
    let mut output = Dims::new();
    for i in 0..N {
        let reach = covered(kernel[i], dilation[i]);
        if low[i] > reach / 2 {
            let expected = format!("at most half of the kernel's {reach} elements");
            return Err(Error::argument(op, "padding", expected, low[i]));
        }
        let room = sizes[i].saturating_add(2 * low[i]);
        if reach > room || room >= LIMIT {
            let expected = format!(
                "an input whose spatial axis {i}, padded by {}, holds a window of {reach} elements",
                low[i]
            );
            return Err(Error::shape(op, expected, input.shape()));
        }
        let mut count = (room - reach) / stride[i] + 1;
        // A further window must begin in the input or the padding before it, or it sees nothing.
        let more = !(room - reach).is_multiple_of(stride[i]);
        if options.ceil_mode && more && count * stride[i] < sizes[i] + low[i] {
            count += 1;
        }
        output.push(count);
    }
    Ok(Window {
        input: sizes,
        output,
        kernel,
        stride,
        low,
        dilation,
    })
}

/// Where spatial axis `axis` is in `x`, whose channels are last.
fn place_in(window: &Window, x: Value, axis: usize) -> (usize, usize) {
    (axis, window.place_of(x, axis) - 1)
}

/// The leading axes of `shape`, and these spatial ones.
fn with_spatial(shape: &Shape, spatial: &[usize]) -> Shape {
    let lead = shape.rank() - spatial.len();
    let mut dims = Dims::from(&shape[..lead]);
    dims.extend_from_slice(spatial);
    Shape::from(dims)
}
