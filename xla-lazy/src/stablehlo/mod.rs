//! A typed builder of StableHLO text. It knows the dialect's syntax and types and nothing of
//! tensors, traces or operators.

mod constant;
mod contraction;
mod control;
mod effect;
mod func;
mod manual;
mod outline;
mod shape_ops;
mod sharding;
mod sort;
mod watch;
mod window;

pub use func::{Compare, Func, Reduction, Value};
pub(crate) use watch::{Origin, Watched};
pub use window::ConvolutionWindow;

use xla_core::{DType, Shape};

/// The dialect's name of a dtype.
pub(crate) fn element_type(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "i1",
        DType::U8 => "ui8",
        DType::U16 => "ui16",
        DType::U32 => "ui32",
        DType::U64 => "ui64",
        signed_or_float => signed_or_float.name(),
    }
}

/// `tensor<2x3xf32>`.
pub fn tensor_type(dtype: DType, shape: &Shape) -> String {
    let mut text = String::from("tensor<");
    for dim in shape.dims() {
        text.push_str(&dim.to_string());
        text.push('x');
    }
    text.push_str(element_type(dtype));
    text.push('>');
    text
}
