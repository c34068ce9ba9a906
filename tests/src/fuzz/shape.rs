//! Operators that move elements, compared with `ndarray`.

use super::reduce::{resolved, some_axes};
use super::{Call, Draw, Property};
use ndarray::{ArrayD, Axis, IxDyn, Slice, concatenate, stack};
use xla::{PadMode, Result, Tensor};

/// The elements of the tensor that is moved, where they are held.
type Host = Option<ArrayD<f64>>;

/// An operator on `x`: the results, and the first one's elements where they are known.
type Move = fn(&mut Draw<'_>, &Tensor, Host) -> Result<(Vec<Tensor>, Host)>;

fn moved(draw: &mut Draw<'_>, rank: usize, call: Move) -> Result<Call> {
    let dtype = draw.dtype();
    let dims = draw.dims(rank);
    let array = draw.array(dtype, &dims);
    let x = array.leaf()?;
    let (outputs, expected) = call(draw, &x, array.nd())?;
    Ok(Call::new(vec![x], outputs).expect(expected, 0.0))
}

/// A random order of the axes, sometimes with one twice.
fn order(draw: &mut Draw<'_>, rank: usize) -> Vec<i64> {
    let mut left: Vec<i64> = (0..rank as i64).collect();
    let mut order = Vec::new();
    while !left.is_empty() {
        order.push(left.remove(draw.below(left.len())));
    }
    if draw.once_in(12)
        && let Some(last) = order.last_mut()
    {
        *last = draw.around(5);
    }
    order
}

/// Lengths of as many elements, mostly.
fn lengths(draw: &mut Draw<'_>, x: &Tensor) -> Vec<i64> {
    let mut dims: Vec<i64> = x.dims().iter().map(|&d| d as i64).collect();
    if dims.len() > 1 && draw.once_in(2) {
        let joined = dims.remove(0).saturating_mul(dims[0]);
        dims[0] = joined;
    }
    if !dims.is_empty() && draw.once_in(3) {
        dims[0] = draw.pick(&[-1, -1, 3, -2, i64::MAX, i64::MIN]);
    }
    dims
}

/// One number for each axis, or for one more or less.
fn each_axis(
    draw: &mut Draw<'_>,
    rank: usize,
    mut of: impl FnMut(&mut Draw<'_>) -> i64,
) -> Vec<i64> {
    let n = match draw.below(8) {
        6 => rank + 1,
        7 => rank.saturating_sub(1),
        _ => rank,
    };
    (0..n).map(|_| of(draw)).collect()
}

fn pad(draw: &mut Draw<'_>, x: &Tensor, mode: PadMode) -> Result<Tensor> {
    let axes = match mode {
        PadMode::Constant(_) => draw.below(x.rank() + 1),
        _ => x.rank().saturating_sub(1 + draw.below(2)),
    };
    let n = 2 * axes + usize::from(draw.once_in(12));
    let amounts: Vec<i64> = (0..n).map(|_| draw.int(2)).collect();
    x.pad(amounts, mode)
}

/// A plain move: its arguments, the call, and the same with `ndarray`.
fn one(output: Tensor) -> (Vec<Tensor>, Host) {
    (vec![output], None)
}

/// The elements at these places along an axis.
fn picked(host: &ArrayD<f64>, axis: i64, places: impl Fn(usize) -> Vec<usize>) -> Host {
    let axis = Axis(resolved(axis, host.ndim()).filter(|_| host.ndim() > 0)?);
    Some(host.select(axis, &places(host.len_of(axis))))
}

/// Elements on one side of a diagonal; 0 on the other.
fn triangle(host: &ArrayD<f64>, seen: impl Fn(i64) -> bool) -> Host {
    let last = host.ndim().checked_sub(1)?;
    let mut values = host.clone();
    for (index, value) in values.indexed_iter_mut() {
        if !seen(index[last] as i64 - index[last - 1] as i64) {
            *value = 0.0;
        }
    }
    Some(values)
}

macro_rules! moved {
    ($($name:ident $rank:literal: $call:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| moved(draw, $rank, $call),
        }),*]
    };
}

pub(super) fn properties() -> Vec<Property> {
    let mut properties = arranged();
    properties.extend(cut());
    properties.extend(repeated());
    properties
}

