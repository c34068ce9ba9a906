//! Selections and writes by indices and masks, compared with loops over indices.

use super::binary::{broadcast, common};
use super::reduce::resolved;
use super::unary::{compared, rounding};
use super::{Array, Call, Draw, Property, Run};
use ndarray::{ArrayD, IxDyn};
use xla::nn::functional::{self, EmbeddingOptions};
use xla::{DType, Index, Operand, Result, ScatterReduce, Tensor};

/// A tensor, an axis of it and that axis's length.
fn drawn(draw: &mut Draw<'_>) -> (Array, i64, usize) {
    let (dtype, dims) = (draw.dtype(), draw.dims(3));
    let axis = draw.axis(dims.len());
    let at = resolved(axis, dims.len());
    let length = at.and_then(|at| dims.get(at)).copied().unwrap_or(1);
    (draw.array(dtype, &dims), axis, length)
}

/// The position that an index names, counted from the end when negative.
fn position(index: f64, length: usize) -> Option<usize> {
    let index = index as i64;
    let from = if index < 0 {
        index + length as i64
    } else {
        index
    };
    usize::try_from(from).ok().filter(|&i| i < length)
}

/// The shape with another length on an axis.
fn with_length(dims: &[usize], axis: i64, length: usize) -> Vec<usize> {
    let mut dims = dims.to_vec();
    if let Some(dim) = resolved(axis, dims.len()).and_then(|at| dims.get_mut(at)) {
        *dim = length;
    }
    dims
}

/// `index_select`, `index_add` and `index_copy`: slices along an axis.
fn slices(draw: &mut Draw<'_>, name: &str) -> Result<Call> {
    let (array, axis, length) = drawn(draw);
    let count = draw.length();
    let rank = if draw.once_in(12) { draw.below(3) } else { 1 };
    let low = if draw.once_in(4) { -(length as i64) } else { 0 };
    let indices = draw.indices(&vec![count; rank], low, length as i64);
    let dims = with_length(&array.dims, axis, count);
    let source = draw.array(array.dtype, &dims);
    let alpha = draw.once_in(3).then(|| draw.operand());
    let mut inputs = vec![array.leaf()?, indices.tensor()?];
    if name != "index_select" {
        inputs.push(source.leaf()?);
    }
    let output = match name {
        "index_select" => inputs[0].index_select(axis, &inputs[1])?,
        "index_add" => inputs[0].index_add(axis, &inputs[1], &inputs[2], alpha)?,
        _ => inputs[0].index_copy(axis, &inputs[1], &inputs[2])?,
    };
    let expected = array.nd().zip(indices.values).and_then(|(host, indices)| {
        let at = resolved(axis, host.ndim()).filter(|_| rank == 1 && host.ndim() > 0)?;
        let places: Option<Vec<usize>> = indices.iter().map(|&i| position(i, length)).collect();
        let select = name == "index_select";
        select.then_some(())?;
        Some(host.select(ndarray::Axis(at), &places?))
    });
    Ok(Call::new(inputs, vec![output]).expect(expected, 0.0))
}

fn index_fill(draw: &mut Draw<'_>) -> Result<Call> {
    let (array, axis, length) = drawn(draw);
    let count = draw.length();
    let indices = draw.indices(&[count], 0, length as i64);
    let value = draw.operand();
    let inputs = vec![array.leaf()?, indices.tensor()?];
    let output = inputs[0].index_fill(axis, &inputs[1], value)?;
    Ok(Call::new(inputs, vec![output]))
}

/// Indices for single elements: within the tensor but for one axis.
fn elements(draw: &mut Draw<'_>, array: &Array, axis: i64, length: usize) -> Array {
    let mut dims = with_length(&array.dims, axis, draw.length());
    let at = resolved(axis, dims.len());
    for (i, dim) in dims.iter_mut().enumerate() {
        if Some(i) != at && *dim > 0 && draw.once_in(4) {
            *dim -= 1;
        }
    }
    if draw.once_in(16) {
        dims.push(2);
    }
    draw.indices(&dims, 0, length as i64)
}

/// Each index with the place in the tensor that it stands for.
fn places(indices: &Array, axis: i64, length: usize) -> Option<Vec<Vec<usize>>> {
    let host = indices.nd()?;
    let at = resolved(axis, host.ndim())?;
    let place = |(index, &value): (IxDyn, &f64)| {
        let mut place: Vec<usize> = ndarray::Dimension::slice(&index).to_vec();
        if let Some(part) = place.get_mut(at) {
            *part = position(value, length)?;
        }
        Some(place)
    };
    host.indexed_iter().map(place).collect()
}

