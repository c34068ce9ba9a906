//! Shape, views, padding.

use super::{Call, Kwargs, one};
use xla::{PadMode, Result, Tensor};

/// `pad` of a mode that takes no number.
fn padded(x: &[Tensor], args: &Kwargs, mode: PadMode) -> Result<Vec<Tensor>> {
    one(x[0].pad(args.ints("pad")?, mode))
}

/// The tensors that an operator takes as a list.
fn list(x: &[Tensor]) -> Vec<&Tensor> {
    x.iter().collect()
}

/// Lengths of at least 0; others are beyond any axis.
fn sizes(values: &[i64]) -> Vec<usize> {
    let size = |&v: &i64| usize::try_from(v).unwrap_or(usize::MAX);
    values.iter().map(size).collect()
}

/// By PyTorch's mode.
fn pad(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    match args.str_or_none("mode")?.as_deref() {
        None | Some("constant") => {
            let value = args.f64_or("value", 0.0)?;
            one(x[0].pad(args.ints("pad")?, value))
        }
        Some("reflect") => padded(x, args, PadMode::Reflect),
        Some("replicate") => padded(x, args, PadMode::Replicate),
        Some(_) => padded(x, args, PadMode::Circular),
    }
}

/// By one size or several.
fn split(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    let dim = args.i64_or("dim", 0)?;
    for name in [
        "split_size",
        "split_size_or_sections",
        "split_sizes",
        "sections",
    ] {
        if args.is_int(name) {
            return x[0].split(args.usize(name)?, dim);
        }
        if let Some(list) = args.ints_or_none(name)? {
            return x[0].split_with_sizes(&sizes(&list), dim);
        }
    }
    x[0].split(args.usize("split_size")?, dim)
}

fn tensor_split(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    let dim = args.i64_or("dim", 0)?;
    for name in ["sections", "indices_or_sections"] {
        if args.is_int(name) {
            return x[0].tensor_split(args.usize(name)?, dim);
        }
    }
    match args.ints_or_none("indices_or_sections")? {
        Some(indices) => x[0].tensor_split_at(&indices, dim),
        None => x[0].tensor_split_at(&args.ints("indices")?, dim),
    }
}

fn repeat_interleave(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    let dim = args.i64_or_none("dim")?;
    let repeats = match (x.get(1), args.ints_or_none("repeats")?) {
        (Some(repeats), _) => repeats.clone(),
        (None, Some(list)) if !args.is_int("repeats") => {
            Tensor::from_slice(&list, [list.len()], ())?
        }
        _ => return one(x[0].repeat_interleave(args.usize("repeats")?, dim)),
    };
    let output_size = match args.i64_or_none("output_size")? {
        Some(_) => Some(args.usize("output_size")?),
        None => None,
    };
    one(x[0].repeat_interleave_each(&repeats, dim, output_size))
}

fn squeeze(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    one(match args.ints_or_none("dim")? {
        Some(dims) => x[0].squeeze(dims.as_slice()),
        None => x[0].squeeze(()),
    })
}

fn roll(x: &[Tensor], args: &Kwargs) -> Result<Vec<Tensor>> {
    let shifts = args.ints("shifts")?;
    one(match args.ints_or_none("dims")? {
        Some(dims) => x[0].roll(shifts, dims.as_slice()),
        None => x[0].roll(shifts, ()),
    })
}