fn arranged() -> Vec<Property> {
    moved! {
        reshape 4: |draw, x, host| {
            let dims = lengths(draw, x);
            let output = x.reshape(dims.as_slice())?;
            // The order of the elements stays.
            let host = host.and_then(|h| h.into_shape_with_order(IxDyn(output.dims())).ok());
            Ok((vec![output], host))
        };
        view 4: |draw, x, host| {
            let dims = lengths(draw, x);
            let output = x.view(dims.as_slice())?;
            let host = host.and_then(|h| h.into_shape_with_order(IxDyn(output.dims())).ok());
            Ok((vec![output], host))
        };
        flatten 4: |draw, x, host| {
            let (start, end) = (draw.axis(x.rank()), draw.axis(x.rank()));
            let output = x.flatten(start, end)?;
            let host = host.and_then(|h| h.into_shape_with_order(IxDyn(output.dims())).ok());
            Ok((vec![output], host))
        };
        unflatten 3: |draw, x, host| {
            let axis = draw.axis(x.rank());
            let length = resolved(axis, x.rank()).and_then(|a| x.dims().get(a).copied());
            let length = length.unwrap_or(2) as i64;
            let sizes = draw.pick(&[[-1, 1], [1, -1], [2, -1], [-1, -1], [3, 2], [i64::MAX, 2]]);
            let sizes = if draw.once_in(3) { vec![1, length, 1] } else { sizes.to_vec() };
            let output = x.unflatten(axis, sizes)?;
            let host = host.and_then(|h| h.into_shape_with_order(IxDyn(output.dims())).ok());
            Ok((vec![output], host))
        };
        permute 5: |draw, x, host| {
            let axes = order(draw, x.rank());
            let output = x.permute(axes.as_slice())?;
            let axes: Vec<usize> = axes.iter().filter_map(|&a| resolved(a, x.rank())).collect();
            Ok((vec![output], host.map(|h| h.permuted_axes(IxDyn(&axes)))))
        };
        transpose 4: |draw, x, host| {
            let (a, b) = (draw.axis(x.rank()), draw.axis(x.rank()));
            let output = x.transpose(a, b)?;
            let expected = host.map(|mut host| {
                if let (Some(a), Some(b)) = (resolved(a, x.rank()), resolved(b, x.rank()))
                    && x.rank() > 0
                {
                    host.swap_axes(a, b);
                }
                host
            });
            Ok((vec![output], expected))
        };
        t 3: |_, x, host| Ok((vec![x.t()?], host.map(|h| h.reversed_axes())));
        movedim 4: |draw, x, _| {
            let source = some_axes(draw, x.rank());
            let mut destination = order(draw, x.rank());
            destination.truncate(source.len());
            Ok(one(x.movedim(source.as_slice(), destination.as_slice())?))
        };
        flip 4: |draw, x, host| {
            let axes = some_axes(draw, x.rank());
            let output = x.flip(axes.as_slice())?;
            let expected = host.map(|mut host| {
                for axis in axes.iter().filter_map(|&a| resolved(a, x.rank())) {
                    if x.rank() > 0 {
                        host.invert_axis(Axis(axis));
                    }
                }
                host
            });
            Ok((vec![output], expected))
        };
        roll 4: |draw, x, host| {
            let (axis, shift) = (draw.axis(x.rank()), draw.int(5));
            if draw.once_in(3) {
                let axes = some_axes(draw, x.rank());
                let shifts: Vec<i64> = axes.iter().map(|_| draw.int(5)).collect();
                return Ok(one(x.roll(shifts, axes.as_slice())?));
            }
            let output = x.roll(shift, axis)?;
            let places = |n: usize| {
                let from = |i: i128| (i - i128::from(shift)).rem_euclid(n as i128) as usize;
                (0..n as i128).map(from).collect()
            };
            Ok((vec![output], host.and_then(|h| picked(&h, axis, places))))
        };
        squeeze 4: |draw, x, host| {
            let output = match draw.once_in(3) {
                true => x.squeeze(())?,
                false => x.squeeze(some_axes(draw, x.rank()).as_slice())?,
            };
            let host = host.and_then(|h| h.into_shape_with_order(IxDyn(output.dims())).ok());
            Ok((vec![output], host))
        };
        unsqueeze 4: |draw, x, host| {
            let axis = draw.axis(x.rank() + 1);
            let at = resolved(axis, x.rank() + 1);
            Ok((vec![x.unsqueeze(axis)?], host.zip(at).map(|(h, at)| h.insert_axis(Axis(at)))))
        };
        expand 3: |draw, x, host| {
            let mut dims: Vec<i64> = x.dims().iter().map(|&d| d as i64).collect();
            for length in &mut dims {
                if *length == 1 || draw.once_in(16) {
                    *length = draw.length() as i64;
                } else if draw.once_in(4) {
                    *length = -1;
                }
            }
            if draw.once_in(2) {
                dims.insert(0, draw.length() as i64);
            }
            let output = x.expand(dims.as_slice())?;
            let expected = host.and_then(|h| Some(h.broadcast(output.dims())?.to_owned()));
            Ok((vec![output], expected))
        };
        expand_as 3: |draw, x, host| {
            let mut dims = draw.dims(1);
            dims.extend(x.dims().iter().map(|&d| if d == 1 { draw.length() } else { d }));
            let output = x.expand_as(&Tensor::zeros(dims.as_slice(), ())?)?;
            let expected = host.and_then(|h| Some(h.broadcast(output.dims())?.to_owned()));
            Ok((vec![output], expected))
        };
        tril 4: |draw, x, host| {
            let diagonal = draw.int(4);
            let output = x.tril(diagonal)?;
            Ok((vec![output], host.and_then(|h| triangle(&h, |d| d <= diagonal))))
        };
        triu 4: |draw, x, host| {
            let diagonal = draw.int(4);
            let output = x.triu(diagonal)?;
            Ok((vec![output], host.and_then(|h| triangle(&h, |d| d >= diagonal))))
        };
        diagonal 4: |draw, x, _| {
            let (dim1, dim2) = (draw.axis(x.rank()), draw.axis(x.rank()));
            Ok(one(x.diagonal(draw.int(3), dim1, dim2)?))
        };
        diag 3: |draw, x, _| Ok(one(x.diag(draw.int(3))?));
        diag_embed 3: |draw, x, _| {
            let (dim1, dim2) = (draw.axis(x.rank() + 1), draw.axis(x.rank() + 1));
            Ok(one(x.diag_embed(draw.int(3), dim1, dim2)?))
        };
    }
}

