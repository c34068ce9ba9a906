//! Running sums, products and extremes.

use super::{Call, one};
use crate::conformance::Kwargs;
use xla::{Result, Tensor};

/// The input as the `dtype` that the call computes in.
fn input(inputs: &[Tensor], kwargs: &Kwargs) -> Result<Tensor> {
    match kwargs.dtype_or_none("dtype")? {
        Some(dtype) => inputs[0].to_dtype(dtype),
        None => Ok(inputs[0].clone()),
    }
}

fn pair(outputs: Result<(Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    outputs.map(|(values, indices)| vec![values, indices])
}

pub(super) fn find(name: &str) -> Option<Call> {
    Some(match name {
        "cummax" => |x, k| pair(x[0].cummax(k.i64("dim")?)),
        "cummin" => |x, k| pair(x[0].cummin(k.i64("dim")?)),
        "cumprod" => |x, k| one(input(x, k)?.cumprod(k.i64("dim")?)),
        "cumsum" => |x, k| one(input(x, k)?.cumsum(k.i64("dim")?)),
        "logcumsumexp" => |x, k| one(x[0].logcumsumexp(k.i64("dim")?)),
        _ => return None,
    })
}
