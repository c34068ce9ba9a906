//! Losses and attention.

use super::{Call, one};
use crate::conformance::Kwargs;
use xla::nn::functional::{
    self, AttentionOptions, BceOptions, BceWithLogitsOptions, CrossEntropyOptions,
    GaussianNllOptions, KlDivOptions, KlDivReduction, NllLossOptions, PoissonNllOptions, Reduction,
    TripletMarginOptions,
};
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

fn kl_div(x: &[Tensor], k: &Kwargs) -> Result<Tensor> {
    let batch_mean = k.str_or_none("reduction")?.as_deref() == Some("batchmean");
    let reduction = match batch_mean {
        true => KlDivReduction::BatchMean,
        false => match reduction(k)? {
            Reduction::Mean => KlDivReduction::Mean,
            Reduction::Sum => KlDivReduction::Sum,
            Reduction::None => KlDivReduction::None,
        },
    };
    let log_target = k.bool_or("log_target", false)?;
    let options = KlDivOptions {
        reduction,
        log_target,
    };
    functional::kl_div(&x[0], &x[1], options)
}

operators! {
    fn find(name: &str) -> Option<Call> {
        "bce_with_logits" => |x, k| {
            let options = BceWithLogitsOptions {
                weight: x.get(2),
                pos_weight: x.get(3),
                reduction: reduction(k)?,
            };
            one(functional::binary_cross_entropy_with_logits(&x[0], &x[1], options))
        },
        "binary_cross_entropy" => |x, k| {
            let options = BceOptions {
                weight: x.get(2),
                reduction: reduction(k)?,
            };
            one(functional::binary_cross_entropy(&x[0], &x[1], options))
        },
        "cosine_embedding_loss" => |x, k| {
            let (margin, reduction) = (k.f64_or("margin", 0.0)?, reduction(k)?);
            one(functional::cosine_embedding_loss(
                &x[0], &x[1], &x[2], margin, reduction,
            ))
        },
        "cross_entropy" => |x, k| {
            let options = CrossEntropyOptions {
                weight: x.get(2),
                ignore_index: k.i64_or("ignore_index", -100)?,
                reduction: reduction(k)?,
                label_smoothing: k.f64_or("label_smoothing", 0.0)?,
            };
            one(functional::cross_entropy(&x[0], &x[1], options))
        },
        "gaussian_nll_loss" => |x, k| {
            let options = GaussianNllOptions {
                full: k.bool_or("full", false)?,
                eps: k.f64_or("eps", 1e-6)?,
                reduction: reduction(k)?,
            };
            one(functional::gaussian_nll_loss(&x[0], &x[1], &x[2], options))
        },
        "glu" => |x, k| one(functional::glu(&x[0], k.i64_or("dim", -1)?)),
        "hinge_embedding_loss" => |x, k| {
            let (margin, reduction) = (k.f64_or("margin", 1.0)?, reduction(k)?);
            one(functional::hinge_embedding_loss(
                &x[0], &x[1], margin, reduction,
            ))
        },
        "huber_loss" => |x, k| {
            let (delta, reduction) = (k.f64_or("delta", 1.0)?, reduction(k)?);
            one(functional::huber_loss(&x[0], &x[1], reduction, delta))
        },
        "kl_div" => |x, k| one(kl_div(x, k)),
        "l1_loss" => |x, k| one(functional::l1_loss(&x[0], &x[1], reduction(k)?)),
        "margin_ranking_loss" => |x, k| {
            let (margin, reduction) = (k.f64_or("margin", 0.0)?, reduction(k)?);
            one(functional::margin_ranking_loss(
                &x[0], &x[1], &x[2], margin, reduction,
            ))
        },
        "mse_loss" => |x, k| one(functional::mse_loss(&x[0], &x[1], reduction(k)?)),
        "nll_loss" => |x, k| {
            let options = NllLossOptions {
                weight: x.get(2),
                ignore_index: k.i64_or("ignore_index", -100)?,
                reduction: reduction(k)?,
            };
            one(functional::nll_loss(&x[0], &x[1], options))
        },
        "pairwise_distance" => |x, k| {
            let (p, eps) = (k.f64_or("p", 2.0)?, k.f64_or("eps", 1e-6)?);
            let keepdim = k.bool_or("keepdim", false)?;
            one(functional::pairwise_distance(&x[0], &x[1], p, eps, keepdim))
        },
        "poisson_nll_loss" => |x, k| {
            let options = PoissonNllOptions {
                log_input: k.bool_or("log_input", true)?,
                full: k.bool_or("full", false)?,
                eps: k.f64_or("eps", 1e-8)?,
                reduction: reduction(k)?,
            };
            one(functional::poisson_nll_loss(&x[0], &x[1], options))
        },
        "scaled_dot_product_attention" => attention,
        "smooth_l1_loss" => |x, k| {
            let (beta, reduction) = (k.f64_or("beta", 1.0)?, reduction(k)?);
            one(functional::smooth_l1_loss(&x[0], &x[1], reduction, beta))
        },
        "soft_margin_loss" => |x, k| one(functional::soft_margin_loss(&x[0], &x[1], reduction(k)?)),
        "triplet_margin_loss" => |x, k| {
            let options = TripletMarginOptions {
                margin: k.f64_or("margin", 1.0)?,
                p: k.f64_or("p", 2.0)?,
                eps: k.f64_or("eps", 1e-6)?,
                swap: k.bool_or("swap", false)?,
                reduction: reduction(k)?,
            };
            one(functional::triplet_margin_loss(
                &x[0], &x[1], &x[2], options,
            ))
        },
    }
}
