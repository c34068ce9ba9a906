//! Losses and attention, compared with their formulas.

use super::binary::broadcast;
use super::unary::rounding;
use super::{Array, Call, Draw, Property, Run};
use ndarray::{ArrayD, IxDyn};
use xla::nn::functional::{
    self, AttentionOptions, BceOptions, BceWithLogitsOptions, CrossEntropyOptions,
    GaussianNllOptions, KlDivOptions, KlDivReduction, NllLossOptions, PoissonNllOptions, Reduction,
    TripletMarginOptions,
};
use xla::{DType, Result, Tensor};

fn reduction(draw: &mut Draw<'_>) -> Reduction {
    draw.pick(&[Reduction::None, Reduction::Mean, Reduction::Sum])
}

/// What a reduction makes of single losses.
fn reduced(losses: ArrayD<f64>, reduction: Reduction) -> ArrayD<f64> {
    let scalar = |value| ArrayD::from_elem(IxDyn(&[]), value);
    match reduction {
        Reduction::None => losses,
        Reduction::Sum => scalar(losses.sum()),
        Reduction::Mean => scalar(losses.sum() / losses.len() as f64),
    }
}

/// Arrays of one dtype and shape, mostly; the numbers are finite.
fn alike<const N: usize>(draw: &mut Draw<'_>) -> Result<([Array; N], Vec<Tensor>)> {
    let (dtype, dims) = (draw.float(), draw.dims(3));
    let arrays = std::array::from_fn(|i| {
        let like = if i > 0 && draw.once_in(8) {
            draw.dims_like(&dims)
        } else {
            dims.clone()
        };
        let other = if i > 0 && draw.once_in(16) {
            draw.dtype()
        } else {
            dtype
        };
        draw.finite(other, &like)
    });
    let inputs = arrays.iter().map(Array::leaf).collect::<Result<_>>()?;
    Ok((arrays, inputs))
}

/// A loss of each element of two tensors.
fn elementwise(
    draw: &mut Draw<'_>,
    call: impl FnOnce(&Tensor, &Tensor, Reduction) -> Result<Tensor>,
    reference: impl Fn(f64, f64) -> f64,
) -> Result<Call> {
    let reduction = reduction(draw);
    let (arrays, inputs) = alike::<2>(draw)?;
    let output = call(&inputs[0], &inputs[1], reduction)?;
    let kind = output.dtype();
    let float = arrays.iter().all(|a| a.dtype.is_float()) && kind.is_float();
    let parts = broadcast(&arrays.each_ref()).filter(|_| float);
    let expected = parts.map(|parts| {
        let pairs = ndarray::Zip::from(&parts[0]).and(&parts[1]);
        reduced(pairs.map_collect(|&x, &t| reference(x, t)), reduction)
    });
    Ok(Call::new(inputs, vec![output]).expect(expected, 64.0 * rounding(kind)))
}

fn softplus(x: f64) -> f64 {
    x.max(0.0) + (-x.abs()).exp().ln_1p()
}

fn huber(draw: &mut Draw<'_>, smooth: bool) -> Result<Call> {
    let width = draw.pick(&[1.0, 0.5, 2.0, 0.0, -1.0]);
    let scale = if smooth { 1.0 / width } else { 1.0 };
    let of = move |x: f64, t: f64| match (x - t).abs() {
        d if smooth && width == 0.0 => d,
        d if d < width => 0.5 * d * d * scale,
        d => (d - 0.5 * width) * width * scale,
    };
    match smooth {
        true => elementwise(
            draw,
            |x, t, r| functional::smooth_l1_loss(x, t, r, width),
            of,
        ),
        false => elementwise(draw, |x, t, r| functional::huber_loss(x, t, r, width), of),
    }
}

/// Divergences of probabilities, which these numbers are not: only the types are compared.
fn divergence(draw: &mut Draw<'_>) -> Result<Call> {
    let options = KlDivOptions {
        reduction: draw.pick(&[
            KlDivReduction::Mean,
            KlDivReduction::None,
            KlDivReduction::Sum,
            KlDivReduction::BatchMean,
        ]),
        log_target: draw.once_in(2),
    };
    let (_, inputs) = alike::<2>(draw)?;
    let output = functional::kl_div(&inputs[0], &inputs[1], options)?;
    Ok(Call::new(inputs, vec![output]))
}

fn poisson(draw: &mut Draw<'_>) -> Result<Call> {
    let (log_input, full) = (!draw.once_in(2), draw.once_in(2));
    let mut call = elementwise(
        draw,
        |x, t, reduction| {
            let eps = 1e-2;
            let options = PoissonNllOptions {
                log_input,
                full,
                eps,
                reduction,
            };
            functional::poisson_nll_loss(x, t, options)
        },
        |x, t| match log_input {
            true => x.exp() - t * x,
            false => x - t * (x + 1e-2).ln(),
        },
    )?;
    if full {
        call.expected.clear();
    }
    Ok(call)
}