fn cut() -> Vec<Property> {
    moved! {
        narrow 4: |draw, x, host| {
            let axis = draw.axis(x.rank());
            let (start, length) = (draw.int(4), draw.size(3));
            let output = x.narrow(axis, start, length)?;
            let places = |n: usize| {
                let first = if start < 0 { start + n as i64 } else { start } as usize;
                (first..first + length).collect()
            };
            Ok((vec![output], host.and_then(|h| picked(&h, axis, places))))
        };
        slice 4: |draw, x, host| {
            let (axis, start, end) = (draw.axis(x.rank()), draw.int(6), draw.int(9));
            let step = draw.size(3);
            let output = x.slice(axis, start, end, step)?;
            let places = |n: usize| {
                let n = n as i64;
                let at = |i: i64| if i < 0 { i.saturating_add(n).max(0) } else { i.min(n) };
                (at(start)..at(end)).step_by(step).map(|i| i as usize).collect()
            };
            Ok((vec![output], host.and_then(|h| picked(&h, axis, places))))
        };
        select 4: |draw, x, host| {
            let (axis, index) = (draw.axis(x.rank()), draw.int(5));
            let output = x.select(axis, index)?;
            let expected = host.and_then(|host| {
                let axis = resolved(axis, x.rank())?;
                let index = resolved(index, host.shape()[axis])?;
                Some(host.index_axis(Axis(axis), index).to_owned())
            });
            Ok((vec![output], expected))
        };
        unbind 3: |draw, x, host| {
            let axis = draw.axis(x.rank());
            let outputs = x.unbind(axis)?;
            let expected = host.and_then(|host| {
                let axis = Axis(resolved(axis, x.rank())?);
                (host.len_of(axis) > 0).then(|| host.index_axis(axis, 0).to_owned())
            });
            Ok((outputs, expected))
        };
        split 3: |draw, x, host| {
            let (size, axis) = (draw.size(4), draw.axis(x.rank()));
            if draw.once_in(3) {
                let sizes = [draw.size(2), draw.size(2), draw.size(2)];
                return Ok((x.split_with_sizes(&sizes[draw.below(3)..], axis)?, None));
            }
            let outputs = x.split(size, axis)?;
            let places = |n: usize| (0..size.min(n)).collect();
            Ok((outputs, host.and_then(|h| picked(&h, axis, places))))
        };
        chunk 3: |draw, x, host| {
            let (chunks, axis) = (draw.size(5), draw.axis(x.rank()));
            let outputs = x.chunk(chunks, axis)?;
            let places = |n: usize| (0..n.div_ceil(chunks).min(n)).collect();
            Ok((outputs, host.and_then(|h| picked(&h, axis, places))))
        };
        tensor_split 3: |draw, x, host| {
            let (sections, axis) = (draw.size(5), draw.axis(x.rank()));
            if draw.once_in(2) {
                let at = [draw.int(6), draw.int(6)];
                return Ok((x.tensor_split_at(&at[draw.below(2)..], axis)?, None));
            }
            let outputs = x.tensor_split(sections, axis)?;
            let places = |n: usize| (0..n / sections + usize::from(!n.is_multiple_of(sections))).collect();
            Ok((outputs, host.and_then(|h| picked(&h, axis, places))))
        };
        cat 3: |draw, x, host| {
            let axis = draw.axis(x.rank());
            let output = Tensor::cat(&[x, x], axis)?;
            let expected = host.and_then(|host| {
                let axis = Axis(resolved(axis, host.ndim())?);
                concatenate(axis, &[host.view(), host.view()]).ok()
            });
            Ok((vec![output], expected))
        };
        stack 3: |draw, x, host| {
            let axis = draw.axis(x.rank() + 1);
            let output = Tensor::stack(&[x, x, x], axis)?;
            let expected = host.and_then(|host| {
                let axis = Axis(resolved(axis, host.ndim() + 1)?);
                stack(axis, &[host.view(), host.view(), host.view()]).ok()
            });
            Ok((vec![output], expected))
        };
        unfold 4: |draw, x, host| {
            let (axis, size, step) = (draw.axis(x.rank()), draw.size(4), draw.size(3));
            let output = x.unfold(axis, size, step)?;
            let expected = host.filter(|h| h.ndim() > 0).and_then(|host| {
                let axis = Axis(resolved(axis, host.ndim())?);
                let windows = (host.len_of(axis).checked_sub(size)?) / step + 1;
                let views: Vec<_> = (0..windows)
                    .map(|w| w * step)
                    .map(|at| host.slice_axis(axis, Slice::from(at..at + size)))
                    .map(|view| {
                        let mut order: Vec<usize> = (0..host.ndim()).collect();
                        order.remove(axis.0);
                        order.push(axis.0);
                        view.permuted_axes(order)
                    })
                    .collect();
                let views: Vec<_> = views.iter().map(|v| v.view()).collect();
                stack(axis, &views).ok()
            });
            Ok((vec![output], expected))
        };
    }
}

