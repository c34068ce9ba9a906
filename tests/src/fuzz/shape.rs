//! Operators that move elements, compared with `ndarray`.

use super::{Call, Draw, Property};
use ndarray::{ArrayD, Axis, IxDyn, Slice, concatenate, stack};
use xla::{Result, Tensor};

/// An operator on `x`, whose elements are also in `host`: the result, and what it should be where
/// the arguments have a meaning on the host.
type Move = fn(&mut Draw<'_>, &Tensor, &ArrayD<f64>) -> Result<(Tensor, Option<ArrayD<f64>>)>;

fn moved(draw: &mut Draw<'_>, rank: usize, call: Move) -> Result<Call> {
    let dtype = draw.dtype();
    let dims = draw.dims(rank);
    let array = draw.array(dtype, &dims);
    let x = array.tensor()?;
    if dtype.is_float() {
        x.requires_grad_(true)?;
    }
    let (output, expected) = call(draw, &x, &array.nd())?;
    Ok(Call {
        inputs: vec![x],
        outputs: vec![output],
        expected: expected.map(|e| (e.iter().copied().collect(), 0.0)),
    })
}

/// The axis that a number names, counted from the end when negative.
fn resolved(axis: i64, rank: usize) -> Option<usize> {
    let rank = i64::try_from(rank).ok()?;
    let axis = if axis < 0 { axis + rank } else { axis };
    (0..rank).contains(&axis).then_some(axis as usize)
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

macro_rules! moved {
    ($($name:ident $rank:literal: $call:expr;)*) => {
        vec![$(Property {
            name: stringify!($name),
            run: |draw| moved(draw, $rank, $call),
        }),*]
    };
}

pub(super) fn properties() -> Vec<Property> {
    moved! {
        reshape 4: |draw, x, host| {
            let mut dims: Vec<i64> = host.shape().iter().map(|&d| d as i64).collect();
            if dims.len() > 1 && draw.once_in(2) {
                let joined = dims.remove(0) * dims[0];
                dims[0] = joined;
            }
            if !dims.is_empty() && draw.once_in(3) {
                dims[0] = draw.pick(&[-1, -1, 3, -2]);
            }
            // The order of the elements stays.
            Ok((x.reshape(dims.as_slice())?, Some(host.clone())))
        };
        permute 5: |draw, x, host| {
            let axes = order(draw, host.ndim());
            let output = x.permute(axes.as_slice())?;
            let axes: Vec<usize> = axes.iter().filter_map(|&a| resolved(a, host.ndim())).collect();
            Ok((output, Some(host.view().permuted_axes(IxDyn(&axes)).to_owned())))
        };
        transpose 4: |draw, x, host| {
            let (a, b) = (draw.axis(host.ndim()), draw.axis(host.ndim()));
            let output = x.transpose(a, b)?;
            let mut view = host.view();
            if let (Some(a), Some(b)) = (resolved(a, host.ndim()), resolved(b, host.ndim())) {
                view.swap_axes(a, b);
            }
            Ok((output, Some(view.to_owned())))
        };
        unsqueeze 4: |draw, x, host| {
            let axis = draw.axis(host.ndim() + 1);
            Ok((x.unsqueeze(axis)?, Some(host.clone())))
        };
        expand 3: |draw, x, host| {
            let mut dims: Vec<usize> = host.shape().to_vec();
            for length in &mut dims {
                if *length == 1 || draw.once_in(16) {
                    *length = draw.length();
                }
            }
            if draw.once_in(2) {
                dims.insert(0, draw.length());
            }
            let output = x.expand(dims.as_slice())?;
            Ok((output, host.broadcast(IxDyn(&dims)).map(|v| v.to_owned())))
        };
        narrow 4: |draw, x, host| {
            let axis = draw.axis(host.ndim());
            let (start, length) = (draw.around(5), draw.below(6));
            let output = x.narrow(axis, start, length)?;
            let expected = resolved(axis, host.ndim()).map(|axis| {
                let size = host.shape()[axis] as i64;
                let start = if start < 0 { start + size } else { start } as usize;
                host.slice_axis(Axis(axis), Slice::from(start..start + length)).to_owned()
            });
            Ok((output, expected))
        };
        select 4: |draw, x, host| {
            let (axis, index) = (draw.axis(host.ndim()), draw.around(5));
            let output = x.select(axis, index)?;
            let expected = resolved(axis, host.ndim()).and_then(|axis| {
                let index = resolved(index, host.shape()[axis])?;
                Some(host.index_axis(Axis(axis), index).to_owned())
            });
            Ok((output, expected))
        };
        cat 3: |draw, x, host| {
            let axis = draw.axis(host.ndim());
            let output = Tensor::cat(&[x, x], axis)?;
            let expected = resolved(axis, host.ndim())
                .and_then(|axis| concatenate(Axis(axis), &[host.view(), host.view()]).ok());
            Ok((output, expected))
        };
        stack 3: |draw, x, host| {
            let axis = draw.axis(host.ndim() + 1);
            let output = Tensor::stack(&[x, x, x], axis)?;
            let views = [host.view(), host.view(), host.view()];
            let expected = resolved(axis, host.ndim() + 1)
                .and_then(|axis| stack(Axis(axis), &views).ok());
            Ok((output, expected))
        };
    }
}
