//! What modules compute, as functions: PyTorch's `torch.nn.functional`.

mod attention;
mod linear;
mod loss;
mod norm;

pub use attention::{AttentionOptions, scaled_dot_product_attention};
pub use linear::linear;
pub use loss::{CrossEntropyOptions, NllLossOptions, Reduction, cross_entropy, nll_loss};
pub use norm::{
    BatchNormOptions, InstanceNormOptions, batch_norm, group_norm, instance_norm, layer_norm,
    rms_norm,
};

use xla_core::{DType, Error, Result};
use xla_lazy::Tensor;

/// The dtype that sums over many elements are kept in: half precision is added up in `f32`.
fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// An error unless the tensor is of a floating-point dtype.
fn floating(op: &'static str, what: &str, tensor: &Tensor) -> Result<()> {
    if tensor.dtype().is_float() {
        return Ok(());
    }
    Err(Error::dtype(
        op,
        format!("{what} of a floating-point dtype"),
        tensor.dtype(),
    ))
}
