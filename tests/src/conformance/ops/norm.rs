//! Normalisation.

use super::{Call, one};
use crate::conformance::Kwargs;
use xla::nn::functional::{self, BatchNormOptions, InstanceNormOptions};
use xla::{Result, Tensor};

/// The lengths that are normalised over.
fn normalized_shape(k: &Kwargs) -> Result<Vec<usize>> {
    Ok(k.ints("normalized_shape")?
        .into_iter()
        .map(|n| usize::try_from(n).unwrap_or_default())
        .collect())
}

fn batch_norm(x: &[Tensor], k: &Kwargs) -> Result<Vec<Tensor>> {
    let options = BatchNormOptions {
        weight: x.get(3),
        bias: x.get(4),
        training: k.bool_or("training", false)?,
        momentum: k.f64_or("momentum", 0.1)?,
        eps: k.f64_or("eps", 1e-5)?,
    };
    one(functional::batch_norm(&x[0], x.get(1), x.get(2), options))
}

fn instance_norm(x: &[Tensor], k: &Kwargs) -> Result<Vec<Tensor>> {
    let options = InstanceNormOptions {
        weight: x.get(3),
        bias: x.get(4),
        use_input_stats: k.bool_or("use_input_stats", true)?,
        momentum: k.f64_or("momentum", 0.1)?,
        eps: k.f64_or("eps", 1e-5)?,
    };
    one(functional::instance_norm(
        &x[0],
        x.get(1),
        x.get(2),
        options,
    ))
}

operators! {
    fn find(name: &str) -> Option<Call> {
        "batch_norm" => batch_norm,
        "group_norm" => |x, k| {
            let (groups, eps) = (k.usize("num_groups")?, k.f64_or("eps", 1e-5)?);
            one(functional::group_norm(
                &x[0],
                groups,
                x.get(1),
                x.get(2),
                eps,
            ))
        },
        "instance_norm" => instance_norm,
        "layer_norm" => |x, k| {
            let (shape, eps) = (normalized_shape(k)?, k.f64_or("eps", 1e-5)?);
            let shape = shape.as_slice();
            one(functional::layer_norm(
                &x[0],
                shape,
                x.get(1),
                x.get(2),
                eps,
            ))
        },
        "rms_norm" => |x, k| {
            let (shape, eps) = (normalized_shape(k)?, k.f64_or_none("eps")?);
            one(functional::rms_norm(&x[0], shape.as_slice(), x.get(1), eps))
        },
    }
}
