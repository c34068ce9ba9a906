//! Sorting, order statistics and search.

use super::{Call, one};
use crate::conformance::Kwargs;
use xla::{DType, Result, Tensor};

fn pair(outputs: Result<(Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    outputs.map(|(values, indices)| vec![values, indices])
}

fn dim(kwargs: &Kwargs) -> Result<i64> {
    kwargs.i64_or("dim", -1)
}

/// An order statistic along an axis; of all, without the position, where there is no axis.
fn middle(
    x: &Tensor,
    kwargs: &Kwargs,
    of: fn(&Tensor, i64, bool) -> Result<(Tensor, Tensor)>,
) -> Result<Vec<Tensor>> {
    match kwargs.i64_or_none("dim")? {
        Some(dim) => pair(of(x, dim, kwargs.bool_or("keepdim", false)?)),
        None => one(of(&x.reshape([-1])?, 0, false).map(|(value, _)| value)),
    }
}

/// Whether equal elements lie before the place found.
fn right(kwargs: &Kwargs) -> Result<bool> {
    let side = kwargs.str_or_none("side")?;
    Ok(kwargs.bool_or("right", false)? || side.as_deref() == Some("right"))
}

/// Positions in the width that was asked for.
fn positions(found: Result<Tensor>, kwargs: &Kwargs) -> Result<Vec<Tensor>> {
    match kwargs.bool_or("out_int32", false)? {
        true => one(found?.to_dtype(DType::I32)),
        false => one(found),
    }
}

/// `searchsorted` with its values as a tensor or a number, and `sorter` as a third tensor.
fn search(x: &[Tensor], kwargs: &Kwargs) -> Result<Vec<Tensor>> {
    let sequence = match x.get(2) {
        Some(sorter) => x[0].gather(-1, sorter)?,
        None => x[0].clone(),
    };
    let right = right(kwargs)?;
    let found = match x.get(1) {
        Some(values) => sequence.searchsorted(values, right),
        None => sequence.searchsorted(kwargs.f64("value")?, right),
    };
    positions(found, kwargs)
}

operators! {
    fn find(name: &str) -> Option<Call> {
        "argsort" => |x, k| one(x[0].argsort(dim(k)?, k.bool_or("descending", false)?)),
        "bucketize" => |x, k| positions(x[0].bucketize(&x[1], k.bool_or("right", false)?), k),
        "kthvalue" => {
            |x, k| pair(x[0].kthvalue(k.usize("k")?, dim(k)?, k.bool_or("keepdim", false)?))
        },
        "median" => |x, k| middle(&x[0], k, Tensor::median),
        "nanmedian" => |x, k| middle(&x[0], k, Tensor::nanmedian),
        "searchsorted" => search,
        "sort" => |x, k| pair(x[0].sort(dim(k)?, k.bool_or("descending", false)?)),
        "topk" => |x, k| {
            let largest = k.bool_or("largest", true)?;
            pair(x[0].topk(k.usize("k")?, dim(k)?, largest))
        },
    }
}