fn gather(draw: &mut Draw<'_>, along: bool) -> Result<Call> {
    let (array, axis, length) = drawn(draw);
    let indices = elements(draw, &array, axis, length);
    let inputs = vec![array.leaf()?, indices.tensor()?];
    if along {
        let dim = (!draw.once_in(4)).then_some(axis);
        let output = inputs[0].take_along_dim(&inputs[1], dim)?;
        return Ok(Call::new(inputs, vec![output]));
    }
    let output = inputs[0].gather(axis, &inputs[1])?;
    let expected = array.nd().and_then(|host| {
        let places = places(&indices, axis, length)?;
        let values = places.iter().map(|p| host.get(p.as_slice()).copied());
        ArrayD::from_shape_vec(IxDyn(&indices.dims), values.collect::<Option<_>>()?).ok()
    });
    Ok(Call::new(inputs, vec![output]).expect(expected, 0.0))
}

fn scatter(draw: &mut Draw<'_>, reduce: Option<ScatterReduce>, add: bool) -> Result<Call> {
    let (array, axis, length) = drawn(draw);
    let indices = elements(draw, &array, axis, length);
    let include_self = !draw.once_in(3);
    let number = draw.once_in(3).then(|| draw.operand());
    let other = if draw.once_in(12) {
        draw.dtype()
    } else {
        array.dtype
    };
    let source = draw.array(other, &indices.dims);
    let inputs = vec![array.leaf()?, indices.tensor()?, source.leaf()?];
    let (x, at, source_tensor) = (&inputs[0], &inputs[1], &inputs[2]);
    let output = match (reduce, add) {
        (_, true) => x.scatter_add(axis, at, source_tensor)?,
        (Some(reduce), _) => x.scatter_reduce(axis, at, source_tensor, reduce, include_self)?,
        (None, _) => {
            let value: Operand<'_> = number.map_or(source_tensor.into(), Operand::Number);
            x.scatter(axis, at, value)?
        }
    };
    let kind = output.dtype();
    let sums = add || reduce == Some(ScatterReduce::Sum) && include_self;
    let expected = array
        .nd()
        .zip(source.nd())
        .filter(|_| sums && compared(kind));
    let expected = expected.and_then(|(mut host, source)| {
        for (place, value) in places(&indices, axis, length)?.iter().zip(&source) {
            let sum = host.get_mut(place.as_slice())?;
            *sum = match kind {
                DType::Bool => f64::from(u8::from(*sum + value > 0.0)),
                _ => *sum + value,
            };
        }
        Some(host)
    });
    Ok(Call::new(inputs, vec![output]).expect(expected, 8.0 * rounding(kind)))
}

/// Parts of every kind, for as many axes as there are and sometimes more.
fn indexed(draw: &mut Draw<'_>, put: bool) -> Result<Call> {
    let (array, _, _) = drawn(draw);
    let mut held: Vec<Array> = Vec::new();
    let mut kinds = Vec::new();
    let count = draw.below(array.dims.len() + 1) + usize::from(draw.once_in(12));
    let shape = draw.dims(2);
    for axis in 0..count {
        let length = array.dims.get(axis).copied().unwrap_or(2);
        let kind = draw.below(6);
        kinds.push(if kind == 5 && !draw.reads() { 0 } else { kind });
        held.push(match kinds[axis] {
            5 => draw.array(DType::Bool, &[length]),
            _ => draw.indices(&shape, 0, length as i64),
        });
    }
    // A mask is read to the host, which holds no large one.
    if array.values.is_none() || held.iter().any(|part| part.values.is_none()) {
        return Ok(Call::new(vec![array.leaf()?], Vec::new()));
    }
    let tensors: Vec<Tensor> = held.iter().map(Array::tensor).collect::<Result<_>>()?;
    let mut parts = Vec::new();
    for (&kind, tensor) in kinds.iter().zip(&tensors) {
        parts.push(match kind {
            0 | 5 => Index::Tensor(tensor),
            1 => Index::At(draw.int(3)),
            2 => {
                let (start, end) = (draw.int(4), draw.int(6));
                Index::from(start..end).step(draw.size(3))
            }
            3 => Index::NewAxis,
            _ => Index::Ellipsis,
        });
    }
    let x = array.leaf()?;
    let output = match put {
        false => x.index(&parts)?,
        true => {
            let accumulate = draw.once_in(2);
            match draw.once_in(2) {
                true => x.index_put(&parts, draw.operand(), accumulate)?,
                false => {
                    let value = draw.array(array.dtype, &[]).leaf()?;
                    x.index_put(&parts, &value, accumulate)?
                }
            }
        }
    };
    Ok(Call::new(vec![x], vec![output]))
}

