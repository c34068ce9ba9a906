//! Attention.

use super::{accumulator, floating};
use smallvec::smallvec;
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};
use xla_lazy::autocast::lower;
use xla_lazy::stablehlo::{Compare, Func, Reduction, Value};
use xla_lazy::{Derivative, InputType, Operand, Operator, Saves, Tensor, Ty, Vjp, record_op, ty};

/// From scores to weights that sum to 1: `softmax(scores * scale + mask)` over the last axis, in the
/// accumulator's dtype. A row in which everything is masked has weights of 0, as PyTorch's.
///
/// The operands are the scores, the scale, and a mask if there is one: of `bool`, true where a
/// key is seen, or of floats, which are added.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Weights {
    /// Whether a query sees only keys up to its own position.
    causal: bool,
}

impl Operator for Weights {
    const NAME: &'static str = "scaled_dot_product_attention";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::OUTPUT.and_input(1),
        // Where the mask hides a key its weight is 0, and with it the gradient.
        rule: |_, vjp: &Vjp<'_>| {
            let weights = vjp.output()?;
            let weighted = vjp.grad().mul(weights)?;
            let total = weighted.sum(-1, true)?;
            let inner = weighted.sub(&weights.mul(&total)?)?;
            let scores = match vjp.needs(0) {
                true => Some(inner.mul(vjp.operand(1)?)?.to_dtype(vjp.dtype(0))?),
                false => None,
            };
            let mask = match vjp.needs(2) {
                true => Some(vjp.reduce(2, &inner)?),
                false => None,
            };
            let mut gradients: xla_lazy::Gradients = smallvec![scores, None];
            if vjp.len() > 2 {
                gradients.push(mask);
            }
            Ok(gradients)
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let scores = inputs[0].tensor(Self::NAME)?;
        if let Some(mask) = inputs.get(2) {
            let mask = mask.tensor(Self::NAME)?;
            if mask.dtype() != DType::Bool && !mask.dtype().is_float() {
                let expected = "an attn_mask of bool or a floating-point dtype";
                return Err(Error::dtype(Self::NAME, expected, mask.dtype()));
            }
            if !mask.shape().expands_to(scores.shape()) {
                let expected = format!("an attn_mask that broadcasts to {}", scores.shape());
                return Err(Error::shape(Self::NAME, expected, mask.shape()));
            }
        }
        Ok(ty(accumulator(scores.dtype()), scores.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let shape = out.shape();
        let scale = f.convert(inputs[1], out.dtype());
        let scale = f.broadcast_in_dim(scale, shape, &[]);
        let scores = f.convert(inputs[0], out.dtype());
        let mut scores = f.binary("multiply", scores, scale);
        let hidden = f.constant(out.dtype(), shape, f64::NEG_INFINITY);
        if let Some(&mask) = inputs.get(2) {
            scores = if mask.dtype() == DType::Bool {
                let mask = f.broadcast_to(mask, shape)?;
                f.select(mask, scores, hidden)
            } else {
                let mask = f.convert(mask, out.dtype());
                let mask = f.broadcast_to(mask, shape)?;
                f.binary("add", scores, mask)
            };
        }
        let last = shape.rank() - 1;
        if self.causal {
            let square = Shape::new(&shape[last - 1..]);
            let query = f.iota(DType::I32, &square, 0);
            let key = f.iota(DType::I32, &square, 1);
            let seen = f.compare(Compare::Ge, query, key);
            let seen = f.broadcast_to(seen, shape)?;
            scores = f.select(seen, scores, hidden);
        }
        let rows: Dims = (0..last).collect();
        let highest = f.reduce(Reduction::Max, scores, &[last]);
        let zero = f.constant(out.dtype(), highest.shape(), 0.0);
        let nothing = f.identity(Reduction::Max, out.dtype());
        let nothing = f.broadcast_in_dim(nothing, highest.shape(), &[]);
        let masked = f.compare(Compare::Eq, highest, nothing);
        let highest = f.select(masked, zero, highest);
        let highest = f.broadcast_in_dim(highest, shape, &rows);
        let shifted = f.binary("subtract", scores, highest);
        let exponential = f.unary("exponential", shifted);
        let sum = f.reduce(Reduction::Sum, exponential, &[last]);
        let one = f.constant(out.dtype(), sum.shape(), 1.0);
        let sum = f.select(masked, one, sum);
        let sum = f.broadcast_in_dim(sum, shape, &rows);
        Ok(f.binary("divide", exponential, sum))
    }
}

/// What [`scaled_dot_product_attention`] masks, scales and drops; PyTorch's defaults.
#[derive(Debug, Clone, Copy, Default)]
pub struct AttentionOptions<'a> {
    /// Broadcasts to `[.., queries, keys]`: of `bool`, true where a key is seen, or of floats, which
    /// are added to the scores.
    pub attn_mask: Option<&'a Tensor>,
    /// The probability with which a weight is set to 0 (and the others are scaled up). It is data
    /// of the program, except for whether it is 0.
    pub dropout_p: f64,
    /// Whether a query sees only the keys up to its own position, counted from the first.
    pub is_causal: bool,
    /// What scores are multiplied by; `1 / sqrt(features)` for none. It is data of the program.
    pub scale: Option<f64>,
    /// Whether keys and values may have fewer heads (axis -3) than queries, each serving as many
    /// consecutive heads as needed.
    pub enable_gqa: bool,
}

