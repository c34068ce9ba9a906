//! Convolutions.

use super::{Call, one};
use crate::conformance::Kwargs;
use xla::nn::functional::{self, ConvOptions, ConvTransposeOptions, FoldOptions, Padding, PerAxis};
use xla::{Result, Tensor};

/// One number or one an axis; `default` where the argument is absent.
pub(super) fn per_axis(k: &Kwargs, name: &'static str, default: i64) -> Result<PerAxis> {
    Ok(k.ints_or_none(name)?
        .map_or(default.into(), |values| values.into()))
}

fn conv(k: &Kwargs) -> Result<ConvOptions> {
    let padding = match k.str_or_none("padding") {
        Ok(Some(name)) if name == "same" => Padding::Same,
        Ok(Some(_)) => Padding::Valid,
        Ok(None) | Err(_) => per_axis(k, "padding", 0)?.into(),
    };
    Ok(ConvOptions {
        stride: per_axis(k, "stride", 1)?,
        padding,
        dilation: per_axis(k, "dilation", 1)?,
        groups: k.i64_or("groups", 1)? as usize,
    })
}

fn conv_transpose(k: &Kwargs) -> Result<ConvTransposeOptions> {
    Ok(ConvTransposeOptions {
        stride: per_axis(k, "stride", 1)?,
        padding: per_axis(k, "padding", 0)?,
        output_padding: per_axis(k, "output_padding", 0)?,
        groups: k.i64_or("groups", 1)? as usize,
        dilation: per_axis(k, "dilation", 1)?,
    })
}

fn fold(k: &Kwargs) -> Result<FoldOptions> {
    Ok(FoldOptions {
        dilation: per_axis(k, "dilation", 1)?,
        padding: per_axis(k, "padding", 0)?,
        stride: per_axis(k, "stride", 1)?,
    })
}

fn bias(x: &[Tensor]) -> Option<&Tensor> {
    x.get(2)
}

operators! {
    fn find(name: &str) -> Option<Call> {
        "conv1d" => |x, k| one(functional::conv1d(&x[0], &x[1], bias(x), conv(k)?)),
        "conv2d" => |x, k| one(functional::conv2d(&x[0], &x[1], bias(x), conv(k)?)),
        "conv3d" => |x, k| one(functional::conv3d(&x[0], &x[1], bias(x), conv(k)?)),
        "conv_transpose1d" => |x, k| {
            one(functional::conv_transpose1d(
                &x[0],
                &x[1],
                bias(x),
                conv_transpose(k)?,
            ))
        },
        "conv_transpose2d" => |x, k| {
            one(functional::conv_transpose2d(
                &x[0],
                &x[1],
                bias(x),
                conv_transpose(k)?,
            ))
        },
        "conv_transpose3d" => |x, k| {
            one(functional::conv_transpose3d(
                &x[0],
                &x[1],
                bias(x),
                conv_transpose(k)?,
            ))
        },
        "col2im" | "fold" => |x, k| {
            let (size, kernel) = (k.ints("output_size")?, k.ints("kernel_size")?);
            one(functional::fold(&x[0], size, kernel, fold(k)?))
        },
        "im2col" | "nn_unfold" => {
            |x, k| one(functional::unfold(&x[0], k.ints("kernel_size")?, fold(k)?))
        },
        "pixel_shuffle" => |x, k| one(functional::pixel_shuffle(&x[0], k.usize("upscale_factor")?)),
        "pixel_unshuffle" => |x, k| {
            one(functional::pixel_unshuffle(
                &x[0],
                k.usize("downscale_factor")?,
            ))
        },
    }
}
