//! What the collectives lower to in a group that spans processes: one exchange each, which knows the
//! first axis only.

use super::ReplicaGroups;
use super::lowering::with_axis;
use crate::exchange::{Exchange, call};
use std::cmp::Ordering;
use xla_core::{Dims, Result, Shape};
use xla_lazy::stablehlo::{Func, Reduction, Value};
use xla_lazy::ty;

/// `x` with one axis moved to another place, the others in order.
fn moved(f: &mut Func, x: Value, from: usize, to: usize) -> Value {
    if from == to {
        return x;
    }
    let mut order: Vec<usize> = (0..x.shape().rank()).collect();
    let axis = order.remove(from);
    order.insert(to, axis);
    f.transpose(x, &order)
}

/// As [`super::lowering::all_reduce`].
pub(super) fn all_reduce(
    f: &mut Func,
    reduction: Reduction,
    x: Value,
    groups: &ReplicaGroups,
) -> Result<Value> {
    call(f, &Exchange::AllReduce(reduction), groups, x, x.ty())
}

/// As [`super::lowering::all_gather`].
pub(super) fn all_gather(
    f: &mut Func,
    x: Value,
    axis: usize,
    groups: &ReplicaGroups,
) -> Result<Value> {
    let x = moved(f, x, axis, 0);
    let out = ty(
        x.dtype(),
        &with_axis(x.shape(), 0, x.shape()[0] * groups.size()),
    );
    let all = call(f, &Exchange::AllGather, groups, x, out)?;
    Ok(moved(f, all, 0, axis))
}

/// As [`super::lowering::reduce_scatter`].
pub(super) fn reduce_scatter(
    f: &mut Func,
    reduction: Reduction,
    x: Value,
    axis: usize,
    groups: &ReplicaGroups,
) -> Result<Value> {
    let x = moved(f, x, axis, 0);
    let out = ty(
        x.dtype(),
        &with_axis(x.shape(), 0, x.shape()[0] / groups.size()),
    );
    let own = call(f, &Exchange::ReduceScatter(reduction), groups, x, out)?;
    Ok(moved(f, own, 0, axis))
}

/// As [`super::lowering::all_to_all`].
pub(super) fn all_to_all(
    f: &mut Func,
    x: Value,
    split: usize,
    concat: usize,
    groups: &ReplicaGroups,
) -> Result<Value> {
    let x = moved(f, x, split, 0);
    let parts = call(f, &Exchange::AllToAll, groups, x, x.ty())?;
    // One axis of the members, one of what is left of the split one, and the others.
    let mut dims: Dims = parts.shape().dims().into();
    dims[0] /= groups.size();
    dims.insert(0, groups.size());
    let parts = f.reshape(parts, &Shape::from(dims));
    // Every axis back to its place, that of the members before the one to concatenate along.
    let mut order: Vec<usize> = (0..x.shape().rank())
        .map(|axis| match axis.cmp(&split) {
            Ordering::Less => axis + 2,
            Ordering::Equal => 1,
            Ordering::Greater => axis + 1,
        })
        .collect();
    order.insert(concat, 0);
    let parts = f.transpose(parts, &order);
    let mut dims: Dims = parts.shape().dims().into();
    let members = dims.remove(concat);
    dims[concat] *= members;
    Ok(f.reshape(parts, &Shape::from(dims)))
}

/// As [`super::lowering::permute`].
pub(super) fn permute(
    f: &mut Func,
    x: Value,
    pairs: &[(u32, u32)],
    groups: &ReplicaGroups,
) -> Result<Value> {
    call(f, &Exchange::Permute(pairs.to_vec()), groups, x, x.ty())
}

/// As [`super::lowering::broadcast`].
pub(super) fn broadcast(
    f: &mut Func,
    x: Value,
    source: u32,
    groups: &ReplicaGroups,
) -> Result<Value> {
    call(f, &Exchange::Broadcast { source }, groups, x, x.ty())
}