operators! {
    fn find(name: &str) -> Option<Call> {
        "reshape" => |x, a| one(x[0].reshape(a.ints("shape")?)),
        "view" => |x, a| one(x[0].view(a.ints("shape")?)),
        "flatten" => |x, a| one(x[0].flatten(a.i64_or("start_dim", 0)?, a.i64_or("end_dim", -1)?)),
        "unflatten" => |x, a| {
            let sizes = match a.ints_or_none("sizes")? {
                Some(sizes) => sizes,
                None => a.ints("unflattened_size")?,
            };
            one(x[0].unflatten(a.i64("dim")?, sizes))
        },
        "permute" => |x, a| one(x[0].permute(a.ints("dims")?.as_slice())),
        "transpose" | "swapdims" | "swapaxes" => {
            |x, a| one(x[0].transpose(a.i64("dim0")?, a.i64("dim1")?))
        },
        "t" => |x, _| one(x[0].t()),
        "squeeze" => squeeze,
        "unsqueeze" => |x, a| one(x[0].unsqueeze(a.i64("dim")?)),
        "expand" | "broadcast_to" => |x, a| {
            let shape = match a.ints_or_none("shape")? {
                Some(shape) => shape,
                None => a.ints("size")?,
            };
            one(x[0].expand(shape))
        },
        "expand_as" => |x, _| one(x[0].expand_as(&x[1])),
        "cat" | "concat" | "concatenate" => |x, a| one(Tensor::cat(&list(x), a.i64_or("dim", 0)?)),
        "stack" => |x, a| one(Tensor::stack(&list(x), a.i64_or("dim", 0)?)),
        "split" | "split_with_sizes" => split,
        "unbind" => |x, a| x[0].unbind(a.i64_or("dim", 0)?),
        "chunk" => |x, a| x[0].chunk(a.usize("chunks")?, a.i64_or("dim", 0)?),
        "tensor_split" => tensor_split,
        "narrow" => |x, a| one(x[0].narrow(a.i64("dim")?, a.i64("start")?, a.usize("length")?)),
        "slice" => |x, a| {
            let end = a.i64_or("end", i64::MAX)?;
            let step = a.i64_or_none("step")?.map_or(Ok(1), |_| a.usize("step"))?;
            one(x[0].slice(a.i64_or("dim", 0)?, a.i64_or("start", 0)?, end, step))
        },
        "select" => |x, a| one(x[0].select(a.i64("dim")?, a.i64("index")?)),
        "flip" => |x, a| one(x[0].flip(a.ints("dims")?.as_slice())),
        "roll" => roll,
        "pad" => pad,
        "pad_constant" => |x, a| one(x[0].pad(a.ints("pad")?, a.f64_or("value", 0.0)?)),
        "pad_reflect" => |x, a| padded(x, a, PadMode::Reflect),
        "pad_replicate" => |x, a| padded(x, a, PadMode::Replicate),
        "pad_circular" => |x, a| padded(x, a, PadMode::Circular),
        "repeat" => |x, a| one(x[0].repeat(a.ints("repeats")?)),
        "tile" => |x, a| one(x[0].tile(a.ints("dims")?)),
        "repeat_interleave" => repeat_interleave,
        "tril" => |x, a| one(x[0].tril(a.i64_or("diagonal", 0)?)),
        "triu" => |x, a| one(x[0].triu(a.i64_or("diagonal", 0)?)),
        "diagonal" => |x, a| {
            let (dim1, dim2) = (a.i64_or("dim1", 0)?, a.i64_or("dim2", 1)?);
            one(x[0].diagonal(a.i64_or("offset", 0)?, dim1, dim2))
        },
        "diag" => |x, a| one(x[0].diag(a.i64_or("diagonal", 0)?)),
        "diag_embed" => |x, a| {
            let (dim1, dim2) = (a.i64_or("dim1", -2)?, a.i64_or("dim2", -1)?);
            one(x[0].diag_embed(a.i64_or("offset", 0)?, dim1, dim2))
        },
        "movedim" | "moveaxis" => |x, a| {
            let (source, destination) = (a.ints("source")?, a.ints("destination")?);
            one(x[0].movedim(source.as_slice(), destination.as_slice()))
        },
        "unfold" => |x, a| {
            let dim = match a.i64_or_none("dim")? {
                Some(dim) => dim,
                None => a.i64("dimension")?,
            };
            one(x[0].unfold(dim, a.usize("size")?, a.usize("step")?))
        },
    }
}
