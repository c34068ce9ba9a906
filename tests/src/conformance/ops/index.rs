//! Selections and writes by indices and masks.

use super::{Call, Kwargs, one};
use xla::nn::functional::{self, EmbeddingOptions};
use xla::{Error, Index, Result, ScatterReduce, Tensor};
use xla_lazy::{Number, Operand};

/// A number of the kind it was written as.
fn number(args: &Kwargs, name: &'static str) -> Result<Number> {
    match args.is_int(name) {
        true => args.i64(name).map(Number::Int),
        false => args.f64(name).map(Number::Float),
    }
}

/// The third input, or the number of this name.
fn source<'a>(
    x: &'a [Tensor],
    at: usize,
    args: &Kwargs,
    name: &'static str,
) -> Result<Operand<'a>> {
    match x.get(at) {
        Some(tensor) => Ok(tensor.into()),
        None => number(args, name).map(Operand::Number),
    }
}

fn scatter(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    let dim = args.i64("dim")?;
    let Some(reduce) = args.str_or_none("reduce")? else {
        return one(x[0].scatter(dim, &x[1], source(x, 2, args, "value")?));
    };
    let reduce = if reduce == "add" { "sum" } else { &reduce };
    let values = match source(x, 2, args, "value")? {
        Operand::Tensor(values) => values.clone(),
        Operand::Number(value) => Tensor::full(x[1].shape(), value, x[0].dtype())?,
    };
    one(x[0].scatter_reduce(dim, &x[1], &values, reduction(reduce)?, true))
}

fn reduction(name: &str) -> Result<ScatterReduce> {
    Ok(match name {
        "sum" => ScatterReduce::Sum,
        "prod" | "multiply" => ScatterReduce::Prod,
        "mean" => ScatterReduce::Mean,
        "amax" => ScatterReduce::Amax,
        "amin" => ScatterReduce::Amin,
        other => {
            return Err(Error::argument(
                "scatter_reduce",
                "reduce",
                "a reduction",
                other,
            ));
        }
    })
}

fn index_add(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    let alpha = match args.f64_or_none("alpha")? {
        Some(_) => Some(number(args, "alpha")?),
        None => None,
    };
    one(x[0].index_add(args.i64("dim")?, &x[1], &x[2], alpha))
}

fn embedding(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    let options = EmbeddingOptions {
        padding_idx: args.i64_or_none("padding_idx")?,
        max_norm: args.f64_or_none("max_norm")?,
        norm_type: args.f64_or("norm_type", 2.0)?,
        scale_grad_by_freq: args.bool_or("scale_grad_by_freq", false)?,
    };
    // PyTorch's order is indices first; a case names the differentiated weight first.
    let (weight, indices) = match x[0].dtype().is_float() {
        true => (&x[0], &x[1]),
        false => (&x[1], &x[0]),
    };
    one(functional::embedding(weight, indices, options))
}

fn one_hot(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    let classes = match args.i64_or("num_classes", -1)? {
        -1 => None,
        _ => Some(args.usize("num_classes")?),
    };
    one(x[0].one_hot(classes))
}

/// Every input but the first is an index tensor.
fn index(x: &[Tensor], _: &Kwargs) -> Result<Vec<Tensor>> {
    let parts: Vec<Index<'_>> = x[1..].iter().map(Index::from).collect();
    one(x[0].index(&parts))
}

/// The inputs are the tensor, index tensors and the values.
fn index_put(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    let last = x.len() - 1;
    let parts: Vec<Index<'_>> = x[1..last].iter().map(Index::from).collect();
    one(x[0].index_put(&parts, &x[last], args.bool_or("accumulate", false)?))
}

operators! {
    fn find(name: &str) -> Option<Call> {
        "index_select" => |x, a| one(x[0].index_select(a.i64("dim")?, &x[1])),
        "gather" => |x, a| one(x[0].gather(a.i64("dim")?, &x[1])),
        "take_along_dim" => |x, a| one(x[0].take_along_dim(&x[1], a.i64_or_none("dim")?)),
        "scatter" => scatter,
        "scatter_add" => |x, a| one(x[0].scatter_add(a.i64("dim")?, &x[1], &x[2])),
        "scatter_reduce" => |x, a| {
            let reduce = reduction(&a.str("reduce")?)?;
            let include_self = a.bool_or("include_self", true)?;
            one(x[0].scatter_reduce(a.i64("dim")?, &x[1], &x[2], reduce, include_self))
        },
        "index_add" => index_add,
        "index_copy" => |x, a| one(x[0].index_copy(a.i64("dim")?, &x[1], &x[2])),
        "index_fill" => {
            |x, a| one(x[0].index_fill(a.i64("dim")?, &x[1], source(x, 2, a, "value")?))
        },
        "index" => index,
        "index_put" => index_put,
        "masked_fill" => |x, a| one(x[0].masked_fill(&x[1], source(x, 2, a, "value")?)),
        "masked_scatter" => |x, _| one(x[0].masked_scatter(&x[1], &x[2])),
        "masked_select" => |x, _| one(x[0].masked_select(&x[1])),
        "embedding" => embedding,
        "one_hot" => one_hot,
    }
}
