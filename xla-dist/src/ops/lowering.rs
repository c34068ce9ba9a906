//! What the collectives lower to: XLA's own between the replicas of one process, exchanges
//! ([`super::exchanged`]) beyond.

use super::{ReplicaGroups, exchanged};
use std::fmt::Write;
use xla_core::{DType, Dims, Result, Shape};
use xla_lazy::stablehlo::{Compare, Func, Reduction, Value, tensor_type};
use xla_lazy::{Ty, ty};

/// The region that combines two elements.
fn combiner(reduction: Reduction, dtype: DType) -> String {
    let scalar = tensor_type(dtype, &Shape::scalar());
    let mut text = String::new();
    let _ = write!(
        text,
        "({{\n    ^bb0(%left: {scalar}, %right: {scalar}):\n      \
         %both = stablehlo.{} %left, %right : {scalar}\n      \
         stablehlo.return %both : {scalar}\n    }})",
        reduction.mnemonic(),
    );
    text
}

/// A result without elements, for which nothing is sent: XLA's collectives take no empty operands.
fn empty(f: &mut Func, dtype: DType, shape: &Shape) -> Option<Value> {
    (shape.numel() == 0).then(|| f.constant(dtype, shape, 0.0))
}

/// The shape with one axis of another length.
pub(super) fn with_axis(shape: &Shape, axis: usize, len: usize) -> Shape {
    let mut dims: Dims = shape.dims().into();
    dims[axis] = len;
    Shape::from(dims)
}

/// `x` combined across the members of each group.
pub(super) fn all_reduce(
    f: &mut Func,
    reduction: Reduction,
    x: Value,
    groups: &ReplicaGroups,
) -> Result<Value> {
    if let Some(empty) = empty(f, x.dtype(), x.shape()) {
        return Ok(empty);
    }
    if f.has_effects() {
        return exchanged::all_reduce(f, reduction, x, groups);
    }
    if matches!(reduction, Reduction::And | Reduction::Or) && x.dtype() != DType::Bool {
        // XLA's CPU collectives combine no bits: they are gathered, and combined on each member.
        let mut dims: Dims = x.shape().dims().into();
        dims.insert(0, 1);
        let row = f.reshape(x, &Shape::from(dims));
        let all = all_gather(f, row, 0, groups)?;
        return Ok(f.reduce(reduction, all, &[0]));
    }
    let text = format!(
        "\"stablehlo.all_reduce\"({x}) {} {{{}}}",
        combiner(reduction, x.dtype()),
        groups.attributes(f)
    );
    Ok(f.call(text, &[x], x.ty()))
}

/// Every member's `x`, one after the other along `axis`.
pub(super) fn all_gather(
    f: &mut Func,
    x: Value,
    axis: usize,
    groups: &ReplicaGroups,
) -> Result<Value> {
    let out = with_axis(x.shape(), axis, x.shape()[axis] * groups.size());
    if let Some(empty) = empty(f, x.dtype(), &out) {
        return Ok(empty);
    }
    if f.has_effects() {
        return exchanged::all_gather(f, x, axis, groups);
    }
    let text = format!(
        "\"stablehlo.all_gather\"({x}) {{all_gather_dim = {axis} : i64, {}}}",
        groups.attributes(f)
    );
    Ok(f.call(text, &[x], ty(x.dtype(), &out)))
}

/// The member's own part, along `axis`, of `x` combined across the members.
pub(super) fn reduce_scatter(
    f: &mut Func,
    reduction: Reduction,
    x: Value,
    axis: usize,
    groups: &ReplicaGroups,
) -> Result<Value> {
    let out = with_axis(x.shape(), axis, x.shape()[axis] / groups.size());
    if let Some(empty) = empty(f, x.dtype(), &out) {
        return Ok(empty);
    }
    if f.has_effects() {
        return exchanged::reduce_scatter(f, reduction, x, axis, groups);
    }
    let text = format!(
        "\"stablehlo.reduce_scatter\"({x}) {} {{scatter_dimension = {axis} : i64, {}}}",
        combiner(reduction, x.dtype()),
        groups.attributes(f)
    );
    Ok(f.call(text, &[x], ty(x.dtype(), &out)))
}

/// Part `j` of `x` along `split` goes to member `j`; what came from member `i` is part `i` of the
/// result along `concat`.
pub(super) fn all_to_all(
    f: &mut Func,
    x: Value,
    split: usize,
    concat: usize,
    groups: &ReplicaGroups,
) -> Result<Value> {
    let count = groups.size();
    let parted = with_axis(x.shape(), split, x.shape()[split] / count);
    let out = with_axis(&parted, concat, parted[concat] * count);
    if let Some(empty) = empty(f, x.dtype(), &out) {
        return Ok(empty);
    }
    if f.has_effects() {
        return exchanged::all_to_all(f, x, split, concat, groups);
    }
    let text = format!(
        "\"stablehlo.all_to_all\"({x}) {{split_dimension = {split} : i64, \
         concat_dimension = {concat} : i64, split_count = {count} : i64, {}}}",
        groups.exchange_attributes(f)
    );
    Ok(f.call(text, &[x], ty(x.dtype(), &out)))
}

