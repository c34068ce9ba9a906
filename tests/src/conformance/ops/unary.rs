//! Elementwise operators of one tensor.

use super::{Call, one};
use xla::NanToNum;

operators! {
    fn find(name: &str) -> Option<Call> {
        "abs" => |x, _| one(x[0].abs()),
        "acos" => |x, _| one(x[0].acos()),
        "acosh" => |x, _| one(x[0].acosh()),
        "asin" => |x, _| one(x[0].asin()),
        "asinh" => |x, _| one(x[0].asinh()),
        "atan" => |x, _| one(x[0].atan()),
        "atanh" => |x, _| one(x[0].atanh()),
        "bitwise_not" => |x, _| one(x[0].bitwise_not()),
        "ceil" => |x, _| one(x[0].ceil()),
        "cos" => |x, _| one(x[0].cos()),
        "cosh" => |x, _| one(x[0].cosh()),
        "digamma" => |x, _| one(x[0].digamma()),
        "erf" => |x, _| one(x[0].erf()),
        "erfc" => |x, _| one(x[0].erfc()),
        "erfinv" => |x, _| one(x[0].erfinv()),
        "exp" => |x, _| one(x[0].exp()),
        "exp2" => |x, _| one(x[0].exp2()),
        "expm1" => |x, _| one(x[0].expm1()),
        "floor" => |x, _| one(x[0].floor()),
        "frac" => |x, _| one(x[0].frac()),
        "isfinite" => |x, _| one(x[0].isfinite()),
        "isinf" => |x, _| one(x[0].isinf()),
        "isnan" => |x, _| one(x[0].isnan()),
        "isneginf" => |x, _| one(x[0].isneginf()),
        "isposinf" => |x, _| one(x[0].isposinf()),
        "lgamma" => |x, _| one(x[0].lgamma()),
        "log" => |x, _| one(x[0].log()),
        "log10" => |x, _| one(x[0].log10()),
        "log1p" => |x, _| one(x[0].log1p()),
        "log2" => |x, _| one(x[0].log2()),
        "logical_not" => |x, _| one(x[0].logical_not()),
        "nan_to_num" => |x, k| {
            one(x[0].nan_to_num(NanToNum {
                nan: k.f64_or("nan", 0.0)?,
                posinf: k.f64_or_none("posinf")?,
                neginf: k.f64_or_none("neginf")?,
            }))
        },
        "neg" => |x, _| one(x[0].neg()),
        "polygamma" => |x, k| one(x[0].polygamma(k.usize("n")? as u32)),
        "reciprocal" => |x, _| one(x[0].reciprocal()),
        "round" => |x, k| one(x[0].round_to(k.i64_or("decimals", 0)? as i32)),
        "rsqrt" => |x, _| one(x[0].rsqrt()),
        "sign" => |x, _| one(x[0].sign()),
        "signbit" => |x, _| one(x[0].signbit()),
        "sin" => |x, _| one(x[0].sin()),
        "sinh" => |x, _| one(x[0].sinh()),
        "sqrt" => |x, _| one(x[0].sqrt()),
        "square" => |x, _| one(x[0].square()),
        "tan" => |x, _| one(x[0].tan()),
        "tanh" => |x, _| one(x[0].tanh()),
        "to" => |x, k| {
            one(match k.dtype_or_none("dtype")? {
                Some(dtype) => x[0].to_dtype(dtype),
                None => Ok(x[0].clone()),
            })
        },
        "trunc" => |x, _| one(x[0].trunc()),
    }
}
