//! Convolutions: operations that move a window over the axes between batch and features.

use super::func::{Func, Value};
use crate::ty::ty;
use xla_core::{Dims, Shape};

/// How [`Func::convolution`] moves its window; each list has one entry a spatial axis.
#[derive(Debug, Clone, Copy)]
pub struct ConvolutionWindow<'a> {
    /// Distance between two positions of the window.
    pub stride: &'a [usize],
    /// Zeros before the first element; cropped where negative.
    pub low: &'a [i64],
    /// Zeros after the last element; cropped where negative.
    pub high: &'a [i64],
    /// Distance of the input's elements, with zeros between them.
    pub input_dilation: &'a [usize],
    /// Distance of the elements that the window covers.
    pub kernel_dilation: &'a [usize],
    /// Into how many independent groups the features are divided.
    pub groups: usize,
}

impl Func {
    /// The convolution (in truth the correlation) of `x`, `[batch, spatial.., features]`, with
    /// `kernel`, `[spatial.., features / groups, out features]`: `[batch, spatial.., out features]`.
    /// With the features last, no compiler has to move them.
    pub fn convolution(&mut self, x: Value, kernel: Value, window: ConvolutionWindow<'_>) -> Value {
        let axes = window.stride.len();
        let mut dims = Dims::from_slice(&x.shape()[..1]);
        for i in 0..axes {
            let spread = |n: usize, by: usize| (n.max(1) - 1) * by + 1;
            let input = spread(x.shape()[i + 1], window.input_dilation[i]) as i64;
            let covered = spread(kernel.shape()[i], window.kernel_dilation[i]) as i64;
            let room = (input + window.low[i] + window.high[i] - covered).max(0) as usize;
            dims.push(room / window.stride[i] + 1);
        }
        dims.push(kernel.shape()[axes + 1]);
        let out = ty(x.dtype(), &Shape::from(dims));
        let spatial: String = (0..axes).map(|i| format!("{i}, ")).collect();
        let data = format!("[b, {spatial}f]");
        let pads = window.low.iter().zip(window.high);
        let pads: Vec<[i64; 2]> = pads.map(|(&low, &high)| [low, high]).collect();
        let precision = match self.precision().stablehlo() {
            Some(name) => format!(
                ", precision_config = [#stablehlo<precision {name}>, #stablehlo<precision {name}>]"
            ),
            None => String::new(),
        };
        self.call(
            format_args!(
                "stablehlo.convolution({x}, {kernel}) dim_numbers = {data}x[{spatial}i, o]->{data}, window = {{stride = {:?}, pad = {pads:?}, lhs_dilate = {:?}, rhs_dilate = {:?}}} {{batch_group_count = 1 : i64, feature_group_count = {} : i64{precision}}}",
                window.stride, window.input_dilation, window.kernel_dilation, window.groups
            ),
            &[x, kernel],
            out,
        )
    }
}
