//! Random numbers: any arguments give an error or numbers of the promised type.

use super::{Call, Draw, Property, Run};
use xla::nn::functional;
use xla::{Result, Tensor};

/// Draws numbers of a drawn shape and dtype.
fn drawn(
    draw: &mut Draw<'_>,
    call: fn(&mut Draw<'_>, &[usize], xla::DType) -> Result<Tensor>,
) -> Result<Call> {
    let (dtype, dims) = (draw.float(), draw.dims(3));
    Ok(Call::new(Vec::new(), vec![call(draw, &dims, dtype)?]))
}

fn dropped(draw: &mut Draw<'_>, call: fn(&Tensor, f64, bool) -> Result<Tensor>) -> Result<Call> {
    let (dtype, dims) = (draw.float(), draw.dims(5));
    let p = draw.pick(&[0.5, 0.0, 1.0, 0.1, -0.1, 1.1, f64::NAN]);
    let training = !draw.once_in(3);
    let x = draw.array(dtype, &dims).leaf()?;
    let output = call(&x, p, training)?;
    Ok(Call::new(vec![x], vec![output]))
}

fn bernoulli(draw: &mut Draw<'_>) -> Result<Call> {
    let (dtype, dims) = (draw.float(), draw.dims(3));
    let p = draw.array(dtype, &dims).tensor()?;
    let output = p.bernoulli()?;
    Ok(Call::new(vec![p], vec![output]))
}

fn multinomial(draw: &mut Draw<'_>) -> Result<Call> {
    let (dtype, dims) = (draw.float(), draw.dims(3));
    let (samples, replacement) = (draw.size(4), draw.once_in(2));
    let mut weights = draw.finite(dtype, &dims);
    if let Some(values) = &mut weights.values {
        values.iter_mut().for_each(|w| *w = w.abs() + 0.25);
    }
    let weights = weights.tensor()?;
    let output = weights.multinomial(samples, replacement)?;
    Ok(Call::new(vec![weights], vec![output]))
}

fn bounds(draw: &mut Draw<'_>) -> (f64, f64) {
    (draw.around(6) as f64 / 2.0, draw.around(6) as f64 / 2.0)
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 12] = [
        ("rand", |draw| {
            drawn(draw, |_, dims, dtype| Tensor::rand(dims, dtype))
        }),
        ("randn", |draw| {
            drawn(draw, |_, dims, dtype| Tensor::randn(dims, dtype))
        }),
        ("uniform", |draw| {
            drawn(draw, |draw, dims, dtype| {
                let (low, high) = bounds(draw);
                Tensor::uniform(low, high, dims, dtype)
            })
        }),
        ("normal", |draw| {
            drawn(draw, |draw, dims, dtype| {
                let (mean, std) = bounds(draw);
                Tensor::normal(mean, std, dims, dtype)
            })
        }),
        ("exponential", |draw| {
            drawn(draw, |draw, dims, dtype| {
                Tensor::exponential(bounds(draw).0, dims, dtype)
            })
        }),
        ("randint", |draw| {
            drawn(draw, |draw, dims, dtype| {
                let (low, high) = (draw.int(5), draw.int(9));
                Tensor::randint(low, high, dims, dtype)
            })
        }),
        ("randperm", |draw| {
            drawn(draw, |draw, _, dtype| Tensor::randperm(draw.size(9), dtype))
        }),
        ("bernoulli", bernoulli),
        ("multinomial", multinomial),
        ("dropout", |draw| dropped(draw, functional::dropout)),
        ("dropout2d", |draw| dropped(draw, functional::dropout2d)),
        ("alpha_dropout", |draw| {
            dropped(draw, functional::alpha_dropout)
        }),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