fn masked(draw: &mut Draw<'_>, name: &str) -> Result<Call> {
    let (array, _, _) = drawn(draw);
    let like = draw.dims_like(&array.dims);
    let kind = if draw.once_in(16) {
        draw.dtype()
    } else {
        DType::Bool
    };
    let mask = draw.array(kind, &like);
    let number = draw.operand();
    let source = draw.array(array.dtype, &array.dims);
    let spread = broadcast(&[&array, &mask]);
    let mut inputs = vec![array.leaf()?, mask.leaf()?];
    // A mask is read to the host, which holds no large one.
    let elements = common(&[&array.dims, &mask.dims]).unwrap_or_default();
    let elements = elements.iter().fold(1usize, |n, &d| n.saturating_mul(d));
    let unread = name == "masked_select" && !draw.reads();
    if unread || elements > 1 << 14 || array.values.is_none() || mask.values.is_none() {
        return Ok(Call::new(inputs, Vec::new()));
    }
    let output = match name {
        "masked_fill" => inputs[0].masked_fill(&inputs[1], number)?,
        "masked_select" => inputs[0].masked_select(&inputs[1])?,
        _ => {
            inputs.push(source.leaf()?);
            inputs[0].masked_scatter(&inputs[1], &inputs[2])?
        }
    };
    let selected = spread.filter(|_| name == "masked_select").map(|parts| {
        let pairs = parts[0].iter().zip(&parts[1]);
        let values: Vec<f64> = pairs.filter(|(_, m)| **m != 0.0).map(|(&x, _)| x).collect();
        ArrayD::from_shape_fn(IxDyn(&[values.len()]), |i| values[i[0]])
    });
    Ok(Call::new(inputs, vec![output]).expect(selected, 0.0))
}

fn embedding(draw: &mut Draw<'_>) -> Result<Call> {
    let (rows, width, dtype) = (draw.length(), draw.length(), draw.float());
    let shape = draw.dims(2);
    let options = EmbeddingOptions {
        padding_idx: draw.once_in(3).then(|| draw.int(4)),
        max_norm: None,
        norm_type: 2.0,
        scale_grad_by_freq: draw.once_in(4),
    };
    let indices = draw.indices(&shape, 0, rows as i64);
    let weight = draw.array(dtype, &[rows, width]);
    let inputs = vec![weight.leaf()?, indices.tensor()?];
    let output = functional::embedding(&inputs[0], &inputs[1], options)?;
    let expected = weight
        .nd()
        .zip(indices.values)
        .and_then(|(table, indices)| {
            let places: Option<Vec<usize>> = indices.iter().map(|&i| position(i, rows)).collect();
            let rows = table.select(ndarray::Axis(0), &places?);
            let mut dims = shape.clone();
            dims.push(width);
            rows.into_shape_with_order(IxDyn(&dims)).ok()
        });
    Ok(Call::new(inputs, vec![output]).expect(expected, 0.0))
}

fn one_hot(draw: &mut Draw<'_>) -> Result<Call> {
    let dims = draw.dims(3);
    let classes = draw.once_in(2).then(|| draw.size(6));
    let indices = draw.indices(&dims, 0, classes.unwrap_or(5) as i64);
    let x = indices.tensor()?;
    // The largest index is read to the host, which holds no large tensor.
    if classes.is_none() && indices.values.is_none() {
        return Ok(Call::new(vec![x], Vec::new()));
    }
    let output = x.one_hot(classes)?;
    Ok(Call::new(vec![x], vec![output]))
}

pub(super) fn properties() -> Vec<Property> {
    let all: [(&str, Run); 16] = [
        ("embedding", embedding),
        ("gather", |draw| gather(draw, false)),
        ("index", |draw| indexed(draw, false)),
        ("index_add", |draw| slices(draw, "index_add")),
        ("index_copy", |draw| slices(draw, "index_copy")),
        ("index_fill", index_fill),
        ("index_put", |draw| indexed(draw, true)),
        ("index_select", |draw| slices(draw, "index_select")),
        ("masked_fill", |draw| masked(draw, "masked_fill")),
        ("masked_scatter", |draw| masked(draw, "masked_scatter")),
        ("masked_select", |draw| masked(draw, "masked_select")),
        ("one_hot", one_hot),
        ("scatter", |draw| scatter(draw, None, false)),
        ("scatter_add", |draw| scatter(draw, None, true)),
        ("scatter_reduce", |draw| {
            use ScatterReduce::{Amax, Amin, Mean, Prod, Sum};
            let reduce = draw.pick(&[Sum, Prod, Mean, Amax, Amin]);
            scatter(draw, Some(reduce), false)
        }),
        ("take_along_dim", |draw| gather(draw, true)),
    ];
    all.map(|(name, run)| Property { name, run }).into()
}
