//! Pooling.

use super::conv::per_axis;
use super::{Call, one};
use crate::conformance::Kwargs;
use xla::Result;
use xla::nn::functional::{self, MaxPoolOptions, PerAxis};

fn stride(k: &Kwargs) -> Result<Option<PerAxis>> {
    let given = k.ints_or_none("stride")?;
    Ok(given.filter(|s| !s.is_empty()).map(PerAxis::from))
}

fn max_pool(k: &Kwargs) -> Result<(PerAxis, MaxPoolOptions)> {
    let options = MaxPoolOptions {
        stride: stride(k)?,
        padding: per_axis(k, "padding", 0)?,
        dilation: per_axis(k, "dilation", 1)?,
        ceil_mode: k.bool_or("ceil_mode", false)?,
    };
    Ok((k.ints("kernel_size")?.into(), options))
}

/// With the places of the elements taken, where `return_indices` asks for them.
macro_rules! max_pool {
    ($plain:ident, $with_indices:ident) => {
        |x, k| {
            let (kernel, options) = max_pool(k)?;
            if k.bool_or("return_indices", false)? {
                let both = functional::$with_indices(&x[0], kernel, options)?;
                return Ok(vec![both.0, both.1]);
            }
            one(functional::$plain(&x[0], kernel, options))
        }
    };
}

/// Always with the places.
macro_rules! with_indices {
    ($with_indices:ident) => {
        |x, k| {
            let (kernel, options) = max_pool(k)?;
            let (pooled, indices) = functional::$with_indices(&x[0], kernel, options)?;
            Ok(vec![pooled, indices])
        }
    };
}

pub(super) fn find(name: &str) -> Option<Call> {
    Some(match name {
        "max_pool1d" => max_pool!(max_pool1d, max_pool1d_with_indices),
        "max_pool1d_with_indices" => with_indices!(max_pool1d_with_indices),
        "max_pool2d" => max_pool!(max_pool2d, max_pool2d_with_indices),
        "max_pool2d_with_indices" => with_indices!(max_pool2d_with_indices),
        "max_pool3d" => max_pool!(max_pool3d, max_pool3d_with_indices),
        "max_pool3d_with_indices" => with_indices!(max_pool3d_with_indices),
        _ => return None,
    })
}