fn gaussian(draw: &mut Draw<'_>) -> Result<Call> {
    let options = GaussianNllOptions {
        full: draw.once_in(2),
        eps: 1e-6,
        reduction: reduction(draw),
    };
    let (_, inputs) = alike::<3>(draw)?;
    let variance = inputs[2].abs()?;
    let output = functional::gaussian_nll_loss(&inputs[0], &inputs[1], &variance, options)?;
    Ok(Call::new(inputs, vec![output]))
}

fn binary(draw: &mut Draw<'_>, logits: bool) -> Result<Call> {
    let reduction = reduction(draw);
    let (weighted, positive) = (draw.once_in(3), draw.once_in(3));
    let (arrays, inputs) = alike::<4>(draw)?;
    let (x, weight) = (&inputs[0], weighted.then_some(&inputs[2]));
    let target = inputs[1].detach()?.sigmoid()?;
    let output = match logits {
        true => {
            let pos_weight = positive.then_some(&inputs[3]);
            let options = BceWithLogitsOptions {
                weight,
                pos_weight,
                reduction,
            };
            functional::binary_cross_entropy_with_logits(x, &target, options)?
        }
        false => {
            let options = BceOptions { weight, reduction };
            functional::binary_cross_entropy(&x.sigmoid()?, &target, options)?
        }
    };
    let kind = output.dtype();
    let plain = !weighted && !positive && matches!(kind, DType::F32 | DType::F64);
    let parts = broadcast(&[&arrays[0], &arrays[1]]).filter(|_| plain);
    let expected = parts.map(|parts| {
        let pairs = ndarray::Zip::from(&parts[0]).and(&parts[1]);
        let losses = pairs.map_collect(|&x, &t| softplus(x) - x / (1.0 + (-t).exp()));
        reduced(losses, reduction)
    });
    let same = arrays[0].dims == arrays[1].dims && arrays[0].dtype == arrays[1].dtype;
    Ok(Call::new(inputs, vec![output]).expect(expected.filter(|_| same), 128.0 * rounding(kind)))
}

/// Losses of labels 1 and -1.
fn signed(draw: &mut Draw<'_>, name: &str) -> Result<Call> {
    let margin = draw.around(4) as f64 / 2.0;
    let reduction = reduction(draw);
    let (_, inputs) = alike::<3>(draw)?;
    let label = inputs[2].detach()?.sign()?;
    let (a, b) = (&inputs[0], &inputs[1]);
    let output = match name {
        "cosine" => functional::cosine_embedding_loss(a, b, &label, margin, reduction)?,
        "hinge" => functional::hinge_embedding_loss(a, &label, margin, reduction)?,
        _ => functional::margin_ranking_loss(a, b, &label, margin, reduction)?,
    };
    Ok(Call::new(inputs, vec![output]))
}

fn triplet(draw: &mut Draw<'_>) -> Result<Call> {
    let options = TripletMarginOptions {
        margin: draw.pick(&[1.0, 0.5, 0.0, -1.0]),
        p: draw.pick(&[2.0, 1.0, f64::INFINITY, 0.0]),
        eps: 1e-6,
        swap: draw.once_in(2),
        reduction: reduction(draw),
    };
    let (_, inputs) = alike::<3>(draw)?;
    let output = functional::triplet_margin_loss(&inputs[0], &inputs[1], &inputs[2], options)?;
    Ok(Call::new(inputs, vec![output]))
}

fn pairwise_distance(draw: &mut Draw<'_>) -> Result<Call> {
    let (p, keepdim) = (draw.pick(&[2.0, 1.0, f64::INFINITY]), draw.once_in(2));
    let (_, inputs) = alike::<2>(draw)?;
    let output = functional::pairwise_distance(&inputs[0], &inputs[1], p, 1e-6, keepdim)?;
    Ok(Call::new(inputs, vec![output]))
}

fn glu(draw: &mut Draw<'_>) -> Result<Call> {
    let (dtype, mut dims) = (draw.float(), draw.dims(3));
    let axis = draw.axis(dims.len());
    if let Some(at) = super::reduce::resolved(axis, dims.len())
        && let Some(dim) = dims.get_mut(at)
        && !draw.once_in(6)
    {
        *dim = dim.saturating_mul(2);
    }
    let x = draw.finite(dtype, &dims).leaf()?;
    let output = functional::glu(&x, axis)?;
    Ok(Call::new(vec![x], vec![output]))
}

