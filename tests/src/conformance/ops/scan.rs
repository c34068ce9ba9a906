//! Running sums, products and extremes.

use super::{Call, one};
use crate::conformance::Kwargs;
use xla::{Result, Tensor};

/// A call with PyTorch's `dtype`, which it computes in and returns: sums and products of narrow
/// integers, which are wide here, are the same after a cast.
fn typed(
    inputs: &[Tensor],
    kwargs: &Kwargs,
    call: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    one(match kwargs.dtype_or_none("dtype")? {
        Some(dtype) => call(&inputs[0].to_dtype(dtype)?)?.to_dtype(dtype),
        None => call(&inputs[0]),
    })
}

fn pair(outputs: Result<(Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    outputs.map(|(values, indices)| vec![values, indices])
}

operators! {
    fn find(name: &str) -> Option<Call> {
        "cummax" => |x, k| pair(x[0].cummax(k.i64("dim")?)),
        "cummin" => |x, k| pair(x[0].cummin(k.i64("dim")?)),
        "cumprod" => |x, k| typed(x, k, |x| x.cumprod(k.i64("dim")?)),
        "cumsum" => |x, k| typed(x, k, |x| x.cumsum(k.i64("dim")?)),
        "logcumsumexp" => |x, k| one(x[0].logcumsumexp(k.i64("dim")?)),
    }
}
