//! Losses of probabilities of two classes.

use super::{Reduction, rounded, same_shape};
use smallvec::smallvec;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::autocast::full;
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, OpEntry, Operator, Saves, Tensor, Ty, Vjp, record};

/// How [`binary_cross_entropy_with_logits`] weighs elements; PyTorch's defaults.
#[derive(Debug, Clone, Copy, Default)]
pub struct BceWithLogitsOptions<'a> {
    /// Multiplies each loss; broadcasts to the input.
    pub weight: Option<&'a Tensor>,
    /// Multiplies the losses of the positive class; broadcasts to the input.
    pub pos_weight: Option<&'a Tensor>,
    /// What becomes of the single losses.
    pub reduction: Reduction,
}

/// How [`binary_cross_entropy`] weighs elements; PyTorch's defaults.
#[derive(Debug, Clone, Copy, Default)]
pub struct BceOptions<'a> {
    /// Multiplies each loss; broadcasts to the input.
    pub weight: Option<&'a Tensor>,
    /// What becomes of the single losses.
    pub reduction: Reduction,
}

fn weights(op: &'static str, input: &Tensor, given: [Option<&Tensor>; 2]) -> Result<()> {
    for weight in given.into_iter().flatten() {
        if !weight.shape().expands_to(input.shape()) {
            let expected = format!("a weight that broadcasts to {}", input.shape());
            return Err(Error::shape(op, expected, weight.shape()));
        }
    }
    Ok(())
}

#[track_caller]
fn times(losses: Tensor, weight: Option<&Tensor>) -> Result<Tensor> {
    match weight {
        Some(weight) => losses.mul(weight),
        None => Ok(losses),
    }
}

/// The cross entropy of `sigmoid(input)` with the targets, probabilities of the positive class:
/// `-(target log σ(x) + (1 - target) log σ(-x))`, exact for large logits.
///
/// # Errors
/// [`Error::ShapeMismatch`] when the target has another shape or a weight does not broadcast,
/// [`Error::DTypeMismatch`] for an input that is not floating-point.
#[track_caller]
pub fn binary_cross_entropy_with_logits(
    input: &Tensor,
    target: &Tensor,
    options: BceWithLogitsOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = "binary_cross_entropy_with_logits";
    let at = Location::caller();
    let input = &*full(input)?;
    same_shape(OP, input, target).map_err(|e| e.at(at))?;
    weights(OP, input, [options.weight, options.pos_weight]).map_err(|e| e.at(at))?;
    let losses = |x: &Tensor| {
        let log = x.logsigmoid()?;
        let log = match options.pos_weight {
            Some(weight) => log.mul(&weight.sub(1)?.mul(target)?.add(1)?)?,
            None => log,
        };
        times(target.rsub(1)?.mul(x)?.sub(&log)?, options.weight)
    };
    rounded(input, options.reduction, losses).map_err(|e| e.relocated(at))
}

/// The cross entropy of probabilities; logarithms are at least -100, so that it is finite.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct BinaryCrossEntropy;

impl Operator for BinaryCrossEntropy {
    const NAME: &'static str = "binary_cross_entropy";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |_, vjp: &Vjp<'_>| {
            let (x, t) = (vjp.input(0)?, vjp.input(1)?);
            let input = match vjp.needs(0) {
                true => {
                    let variance = x.rsub(1)?.mul(x)?.maximum(1e-12)?;
                    Some(vjp.grad().mul(&x.sub(t)?)?.div(&variance)?)
                }
                false => None,
            };
            let target = match vjp.needs(1) {
                true => Some(vjp.grad().mul(&x.neg()?.log1p()?.sub(&x.log()?)?)?),
                false => None,
            };
            Ok(smallvec![input, target])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (x, t) = (inputs[0], inputs[1]);
        let least = f.constant(out.dtype(), out.shape(), -100.0);
        let one = f.constant(out.dtype(), out.shape(), 1.0);
        let log = f.unary("log", x);
        let log = f.binary("maximum", log, least);
        let minus = f.unary("negate", x);
        let other = f.unary("log_plus_one", minus);
        let other = f.binary("maximum", other, least);
        let rest = f.binary("subtract", t, one);
        let rest = f.binary("multiply", rest, other);
        let log = f.binary("multiply", t, log);
        Ok(f.binary("subtract", rest, log))
    }
}

/// The cross entropy of the input, probabilities in `0..=1`, with the targets:
/// `-(target log x + (1 - target) log(1 - x))`, where logarithms are at least -100.
/// [`binary_cross_entropy_with_logits`] is exact where this is not.
///
/// An input outside of `0..=1` gives NaN, or a loss without meaning.
///
/// # Errors
/// As [`binary_cross_entropy_with_logits`].
#[track_caller]
pub fn binary_cross_entropy(
    input: &Tensor,
    target: &Tensor,
    options: BceOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = BinaryCrossEntropy::NAME;
    static ENTRY: OpEntry = OpEntry::of(&BinaryCrossEntropy);
    let at = Location::caller();
    let input = &*full(input)?;
    same_shape(OP, input, target).map_err(|e| e.at(at))?;
    weights(OP, input, [options.weight, None]).map_err(|e| e.at(at))?;
    let losses = |x: &Tensor| {
        let target = target.to_dtype(x.dtype())?;
        times(
            record(&ENTRY, &[x.into(), (&target).into()])?,
            options.weight,
        )
    };
    rounded(input, options.reduction, losses).map_err(|e| e.relocated(at))
}