/// `cross_entropy` and `nll_loss` of labels, and of probabilities.
fn labelled(draw: &mut Draw<'_>, softmax: bool) -> Result<Call> {
    let dtype = draw.float();
    let (classes, n) = (draw.length(), draw.length());
    let (mut dims, mut places) = (vec![classes], Vec::new());
    if !draw.once_in(5) {
        dims.insert(0, n);
        places.push(n);
        let more = draw.dims(1);
        dims.extend(&more);
        places.extend(more);
    }
    if draw.once_in(16) {
        places.push(2);
    }
    let reduction = reduction(draw);
    let ignore_index = draw.pick(&[-100, 0, 1]);
    let smoothing = draw.pick(&[0.0, 0.0, 0.1, 1.0, 1.5]);
    let (weighted, soft) = (draw.once_in(3), softmax && draw.once_in(4));
    let target = draw.indices(&places, 0, classes as i64);
    let chances = draw.finite(dtype, &dims);
    let weight = draw.finite(dtype, &[classes]);
    let array = draw.finite(dtype, &dims);
    let x = array.leaf()?;
    let weight = weight.tensor()?;
    let weight = weighted.then_some(&weight);
    let labels = match soft {
        true => chances.tensor()?.softmax(-1)?,
        false => target.tensor()?,
    };
    let output = match softmax {
        true => {
            let label_smoothing = smoothing;
            let options = CrossEntropyOptions {
                weight,
                ignore_index,
                reduction,
                label_smoothing,
            };
            functional::cross_entropy(&x, &labels, options)?
        }
        false => {
            let options = NllLossOptions {
                weight,
                ignore_index,
                reduction,
            };
            functional::nll_loss(&x, &labels, options)?
        }
    };
    let kind = output.dtype();
    let plain = !weighted && !soft && (smoothing == 0.0 || !softmax);
    let hosts = array
        .nd()
        .zip(target.nd())
        .filter(|(x, _)| plain && x.ndim() == 2);
    let expected = hosts.and_then(|(x, target)| {
        let mut losses = ArrayD::zeros(IxDyn(&[n]));
        let mut counted = 0.0;
        for (i, &label) in target.iter().enumerate() {
            if label as i64 == ignore_index {
                continue;
            }
            let row = x.index_axis(ndarray::Axis(0), i);
            let total = row.iter().map(|x| x.exp()).sum::<f64>().ln();
            let own = *row.get([usize::try_from(label as i64).ok()?].as_slice())?;
            losses[[i].as_slice()] = if softmax { total - own } else { -own };
            counted += 1.0;
        }
        Some(match reduction {
            Reduction::Mean => ArrayD::from_elem(IxDyn(&[]), losses.sum() / counted),
            other => reduced(losses, other),
        })
    });
    Ok(Call::new(vec![x], vec![output]).expect(expected, 64.0 * rounding(kind)))
}

fn attention(draw: &mut Draw<'_>) -> Result<Call> {
    let dtype = draw.float();
    let lead = draw.dims(2);
    let [queries, keys, features, outputs] = std::array::from_fn(|_| draw.length());
    let of = |rows: usize, columns: usize| {
        let mut dims = lead.clone();
        dims.extend([rows, columns]);
        dims
    };
    let mut shapes = [of(queries, features), of(keys, features), of(keys, outputs)];
    if draw.once_in(12) {
        shapes[draw.below(3)] = draw.dims(4);
    }
    let mask = match draw.below(4) {
        2 => Some(draw.finite(DType::Bool, &[queries, keys])),
        3 => Some(draw.array(dtype, &of(queries, keys))),
        _ => None,
    };
    let is_causal = draw.once_in(3);
    let scale = draw.once_in(3).then(|| draw.around(4) as f64 / 2.0);
    let enable_gqa = draw.once_in(6);
    let dropout_p = draw.pick(&[0.0, 0.0, 0.0, 0.0, 0.5, 1.0, -1.0]);
    let arrays = shapes.map(|dims| draw.finite(dtype, &dims));
    let inputs: Vec<Tensor> = arrays.iter().map(Array::leaf).collect::<Result<_>>()?;
    let mask = mask.map(|mask| mask.tensor()).transpose()?;
    let options = AttentionOptions {
        attn_mask: mask.as_ref(),
        dropout_p,
        is_causal,
        scale,
        enable_gqa,
    };
    let (q, k, v) = (&inputs[0], &inputs[1], &inputs[2]);
    let output = functional::scaled_dot_product_attention(q, k, v, options)?;
    Ok(Call::new(inputs, vec![output]))
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 19] = [
        ("bce_with_logits", |draw| binary(draw, true)),
        ("binary_cross_entropy", |draw| binary(draw, false)),
        ("cosine_embedding_loss", |draw| signed(draw, "cosine")),
        ("cross_entropy", |draw| labelled(draw, true)),
        ("gaussian_nll_loss", gaussian),
        ("glu", glu),
        ("hinge_embedding_loss", |draw| signed(draw, "hinge")),
        ("huber_loss", |draw| huber(draw, false)),
        ("kl_div", divergence),
        ("l1_loss", |draw| {
            elementwise(draw, functional::l1_loss, |x, t| (x - t).abs())
        }),
        ("margin_ranking_loss", |draw| signed(draw, "margin")),
        ("mse_loss", |draw| {
            elementwise(draw, functional::mse_loss, |x, t| (x - t).powi(2))
        }),
        ("nll_loss", |draw| labelled(draw, false)),
        ("pairwise_distance", pairwise_distance),
        ("poisson_nll_loss", poisson),
        ("scaled_dot_product_attention", attention),
        ("smooth_l1_loss", |draw| huber(draw, true)),
        ("soft_margin_loss", |draw| {
            elementwise(draw, functional::soft_margin_loss, |x, t| softplus(-x * t))
        }),
        ("triplet_margin_loss", triplet),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