/// `x` of the member that a pair names as the source of this one; zeros where no pair does.
pub(super) fn permute(
    f: &mut Func,
    x: Value,
    pairs: &[(u32, u32)],
    groups: &ReplicaGroups,
) -> Result<Value> {
    if let Some(empty) = empty(f, x.dtype(), x.shape()) {
        return Ok(empty);
    }
    if f.has_effects() {
        return exchanged::permute(f, x, pairs, groups);
    }
    let text = format!(
        "\"stablehlo.collective_permute\"({x}) {{{}}}",
        groups.pairs_attributes(f, pairs)
    );
    Ok(f.call(text, &[x], x.ty()))
}

/// `x` of the member at the position `source`; `position` is a member's own.
///
/// XLA's CPU compiler has no broadcast between replicas, so between those of one process it is the
/// sum of that member's `x` with zeros, over the bits as integers: `NaN` payloads and `-0.0` arrive
/// as they were, and a `NaN` in what another member holds does no harm.
pub(super) fn broadcast(
    f: &mut Func,
    x: Value,
    position: Value,
    source: u32,
    groups: &ReplicaGroups,
) -> Result<Value> {
    if let Some(empty) = empty(f, x.dtype(), x.shape()) {
        return Ok(empty);
    }
    if f.has_effects() {
        return exchanged::broadcast(f, x, source, groups);
    }
    let here = is_position(f, position, source);
    let bits = match x.dtype() {
        DType::F16 | DType::BF16 => DType::I16,
        DType::F32 => DType::I32,
        DType::F64 => DType::I64,
        same => same,
    };
    let carrier = match bits == x.dtype() {
        true => x,
        false => bitcast(f, x, ty(bits, x.shape())),
    };
    // 16-bit integers are reduced as 32-bit ones, which every plugin can.
    let wide = match bits {
        DType::I16 | DType::U16 => f.convert(carrier, DType::I32),
        _ => carrier,
    };
    let reduction = match bits {
        DType::Bool => Reduction::Or,
        _ => Reduction::Sum,
    };
    let zero = f.constant_int(wide.dtype(), wide.shape(), 0);
    let own = f.select(here, wide, zero);
    let all = all_reduce(f, reduction, own, groups)?;
    let narrow = f.convert(all, bits);
    Ok(match bits == x.dtype() {
        true => narrow,
        false => bitcast(f, narrow, x.ty()),
    })
}

/// Whether a position, which is an operand, is this one: a `bool` scalar.
pub(super) fn is_position(f: &mut Func, position: Value, this: u32) -> Value {
    let position = f.convert(position, DType::I64);
    let this = f.constant_int(DType::I64, &Shape::scalar(), this.into());
    f.compare(Compare::Eq, position, this)
}

/// The same bits as another type of the same width.
fn bitcast(f: &mut Func, x: Value, out: Ty) -> Value {
    f.call(format_args!("stablehlo.bitcast_convert {x}"), &[x], out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(program: impl FnOnce(&mut Func, Value) -> Value, expected: &str) {
        let mut f = Func::new();
        let x = f.argument(ty(DType::F32, &Shape::new(&[2, 4])), None);
        let y = program(&mut f, x);
        let text = f.finish("test", &[y]);
        let body: Vec<&str> = text.lines().map(str::trim).collect();
        let expected: Vec<&str> = expected.trim().lines().map(str::trim).collect();
        assert_eq!(body[2..body.len() - 3], expected, "{text}");
    }

    #[test]
    fn a_reduction_names_the_whole_partition() {
        let halves = ReplicaGroups::partition(&[vec![0, 2], vec![1, 3]]);
        check(
            |f, x| all_reduce(f, Reduction::Max, x, &halves).unwrap(),
            r#"
            %1 = "stablehlo.all_reduce"(%0) ({
            ^bb0(%left: tensor<f32>, %right: tensor<f32>):
            %both = stablehlo.maximum %left, %right : tensor<f32>
            stablehlo.return %both : tensor<f32>
            }) {replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>} : (tensor<2x4xf32>) -> tensor<2x4xf32>
            "#,
        );
    }

    #[test]
    fn what_is_split_and_gathered_changes_length() {
        let pair = ReplicaGroups::all(2);
        check(
            |f, x| {
                let y = all_to_all(f, x, 1, 0, &pair).unwrap();
                all_gather(f, y, 1, &pair).unwrap()
            },
            r#"
            %1 = "stablehlo.all_to_all"(%0) {split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 2 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<2x4xf32>) -> tensor<4x2xf32>
            %2 = "stablehlo.all_gather"(%1) {all_gather_dim = 1 : i64, replica_groups = dense<[[0, 1]]> : tensor<1x2xi64>} : (tensor<4x2xf32>) -> tensor<4x4xf32>
            "#,
        );
    }

    #[test]
    fn a_position_is_compared_as_an_integer() {
        check(
            |f, _| {
                let position = f.constant(DType::F32, &Shape::scalar(), 3.0);
                is_position(f, position, 3)
            },
            "
            %1 = stablehlo.constant dense<3.0e0> : tensor<f32>
            %2 = stablehlo.convert %1 : (tensor<f32>) -> tensor<i64>
            %3 = stablehlo.constant dense<3> : tensor<i64>
            %4 = stablehlo.compare EQ, %2, %3 : (tensor<i64>, tensor<i64>) -> tensor<i1>
            ",
        );
    }
}
