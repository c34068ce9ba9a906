//! Losses and attention.

use super::{Call, one};
use crate::conformance::Kwargs;
use xla::nn::functional::{self, AttentionOptions, CrossEntropyOptions, NllLossOptions, Reduction};
use xla::{Error, Result, Tensor};

fn reduction(k: &Kwargs) -> Result<Reduction> {
    match k.str_or_none("reduction")?.as_deref() {
        None | Some("mean") => Ok(Reduction::Mean),
        Some("sum") => Ok(Reduction::Sum),
        Some("none") => Ok(Reduction::None),
        Some(other) => Err(Error::argument(
            "conformance",
            "reduction",
            "mean, sum or none",
            other,
        )),
    }
}

fn attention(x: &[Tensor], k: &Kwargs) -> Result<Vec<Tensor>> {
    let options = AttentionOptions {
        attn_mask: x.get(3),
        dropout_p: k.f64_or("dropout_p", 0.0)?,
        is_causal: k.bool_or("is_causal", false)?,
        scale: k.f64_or_none("scale")?,
        enable_gqa: k.bool_or("enable_gqa", false)?,
    };
    one(functional::scaled_dot_product_attention(
        &x[0], &x[1], &x[2], options,
    ))
}

pub(super) fn find(name: &str) -> Option<Call> {
    Some(match name {
        "cross_entropy" => |x, k| {
            let options = CrossEntropyOptions {
                weight: x.get(2),
                ignore_index: k.i64_or("ignore_index", -100)?,
                reduction: reduction(k)?,
                label_smoothing: k.f64_or("label_smoothing", 0.0)?,
            };
            one(functional::cross_entropy(&x[0], &x[1], options))
        },
        "nll_loss" => |x, k| {
            let options = NllLossOptions {
                weight: x.get(2),
                ignore_index: k.i64_or("ignore_index", -100)?,
                reduction: reduction(k)?,
            };
            one(functional::nll_loss(&x[0], &x[1], options))
        },
        "scaled_dot_product_attention" => attention,
        _ => return None,
    })
}
