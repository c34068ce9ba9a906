//! Dropout: random zeros while a model is trained.

use super::floating;
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{
    Derivative, InputType, Number, Operand, Operator, Saves, Tensor, Ty, default_generator,
    record_op,
};

/// The input divided by the probability of being kept, the third operand, where the mask, which
/// broadcasts, is true, else 0.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Dropout;

impl Operator for Dropout {
    const NAME: &'static str = "dropout";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |_, vjp| {
            let gradient = record_op(
                Dropout,
                &[vjp.grad().into(), vjp.operand(1)?, vjp.operand(2)?],
            )?;
            Ok([Some(gradient), None, None].into_iter().collect())
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let dtype = match out.dtype() {
            DType::F64 => DType::F64,
            _ => DType::F32,
        };
        let x = f.convert(inputs[0], dtype);
        let mask = f.broadcast_to(inputs[1], out.shape())?;
        let keep = f.convert(inputs[2], dtype);
        let keep = f.broadcast_to(keep, out.shape())?;
        let scaled = f.binary("divide", x, keep);
        let zero = f.constant(dtype, out.shape(), 0.0);
        let kept = f.select(mask, scaled, zero);
        Ok(f.convert(kept, out.dtype()))
    }
}

/// Where elements are kept: independently with probability `1 - p`, which is data.
fn mask(like: &Tensor, shape: &Shape, p: f64) -> Result<Tensor> {
    default_generator(like.device())?.bernoulli(1.0 - p, shape, DType::Bool)
}

fn check(op: &'static str, input: &Tensor, p: f64, at: &'static Location<'static>) -> Result<()> {
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::argument(op, "p", "a probability from 0 to 1", p).at(at));
    }
    floating(op, "an input", input).map_err(|e| e.at(at))
}

/// Zeros each element with probability `p` while training, and divides the others by `1 - p`, so that
/// the expected value stays (Srivastava et al., "Dropout: a simple way to prevent neural networks from
/// overfitting", 2014). Without `training` the input itself.
///
/// `p` is data: another one, and another mask at each call, is the same program. With `p = 1` all
/// elements are 0. The mask is drawn from the replica's generator.
///
/// # Errors
/// [`Error::Argument`] for a `p` outside 0 to 1, [`Error::DTypeMismatch`] for an input that is not of
/// floats.
#[track_caller]
pub fn dropout(input: &Tensor, p: f64, training: bool) -> Result<Tensor> {
    let at = Location::caller();
    check("dropout", input, p, at)?;
    drop_by(input, input.shape(), p, training)
}

fn drop_by(input: &Tensor, shape: &Shape, p: f64, training: bool) -> Result<Tensor> {
    if !training {
        return Ok(input.clone());
    }
    let mask = mask(input, shape, p)?;
    let keep = Operand::Number(Number::Float(1.0 - p));
    record_op(Dropout, &[input.into(), (&mask).into(), keep])
}

/// The shape of a mask that keeps or zeros whole channels: 1 on all axes after the channels.
fn channels(shape: &Shape, batched: bool) -> Shape {
    let kept = 1 + usize::from(batched);
    let dims: Dims = shape
        .iter()
        .enumerate()
        .map(|(axis, &d)| if axis < kept { d } else { 1 })
        .collect();
    Shape::from(dims)
}

fn drop_channels(
    op: &'static str,
    input: &Tensor,
    p: f64,
    training: bool,
    [unbatched, batched]: [usize; 2],
    at: &'static Location<'static>,
) -> Result<Tensor> {
    check(op, input, p, at)?;
    if input.rank() != unbatched && input.rank() != batched {
        let expected = format!("an input of {unbatched} or {batched} axes");
        return Err(Error::shape(op, expected, input.shape()).at(at));
    }
    let shape = channels(input.shape(), input.rank() == batched);
    drop_by(input, &shape, p, training)
}

/// [`dropout`] of whole channels: of `[batch, channels, length]` or `[channels, length]`.
///
/// # Errors
/// As [`dropout`]; [`Error::ShapeMismatch`] for another number of axes.
#[track_caller]
pub fn dropout1d(input: &Tensor, p: f64, training: bool) -> Result<Tensor> {
    drop_channels("dropout1d", input, p, training, [2, 3], Location::caller())
}

/// [`dropout`] of whole channels of `[batch, channels, height, width]`. As PyTorch reads it, an input
/// of three axes is `[batch, channels, length]`.
///
/// # Errors
/// As [`dropout1d`].
#[track_caller]
pub fn dropout2d(input: &Tensor, p: f64, training: bool) -> Result<Tensor> {
    let at = Location::caller();
    match input.rank() {
        3 => drop_channels("dropout2d", input, p, training, [4, 3], at),
        _ => drop_channels("dropout2d", input, p, training, [3, 4], at),
    }
}

/// [`dropout`] of whole channels: of `[batch, channels, depth, height, width]` or without the batch.
///
/// # Errors
/// As [`dropout1d`].
#[track_caller]
pub fn dropout3d(input: &Tensor, p: f64, training: bool) -> Result<Tensor> {
    drop_channels("dropout3d", input, p, training, [4, 5], Location::caller())
}

/// The limit of SELU towards minus infinity, with its sign changed.
const ALPHA: f64 = 1.758_099_340_847_376_6;

/// Sets elements to the negative saturation value of SELU with probability `p` while training, and
/// maps the result so that mean and variance of a standard normal input stay (Klambauer et al.,
/// "Self-normalizing neural networks", 2017). `p` is data; with `p = 1` all elements are 0.
///
/// # Errors
/// As [`dropout`].
#[track_caller]
pub fn alpha_dropout(input: &Tensor, p: f64, training: bool) -> Result<Tensor> {
    check("alpha_dropout", input, p, Location::caller())?;
    alpha_drop_by(input, input.shape(), p, training)
}

/// [`alpha_dropout`] of whole channels, the input's second axis.
///
/// # Errors
/// As [`dropout`]; [`Error::ShapeMismatch`] for fewer than two axes.
#[track_caller]
pub fn feature_alpha_dropout(input: &Tensor, p: f64, training: bool) -> Result<Tensor> {
    let (op, at) = ("feature_alpha_dropout", Location::caller());
    check(op, input, p, at)?;
    if input.rank() < 2 {
        return Err(Error::shape(op, "an input of at least two axes", input.shape()).at(at));
    }
    let shape = channels(input.shape(), true);
    alpha_drop_by(input, &shape, p, training)
}

fn alpha_drop_by(input: &Tensor, shape: &Shape, p: f64, training: bool) -> Result<Tensor> {
    if !training {
        return Ok(input.clone());
    }
    // With p = 1 nothing is kept, and the scale would be infinite.
    let scale = match p {
        1.0 => 0.0,
        p => ((ALPHA * ALPHA * p + 1.0) * (1.0 - p)).powf(-0.5),
    };
    let (kept, dropped) = (ALPHA * scale * p, ALPHA * scale * (p - 1.0));
    let kept = input.mul(scale)?.add(kept)?;
    let dropped = Tensor::full((), dropped, (input.dtype(), input.device()))?;
    mask(input, shape, p)?.select_from(&kept, &dropped)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_of_channels_spans_the_rest() {
        let dims = |dims: &[usize], batched| channels(&Shape::new(dims), batched).dims().to_vec();
        assert_eq!(dims(&[2, 3, 4, 5], true), [2, 3, 1, 1]);
        assert_eq!(dims(&[3, 4], false), [3, 1]);
        assert_eq!(dims(&[3], true), [3]);
    }
}