/// `softmax(query keyᵀ * scale + mask) value`
/// ([Vaswani et al. 2017](https://arxiv.org/abs/1706.03762)).
///
/// `query` is `[.., queries, features]`, `key` `[.., keys, features]` and `value` `[.., keys,
/// outputs]`; the result is `[.., queries, outputs]`. Axes in front broadcast. A query that sees no
/// key gives zeros. Half precision computes the weights in `f32`.
///
/// # Errors
/// [`Error::ShapeMismatch`] when the shapes do not fit each other, [`Error::DTypeMismatch`] for
/// different dtypes or ones that are not floating-point, [`Error::Argument`] for a mask together
/// with `is_causal` or a probability outside of `0..=1`.
#[track_caller]
pub fn scaled_dot_product_attention(
    query: &Tensor,
    key: &Tensor,
    value: &Tensor,
    options: AttentionOptions<'_>,
) -> Result<Tensor> {
    const OP: &str = Weights::NAME;
    let at = Location::caller();
    let [query, key, value] = [&*lower(query)?, &*lower(key)?, &*lower(value)?];
    checked(OP, [query, key, value], &options).map_err(|e| e.at(at))?;
    let features = query.size(-1)?;
    let scale = options
        .scale
        .unwrap_or_else(|| 1.0 / (features as f64).sqrt());
    // Heads that share keys lie behind one another, so that they are more rows of one product.
    let grouped = match options.enable_gqa
        && query.dims()[..query.rank() - 2] != key.dims()[..key.rank() - 2]
    {
        true => {
            let mut dims = query.dims().to_vec();
            let [.., heads, rows, _] = dims.as_mut_slice() else {
                return Err(Error::shape(OP, "heads on axis -3", query.shape()).at(at));
            };
            let shared = key.size(-3)?;
            *rows *= *heads / shared.max(1);
            *heads = shared;
            Some(query.reshape(dims.as_slice())?)
        }
        false => None,
    };
    let scores = grouped
        .as_ref()
        .unwrap_or(query)
        .matmul(&key.transpose(-2, -1)?)?;
    let rows = scores.dims().to_vec();
    let scores = match grouped {
        Some(_) => {
            let mut dims = query.dims().to_vec();
            dims.splice(query.rank() - 1.., [key.size(-2)?]);
            scores.reshape(dims.as_slice())?
        }
        None => scores,
    };
    let shape = scores.shape().clone();
    // The products before and after have one axis for all in front. Weights that have it too are the
    // same array to the compiler in the forward and the backward pass, and computed once.
    let scores = match *scores.dims() {
        [ref lead @ .., queries, keys] if lead.len() > 1 && options.attn_mask.is_none() => {
            scores.reshape([lead.iter().product(), queries, keys])?
        }
        _ => scores,
    };
    let mut operands: Vec<Operand<'_>> = vec![(&scores).into(), scale.into()];
    operands.extend(options.attn_mask.map(Operand::from));
    let causal = options.is_causal;
    let mut weights = record_op(Weights { causal }, &operands)?;
    if options.dropout_p > 0.0 {
        let p = options.dropout_p;
        let drawn = Tensor::rand(weights.shape(), (DType::F32, weights.device()))?;
        let kept = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
        weights = drawn.ge(p)?.select_from(&weights.mul(kept)?, 0)?;
    }
    let weights = weights.to_dtype(query.dtype())?.reshape(shape)?;
    match grouped {
        Some(_) => {
            let mut dims = query.dims().to_vec();
            dims.splice(query.rank() - 1.., [value.size(-1)?]);
            let mixed = weights.reshape(rows.as_slice())?.matmul(value)?;
            mixed.reshape(dims.as_slice())
        }
        None => weights.matmul(value),
    }
}

/// What can be wrong with the operands of attention.
fn checked(
    op: &'static str,
    [query, key, value]: [&Tensor; 3],
    options: &AttentionOptions<'_>,
) -> Result<()> {
    if !(0.0..=1.0).contains(&options.dropout_p) {
        let expected = "a probability from 0 to 1";
        return Err(Error::argument(
            op,
            "dropout_p",
            expected,
            options.dropout_p,
        ));
    }
    if options.is_causal && options.attn_mask.is_some() {
        let expected = "none with is_causal";
        return Err(Error::argument(op, "attn_mask", expected, "a mask"));
    }
    floating(op, "a query", query)?;
    let last = |tensor: &Tensor, what: &str| match *tensor.dims() {
        [.., length, features] => Ok((length, features)),
        _ => {
            let expected = format!("{what} of shape [.., length, features]");
            Err(Error::shape(op, expected, tensor.shape()))
        }
    };
    let (_, features) = last(query, "a query")?;
    let (keys, key_features) = last(key, "a key")?;
    let (values, _) = last(value, "a value")?;
    for other in [key, value] {
        if other.dtype() != query.dtype() {
            let expected = format!("three operands of {}", query.dtype());
            return Err(Error::dtype(op, expected, other.dtype()));
        }
    }
    if features != key_features {
        let expected = format!("a key with {features} features, as the query's");
        return Err(Error::shape(op, expected, key.shape()));
    }
    if keys != values {
        let expected = format!("a value for each of {keys} keys");
        return Err(Error::shape(op, expected, value.shape()));
    }
    if options.enable_gqa {
        let ([.., heads, _, _], [.., shared, _, _], [.., held, _, _]) =
            (query.dims(), key.dims(), value.dims())
        else {
            let expected = "heads on axis -3 of all operands";
            return Err(Error::shape(op, expected, query.shape()));
        };
        if *shared == 0 || !heads.is_multiple_of(*shared) || held != shared {
            let expected = format!("as many heads of keys as of values, dividing {heads}");
            let got = format!("{} and {}", key.shape(), value.shape());
            return Err(Error::shape(op, expected, got));
        }
    }
    Ok(())
}
