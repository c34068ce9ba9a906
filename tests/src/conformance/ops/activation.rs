//! Activations.

use super::{Call, one};
use xla::{Error, GeluApproximation};

operators! {
    fn find(name: &str) -> Option<Call> {
        "celu" => |x, k| one(x[0].celu(k.f64_or("alpha", 1.0)?)),
        "elu" => |x, k| one(x[0].elu(k.f64_or("alpha", 1.0)?)),
        "gelu" => |x, k| {
            let approximate = match k.str_or_none("approximate")?.as_deref() {
                None | Some("none") => GeluApproximation::None,
                Some("tanh") => GeluApproximation::Tanh,
                Some(other) => {
                    let expected = "none or tanh";
                    return Err(Error::argument("gelu", "approximate", expected, other));
                }
            };
            one(x[0].gelu(approximate))
        },
        "hardshrink" => |x, k| one(x[0].hardshrink(k.f64_or("lambd", 0.5)?)),
        "hardsigmoid" => |x, _| one(x[0].hardsigmoid()),
        "hardswish" => |x, _| one(x[0].hardswish()),
        "hardtanh" => {
            |x, k| one(x[0].hardtanh(k.f64_or("min_val", -1.0)?, k.f64_or("max_val", 1.0)?))
        },
        "leaky_relu" => |x, k| one(x[0].leaky_relu(k.f64_or("negative_slope", 0.01)?)),
        "logsigmoid" => |x, _| one(x[0].logsigmoid()),
        "mish" => |x, _| one(x[0].mish()),
        "relu" => |x, _| one(x[0].relu()),
        "relu6" => |x, _| one(x[0].relu6()),
        "selu" => |x, _| one(x[0].selu()),
        "sigmoid" => |x, _| one(x[0].sigmoid()),
        "silu" => |x, _| one(x[0].silu()),
        "softplus" => {
            |x, k| one(x[0].softplus(k.f64_or("beta", 1.0)?, k.f64_or("threshold", 20.0)?))
        },
        "softshrink" => |x, k| one(x[0].softshrink(k.f64_or("lambd", 0.5)?)),
        "softsign" => |x, _| one(x[0].softsign()),
        "tanhshrink" => |x, _| one(x[0].tanhshrink()),
        "threshold" => |x, k| one(x[0].threshold(k.f64("threshold")?, k.f64("value")?)),
    }
}
