//! Elementwise operators of two and more tensors.

use super::{Call, one};
use crate::conformance::Kwargs;
use xla::{Error, Number, Operand, Result, RoundingMode, Tensor};

operators! {
    fn find(name: &str) -> Option<Call> {
        "add" | "add_scalar" => |x, k| {
            let other = other(x, 1, "other", k)?;
            one(match number(k, "alpha")? {
                Some(alpha) => x[0].add_scaled(other, alpha),
                None => x[0].add(other),
            })
        },
        "addcdiv" => |x, k| one(x[0].addcdiv(&x[1], &x[2], number_or(k, "value", 1)?)),
        "addcmul" => |x, k| one(x[0].addcmul(&x[1], &x[2], number_or(k, "value", 1)?)),
        "atan2" => |x, k| one(x[0].atan2(other(x, 1, "other", k)?)),
        "bitwise_and" => |x, k| one(x[0].bitwise_and(other(x, 1, "other", k)?)),
        "bitwise_left_shift" => |x, k| one(x[0].bitwise_left_shift(other(x, 1, "other", k)?)),
        "bitwise_or" => |x, k| one(x[0].bitwise_or(other(x, 1, "other", k)?)),
        "bitwise_right_shift" => |x, k| one(x[0].bitwise_right_shift(other(x, 1, "other", k)?)),
        "bitwise_xor" => |x, k| one(x[0].bitwise_xor(other(x, 1, "other", k)?)),
        "clamp" => |x, k| {
            let min = bound(x, 1, "min", k)?;
            let next = 1 + usize::from(matches!(min, Some(Operand::Tensor(_))));
            one(x[0].clamp(min, bound(x, next, "max", k)?))
        },
        "div" | "div_scalar" => |x, k| {
            let other = other(x, 1, "other", k)?;
            one(match k.str_or_none("rounding_mode")?.as_deref() {
                None => x[0].div(other),
                Some("trunc") => x[0].div_rounded(other, RoundingMode::Trunc),
                Some("floor") => x[0].div_rounded(other, RoundingMode::Floor),
                Some(mode) => Err(Error::argument(
                    "div",
                    "rounding_mode",
                    "trunc or floor",
                    mode,
                )),
            })
        },
        "div_floor" => |x, k| one(x[0].div_rounded(other(x, 1, "other", k)?, RoundingMode::Floor)),
        "div_trunc" => |x, k| one(x[0].div_rounded(other(x, 1, "other", k)?, RoundingMode::Trunc)),
        "eq" => |x, k| one(x[0].eq(other(x, 1, "other", k)?)),
        "floor_divide" => |x, k| one(x[0].floor_divide(other(x, 1, "other", k)?)),
        "fmod" => |x, k| one(x[0].fmod(other(x, 1, "other", k)?)),
        "ge" => |x, k| one(x[0].ge(other(x, 1, "other", k)?)),
        "gt" => |x, k| one(x[0].gt(other(x, 1, "other", k)?)),
        "hypot" => |x, _| one(x[0].hypot(&x[1])),
        "le" => |x, k| one(x[0].le(other(x, 1, "other", k)?)),
        "lerp" => |x, k| one(x[0].lerp(&x[1], other(x, 2, "weight", k)?)),
        "logaddexp" => |x, _| one(x[0].logaddexp(&x[1])),
        "logaddexp2" => |x, _| one(x[0].logaddexp2(&x[1])),
        "logical_and" => |x, k| one(x[0].logical_and(other(x, 1, "other", k)?)),
        "logical_or" => |x, k| one(x[0].logical_or(other(x, 1, "other", k)?)),
        "logical_xor" => |x, k| one(x[0].logical_xor(other(x, 1, "other", k)?)),
        "lt" => |x, k| one(x[0].lt(other(x, 1, "other", k)?)),
        "maximum" => |x, k| one(x[0].maximum(other(x, 1, "other", k)?)),
        "minimum" => |x, k| one(x[0].minimum(other(x, 1, "other", k)?)),
        "mul" | "mul_scalar" => |x, k| one(x[0].mul(other(x, 1, "other", k)?)),
        "ne" => |x, k| one(x[0].ne(other(x, 1, "other", k)?)),
        "pow" | "pow_scalar" => |x, k| one(x[0].pow(other(x, 1, "exponent", k)?)),
        "remainder" => |x, k| one(x[0].remainder(other(x, 1, "other", k)?)),
        "sub" | "sub_scalar" => |x, k| {
            let other = other(x, 1, "other", k)?;
            one(match number(k, "alpha")? {
                Some(alpha) => x[0].sub_scaled(other, alpha),
                None => x[0].sub(other),
            })
        },
        "where" => |x, k| {
            let input = other(x, 1, "input", k)?;
            let next = 1 + usize::from(matches!(input, Operand::Tensor(_)));
            one(x[0].select_from(input, other(x, next, "other", k)?))
        },
        "xlogy" => |x, k| one(x[0].xlogy(other(x, 1, "other", k)?)),
    }
}

/// A number, whole or not as it is written.
fn number(k: &Kwargs, name: &'static str) -> Result<Option<Number>> {
    Ok(match k.is_int(name) {
        true => k.i64_or_none(name)?.map(Number::Int),
        false => k.f64_or_none(name)?.map(Number::Float),
    })
}

fn number_or(k: &Kwargs, name: &'static str, default: i64) -> Result<Number> {
    Ok(number(k, name)?.unwrap_or(Number::Int(default)))
}

/// An operand that is a number argument if given, and an input otherwise.
fn bound<'a>(
    x: &'a [Tensor],
    index: usize,
    name: &'static str,
    k: &Kwargs,
) -> Result<Option<Operand<'a>>> {
    let tensor = || x.get(index).map(Operand::Tensor);
    Ok(number(k, name)?.map(Operand::Number).or_else(tensor))
}

fn other<'a>(x: &'a [Tensor], index: usize, name: &'static str, k: &Kwargs) -> Result<Operand<'a>> {
    bound(x, index, name, k)?
        .ok_or_else(|| Error::argument("conformance", name, "a number or an input", "neither"))
}
