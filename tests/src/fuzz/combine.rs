//! Elementwise operators of three tensors, compared with `f64` functions.

use super::binary::broadcast;
use super::unary::rounding;
use super::{Array, Call, Draw, Property, Run};
use xla::{DType, Number, Operand, Result, Tensor};

/// The value of one element by three.
type Reference = Box<dyn Fn(f64, f64, f64) -> f64>;

/// Calls an operator on three drawn tensors that usually broadcast.
fn triple(
    draw: &mut Draw<'_>,
    first: DType,
    call: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    reference: Option<Reference>,
) -> Result<Call> {
    let dtype = draw.dtype();
    let dims = draw.dims(3);
    let like = [draw.dims_like(&dims), draw.dims_like(&dims)];
    let other = if draw.once_in(4) { draw.dtype() } else { dtype };
    let arrays = [
        draw.array(if first == DType::Bool { first } else { dtype }, &dims),
        draw.array(dtype, &like[0]),
        draw.array(other, &like[1]),
    ];
    let inputs: Vec<Tensor> = arrays.iter().map(Array::leaf).collect::<Result<_>>()?;
    let output = call(&inputs)?;
    let kind = output.dtype();
    let parts = broadcast(&arrays.each_ref()).filter(|_| kind.is_float() || kind == DType::Bool);
    let expected = parts.zip(reference).map(|(parts, of)| {
        let mut values = parts[0].clone();
        ndarray::Zip::from(&mut values)
            .and(&parts[1])
            .and(&parts[2])
            .for_each(|a, &b, &c| *a = of(*a, b, c));
        values
    });
    Ok(Call::new(inputs, vec![output]).expect(expected, 4.0 * rounding(kind)))
}

/// A factor, whole where the operands may be.
fn factor(draw: &mut Draw<'_>) -> (Number, f64) {
    let whole = draw.around(3);
    match draw.once_in(2) {
        true => (Number::Float(whole as f64 / 2.0), whole as f64 / 2.0),
        false => (Number::Int(whole), whole as f64),
    }
}

fn select(draw: &mut Draw<'_>) -> Result<Call> {
    let condition = if draw.once_in(10) {
        DType::F32
    } else {
        DType::Bool
    };
    let number = draw.once_in(4).then(|| draw.operand());
    let call = |x: &[Tensor]| {
        let other: Operand<'_> = number.map_or_else(|| (&x[2]).into(), Operand::Number);
        x[0].select_from(&x[1], other)
    };
    let reference: Reference = Box::new(|c, a, b| if c != 0.0 { a } else { b });
    triple(draw, condition, call, number.is_none().then_some(reference))
}

fn clamp(draw: &mut Draw<'_>) -> Result<Call> {
    let (low, high) = (draw.once_in(3), draw.once_in(3));
    let call = |x: &[Tensor]| {
        let min = (!low).then_some(&x[1]);
        let max = (!high).then_some(&x[2]);
        x[0].clamp(min, max)
    };
    let reference: Reference =
        Box::new(
            |x, min, max| match x.is_nan() || min.is_nan() || max.is_nan() {
                true => f64::NAN,
                false => x.max(min).min(max),
            },
        );
    triple(draw, DType::F32, call, (!low && !high).then_some(reference))
}

fn lerp(draw: &mut Draw<'_>) -> Result<Call> {
    let number = draw.once_in(3).then(|| draw.operand());
    let call = |x: &[Tensor]| {
        let weight: Operand<'_> = number.map_or_else(|| (&x[2]).into(), Operand::Number);
        x[0].lerp(&x[1], weight)
    };
    let reference: Reference = Box::new(|a, b, w| match w.abs() < 0.5 {
        true => a + w * (b - a),
        false => b - (b - a) * (1.0 - w),
    });
    triple(
        draw,
        DType::F32,
        call,
        number.is_none().then_some(reference),
    )
}

fn addcmul(draw: &mut Draw<'_>) -> Result<Call> {
    let (number, value) = factor(draw);
    let call = |x: &[Tensor]| x[0].addcmul(&x[1], &x[2], number);
    let reference = move |a, b, c| a + value * b * c;
    triple(draw, DType::F32, call, Some(Box::new(reference)))
}

fn addcdiv(draw: &mut Draw<'_>) -> Result<Call> {
    let (number, value) = factor(draw);
    let call = |x: &[Tensor]| x[0].addcdiv(&x[1], &x[2], number);
    let reference = move |a, b, c| a + value * b / c;
    triple(draw, DType::F32, call, Some(Box::new(reference)))
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 5] = [
        ("addcdiv", addcdiv),
        ("addcmul", addcmul),
        ("clamp", clamp),
        ("lerp", lerp),
        ("where", select),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
