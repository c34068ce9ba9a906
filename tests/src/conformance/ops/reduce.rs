//! Reductions and softmax.

use super::{Call, one};
use crate::conformance::Kwargs;
use xla::nn::functional;
use xla::{Axes, IntoAxes, Result, Tensor};

/// The axes of `dim`; all where it is absent.
fn axes(kwargs: &Kwargs) -> Result<Axes> {
    let dims = kwargs.ints_or_none("dim")?;
    Ok(dims.map_or(Axes::All, |dims| dims.as_slice().into_axes()))
}

fn keepdim(kwargs: &Kwargs) -> Result<bool> {
    kwargs.bool_or("keepdim", false)
}

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

fn correction(kwargs: &Kwargs) -> Result<f64> {
    let unbiased = f64::from(kwargs.bool_or("unbiased", true)?);
    kwargs.f64_or("correction", unbiased)
}

/// The order of a norm, which has no number in JSON where it is infinite.
fn order(kwargs: &Kwargs, name: &'static str) -> Result<f64> {
    if let Ok(Some(word)) = kwargs.str_or_none(name) {
        return match word.as_str() {
            "inf" | "Infinity" => Ok(f64::INFINITY),
            "-inf" | "-Infinity" => Ok(f64::NEG_INFINITY),
            "fro" => Ok(2.0),
            _ => Err(xla::Error::argument("norm", name, "a number", word)),
        };
    }
    kwargs.f64_or(name, 2.0)
}

fn pair(outputs: Result<(Tensor, Tensor)>) -> Result<Vec<Tensor>> {
    outputs.map(|(first, second)| vec![first, second])
}

/// `max` or `min`: of all, along an axis, or of two tensors.
fn extreme(
    x: &[Tensor],
    k: &Kwargs,
    all: fn(&Tensor) -> Result<Tensor>,
    along: fn(&Tensor, i64, bool) -> Result<(Tensor, Tensor)>,
    of_two: fn(&Tensor, &Tensor) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    match (x, k.i64_or_none("dim")?) {
        ([a, b], _) => one(of_two(a, b)),
        (_, Some(dim)) => pair(along(&x[0], dim, keepdim(k)?)),
        (_, None) => one(all(&x[0])),
    }
}

operators! {
    fn find(name: &str) -> Option<Call> {
        "all" => |x, k| one(x[0].all(axes(k)?, keepdim(k)?)),
        "amax" => |x, k| one(x[0].amax(axes(k)?, keepdim(k)?)),
        "amin" => |x, k| one(x[0].amin(axes(k)?, keepdim(k)?)),
        "aminmax" => |x, k| pair(x[0].aminmax(k.i64_or_none("dim")?, keepdim(k)?)),
        "any" => |x, k| one(x[0].any(axes(k)?, keepdim(k)?)),
        "argmax" => |x, k| one(x[0].argmax(k.i64_or_none("dim")?, keepdim(k)?)),
        "argmin" => |x, k| one(x[0].argmin(k.i64_or_none("dim")?, keepdim(k)?)),
        "cosine_similarity" => |x, k| {
            let eps = k.f64_or("eps", 1e-8)?;
            one(functional::cosine_similarity(
                &x[0],
                &x[1],
                k.i64_or("dim", 1)?,
                eps,
            ))
        },
        "count_nonzero" => |x, k| one(x[0].count_nonzero(axes(k)?)),
        "log_softmax" => |x, k| typed(x, k, |x| x.log_softmax(k.i64("dim")?)),
        "logsumexp" => |x, k| one(x[0].logsumexp(axes(k)?, keepdim(k)?)),
        "max" => |x, k| {
            extreme(
                x,
                k,
                |x| x.amax((), false),
                Tensor::max,
                |a, b| a.maximum(b),
            )
        },
        "mean" => |x, k| typed(x, k, |x| x.mean(axes(k)?, keepdim(k)?)),
        "min" => |x, k| {
            extreme(
                x,
                k,
                |x| x.amin((), false),
                Tensor::min,
                |a, b| a.minimum(b),
            )
        },
        "nanmean" => |x, k| typed(x, k, |x| x.nanmean(axes(k)?, keepdim(k)?)),
        "nansum" => |x, k| typed(x, k, |x| x.nansum(axes(k)?, keepdim(k)?)),
        "norm" => |x, k| typed(x, k, |x| x.norm(order(k, "p")?, axes(k)?, keepdim(k)?)),
        "normalize" => |x, k| {
            let dims = k.ints_or_none("dim")?.unwrap_or_else(|| vec![1]);
            let eps = k.f64_or("eps", 1e-12)?;
            one(functional::normalize(
                &x[0],
                order(k, "p")?,
                dims.as_slice(),
                eps,
            ))
        },
        "prod" => |x, k| typed(x, k, |x| x.prod(axes(k)?, keepdim(k)?)),
        "softmax" => |x, k| typed(x, k, |x| x.softmax(k.i64("dim")?)),
        "std" => |x, k| one(x[0].std(axes(k)?, correction(k)?, keepdim(k)?)),
        "std_mean" => |x, k| pair(x[0].std_mean(axes(k)?, correction(k)?, keepdim(k)?)),
        "sum" => |x, k| typed(x, k, |x| x.sum(axes(k)?, keepdim(k)?)),
        "var" => |x, k| one(x[0].var(axes(k)?, correction(k)?, keepdim(k)?)),
        "var_mean" => |x, k| pair(x[0].var_mean(axes(k)?, correction(k)?, keepdim(k)?)),
        "vector_norm" => |x, k| typed(x, k, |x| x.norm(order(k, "ord")?, axes(k)?, keepdim(k)?)),
    }
}
