//! Pooling and interpolation.

use super::conv::per_axis;
use super::{Call, one};
use crate::conformance::Kwargs;
use xla::nn::functional::{
    self, AvgPoolOptions, InterpolateMode, InterpolateOptions, MaxPoolOptions, OutputSize, PerAxis,
    Target,
};
use xla::{Error, Result};

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

fn avg_pool(k: &Kwargs) -> Result<(PerAxis, AvgPoolOptions)> {
    let options = AvgPoolOptions {
        stride: stride(k)?,
        padding: per_axis(k, "padding", 0)?,
        ceil_mode: k.bool_or("ceil_mode", false)?,
        count_include_pad: k.bool_or("count_include_pad", true)?,
        divisor_override: k.i64_or_none("divisor_override")?,
    };
    Ok((k.ints("kernel_size")?.into(), options))
}

fn output_size(k: &Kwargs) -> Result<OutputSize> {
    Ok(match k.optional_ints("output_size")? {
        sizes if sizes.len() == 1 && sizes[0].is_some() => k.ints("output_size")?.into(),
        sizes => sizes
            .into_iter()
            .map(|n| n.and_then(|n| usize::try_from(n).ok()))
            .collect::<Vec<_>>()
            .into(),
    })
}

/// With the places of the elements taken, where `return_indices` asks for them.
macro_rules! adaptive_max {
    ($plain:ident, $with_indices:ident) => {
        |x, k| {
            if k.bool_or("return_indices", false)? {
                let both = functional::$with_indices(&x[0], output_size(k)?)?;
                return Ok(vec![both.0, both.1]);
            }
            one(functional::$plain(&x[0], output_size(k)?))
        }
    };
}

/// The arguments of `interpolate` and `upsample`.
fn interpolate(k: &Kwargs) -> Result<(Target, InterpolateOptions)> {
    let target = match k.ints_or_none("size")? {
        Some(size) => Target::Size(size.into()),
        None => Target::scale(k.floats("scale_factor")?),
    };
    let name = k.str_or_none("mode")?.unwrap_or_else(|| "nearest".into());
    let mode = match name.as_str() {
        "nearest" => InterpolateMode::Nearest,
        "nearest-exact" => InterpolateMode::NearestExact,
        "linear" => InterpolateMode::Linear,
        "bilinear" => InterpolateMode::Bilinear,
        "bicubic" => InterpolateMode::Bicubic,
        "trilinear" => InterpolateMode::Trilinear,
        "area" => InterpolateMode::Area,
        _ => return Err(Error::argument("conformance", "mode", "a mode", name)),
    };
    let options = InterpolateOptions {
        mode,
        align_corners: k.bool_or("align_corners", false)?,
        recompute_scale_factor: k.bool_or("recompute_scale_factor", false)?,
        antialias: k.bool_or("antialias", false)?,
    };
    Ok((target, options))
}

operators! {
    fn find(name: &str) -> Option<Call> {
        "adaptive_avg_pool1d" => {
            |x, k| one(functional::adaptive_avg_pool1d(&x[0], output_size(k)?))
        },
        "adaptive_avg_pool2d" => {
            |x, k| one(functional::adaptive_avg_pool2d(&x[0], output_size(k)?))
        },
        "adaptive_avg_pool3d" => {
            |x, k| one(functional::adaptive_avg_pool3d(&x[0], output_size(k)?))
        },
        "adaptive_max_pool1d" => {
            adaptive_max!(adaptive_max_pool1d, adaptive_max_pool1d_with_indices)
        },
        "adaptive_max_pool2d" => {
            adaptive_max!(adaptive_max_pool2d, adaptive_max_pool2d_with_indices)
        },
        "adaptive_max_pool3d" => {
            adaptive_max!(adaptive_max_pool3d, adaptive_max_pool3d_with_indices)
        },
        "avg_pool1d" => |x, k| {
            let (kernel, options) = avg_pool(k)?;
            one(functional::avg_pool1d(&x[0], kernel, options))
        },
        "avg_pool2d" => |x, k| {
            let (kernel, options) = avg_pool(k)?;
            one(functional::avg_pool2d(&x[0], kernel, options))
        },
        "avg_pool3d" => |x, k| {
            let (kernel, options) = avg_pool(k)?;
            one(functional::avg_pool3d(&x[0], kernel, options))
        },
        "interpolate" | "upsample" => |x, k| {
            let (target, options) = interpolate(k)?;
            one(functional::interpolate(&x[0], target, options))
        },
        "max_pool1d" => max_pool!(max_pool1d, max_pool1d_with_indices),
        "max_pool1d_with_indices" => with_indices!(max_pool1d_with_indices),
        "max_pool2d" => max_pool!(max_pool2d, max_pool2d_with_indices),
        "max_pool2d_with_indices" => with_indices!(max_pool2d_with_indices),
        "max_pool3d" => max_pool!(max_pool3d, max_pool3d_with_indices),
        "max_pool3d_with_indices" => with_indices!(max_pool3d_with_indices),
    }
}