fn repeated() -> Vec<Property> {
    moved! {
        repeat 3: |draw, x, _| {
            let repeats = each_axis(draw, x.rank() , |draw| draw.int(2).abs_diff(0) as i64);
            Ok(one(x.repeat(repeats)?))
        };
        tile 3: |draw, x, _| {
            let repeats = each_axis(draw, x.rank(), |draw| draw.int(2));
            Ok(one(x.tile(repeats)?))
        };
        repeat_interleave 3: |draw, x, host| {
            let axis = (!draw.once_in(4)).then(|| draw.axis(x.rank()));
            let repeats = draw.size(3);
            // What reads the repeats to the host executes what is there.
            if draw.once_in(2) && x.numel() < 1 << 14 {
                let length = axis.and_then(|a| x.dims().get(resolved(a, x.rank())?).copied());
                let length = length.unwrap_or(2).min(8);
                let counts = draw.indices(&[length], 0, 3).tensor()?;
                let size = draw.once_in(6).then(|| draw.size(6));
                return Ok(one(x.repeat_interleave_each(&counts, axis, size)?));
            }
            let output = x.repeat_interleave(repeats, axis)?;
            let places = |n: usize| (0..n * repeats).map(|i| i / repeats).collect();
            let expected = host.zip(axis).and_then(|(h, axis)| picked(&h, axis, places));
            Ok((vec![output], expected))
        };
        pad 4: |draw, x, _| {
            let value = draw.around(4) as f64;
            Ok(one(pad(draw, x, PadMode::from(value))?))
        };
        pad_constant 4: |draw, x, _| Ok(one(pad(draw, x, PadMode::Constant(0.into()))?));
        pad_reflect 4: |draw, x, _| Ok(one(pad(draw, x, PadMode::Reflect)?));
        pad_replicate 4: |draw, x, _| Ok(one(pad(draw, x, PadMode::Replicate)?));
        pad_circular 4: |draw, x, _| Ok(one(pad(draw, x, PadMode::Circular)?));
    }
}
