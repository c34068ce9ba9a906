//! Elementwise operators of one tensor, compared with `f64` functions.

use super::{Call, Draw, Property, Run};
use xla::{DType, NanToNum, Result, Tensor};

/// The relative error that rounding in a dtype allows.
pub(super) fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F16 => 4e-3,
        DType::BF16 => 2e-2,
        _ => 2e-5,
    }
}

/// Whether the values of results of this dtype are compared: narrow integers wrap around and are
/// left to cases that others computed.
pub(super) fn compared(dtype: DType) -> bool {
    dtype.is_float() || matches!(dtype, DType::Bool | DType::I32 | DType::I64)
}

pub(super) fn truth(value: bool) -> f64 {
    f64::from(u8::from(value))
}

/// Calls an operator on a drawn tensor; `reference` is its value.
pub(super) fn elementwise(
    draw: &mut Draw<'_>,
    call: impl FnOnce(&Tensor) -> Result<Tensor>,
    reference: impl Fn(f64) -> f64,
) -> Result<Call> {
    let (dtype, dims) = (draw.dtype(), draw.dims(4));
    let array = draw.array(dtype, &dims);
    let x = array.leaf()?;
    let output = call(&x)?;
    let dtype = output.dtype();
    let host = array.nd().filter(|_| compared(dtype));
    let expected = host.map(|host| host.mapv(reference));
    Ok(Call::new(vec![x], vec![output]).expect(expected, rounding(dtype)))
}

macro_rules! elementwise {
    ($($name:ident: $reference:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| elementwise(draw, |x| x.$name(), $reference),
        }),*]
    };
}

/// The same for operators of which the host has no function: only the types are compared.
macro_rules! unchecked {
    ($($name:ident)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| {
                let call = elementwise(draw, |x| x.$name(), |x| x)?;
                Ok(Call::new(call.inputs, call.outputs))
            },
        }),*]
    };
}

fn polygamma(draw: &mut Draw<'_>) -> Result<Call> {
    let n = draw.below(5) as u32;
    let call = elementwise(draw, |x| x.polygamma(n), |x| x)?;
    Ok(Call::new(call.inputs, call.outputs))
}

fn round(draw: &mut Draw<'_>) -> Result<Call> {
    let decimals = draw.around(2) as i32;
    let scale = 10f64.powi(decimals);
    let round = |x: f64| match x.is_finite() {
        true => (x * scale).round_ties_even() / scale,
        false => x,
    };
    let call = elementwise(draw, |x| x.round_to(decimals), round)?;
    // Halves of narrow floats are not halves after scaling; integers have no decimals.
    match decimals == 0 {
        true => Ok(call),
        false => Ok(Call::new(call.inputs, call.outputs)),
    }
}

fn nan_to_num(draw: &mut Draw<'_>) -> Result<Call> {
    let options = NanToNum {
        nan: draw.around(3) as f64,
        posinf: draw.once_in(2).then_some(7.0),
        neginf: draw.once_in(2).then_some(-7.0),
    };
    let mut call = elementwise(
        draw,
        |x| x.nan_to_num(options),
        |x| match x {
            x if x.is_nan() => options.nan,
            f64::INFINITY => options.posinf.unwrap_or(f64::INFINITY),
            f64::NEG_INFINITY => options.neginf.unwrap_or(f64::NEG_INFINITY),
            x => x,
        },
    )?;
    // The largest number of the dtype stands for infinity by default.
    if options.posinf.is_none() || options.neginf.is_none() {
        call.expected.clear();
    }
    Ok(call)
}

/// A cast; beyond the range of integers nothing is promised.
fn to(draw: &mut Draw<'_>) -> Result<Call> {
    let dtype = draw.dtype();
    let call = elementwise(
        draw,
        |x| x.to_dtype(dtype),
        |x| match dtype {
            DType::Bool => truth(x != 0.0),
            d if d.is_float() => x,
            _ => x.trunc(),
        },
    )?;
    let finite = |call: &Call| match call.expected.first() {
        Some(Some((values, _))) => values.iter().all(|v| v.is_finite()),
        _ => true,
    };
    match dtype.is_float() || finite(&call) {
        true => Ok(call),
        false => Ok(Call::new(call.inputs, call.outputs)),
    }
}

pub(super) fn properties() -> Vec<Property> {
    let mut properties = elementwise! {
        abs: f64::abs;
        acos: f64::acos;
        acosh: f64::acosh;
        asin: f64::asin;
        asinh: f64::asinh;
        atan: f64::atan;
        atanh: f64::atanh;
        ceil: f64::ceil;
        cos: f64::cos;
        cosh: f64::cosh;
        erf: libm::erf;
        erfc: libm::erfc;
        exp: f64::exp;
        exp2: f64::exp2;
        expm1: f64::exp_m1;
        floor: f64::floor;
        frac: |x| x - x.trunc();
        isfinite: |x| truth(x.is_finite());
        isinf: |x| truth(x.is_infinite());
        isnan: |x| truth(x.is_nan());
        isneginf: |x| truth(x == f64::NEG_INFINITY);
        isposinf: |x| truth(x == f64::INFINITY);
        lgamma: libm::lgamma;
        log: f64::ln;
        log10: f64::log10;
        log1p: f64::ln_1p;
        log2: f64::log2;
        logical_not: |x| truth(x == 0.0);
        neg: |x| -x;
        reciprocal: |x| 1.0 / x;
        rsqrt: |x| 1.0 / x.sqrt();
        sign: |x| f64::from(i8::from(x > 0.0) - i8::from(x < 0.0));
        signbit: |x| truth(!x.is_nan() && x.is_sign_negative());
        sin: f64::sin;
        sinh: f64::sinh;
        sqrt: f64::sqrt;
        square: |x| x * x;
        tan: f64::tan;
        tanh: f64::tanh;
        trunc: f64::trunc;
    };
    properties.extend(unchecked! { bitwise_not digamma erfinv });
    let others: [(&str, Run); 4] = [
        ("nan_to_num", nan_to_num),
        ("polygamma", polygamma),
        ("round", round),
        ("to", to),
    ];
    properties.extend(others.map(|(name, run)| Property { name, run }));
    properties
}
