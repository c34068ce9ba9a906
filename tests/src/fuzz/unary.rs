//! Elementwise operators of one tensor, compared with `f64` functions.

use super::{Call, Draw, Property};
use xla::{DType, Result, Tensor};

/// The relative error that rounding in a dtype allows.
pub(super) fn rounding(dtype: DType) -> f64 {
    match dtype {
        DType::F64 => 1e-9,
        DType::F16 => 4e-3,
        DType::BF16 => 2e-2,
        _ => 2e-5,
    }
}

/// Calls an operator on a drawn tensor; `reference` is its value where the result is a float.
fn float(
    draw: &mut Draw<'_>,
    call: fn(&Tensor) -> Result<Tensor>,
    reference: fn(f64) -> f64,
) -> Result<Call> {
    let (dtype, dims) = (draw.dtype(), draw.dims(4));
    let array = draw.array(dtype, &dims);
    let x = array.tensor()?;
    if dtype.is_float() {
        x.requires_grad_(true)?;
    }
    let output = call(&x)?;
    let expected = output.dtype().is_float().then(|| {
        let values = array.values.iter().map(|&v| reference(v)).collect();
        (values, rounding(output.dtype()))
    });
    Ok(Call {
        inputs: vec![x],
        outputs: vec![output],
        expected,
    })
}

macro_rules! float {
    ($($name:ident: $reference:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| float(draw, |x| x.$name(), $reference),
        }),*]
    };
}

pub(super) fn properties() -> Vec<Property> {
    float! {
        abs: f64::abs;
        neg: |x| -x;
        exp: f64::exp;
        expm1: f64::exp_m1;
        log: f64::ln;
        log1p: f64::ln_1p;
        sqrt: f64::sqrt;
        rsqrt: |x| 1.0 / x.sqrt();
        sin: f64::sin;
        cos: f64::cos;
        tanh: f64::tanh;
        sigmoid: |x| 1.0 / (1.0 + (-x).exp());
        reciprocal: |x| 1.0 / x;
        square: |x| x * x;
        floor: f64::floor;
        ceil: f64::ceil;
        round: f64::round_ties_even;
    }
}
