//! Selection and writes by integer tensors and masks.
//!
//! An index that came from the host is checked when the operator is recorded. One computed on the
//! device cannot be: where it is out of range the result is NaN for floats, the least value for
//! signed integers, the greatest for unsigned ones and true for `bool`, and a write or an addition
//! at such an index is dropped, so that its derivative is 0.

mod advanced;
mod gather;
mod mask;
mod one_hot;
mod put;
mod scatter;
mod select;

pub use advanced::Index;
pub(super) use mask::runs;
pub use scatter::ScatterReduce;

use crate::op::InputType;
use crate::stablehlo::{Compare, Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::Ty;
use crate::{Gradients, Tensor, Vjp};
use std::panic::Location;
use xla_core::{DType, Error, Result, Shape};

/// What a selection gives at an index out of range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Outside {
    /// There is none.
    Never,
    /// What says that the value is wrong.
    Fill,
    /// 0: the derivative of a write that was dropped.
    Zero,
}

fn index_type(op: &'static str, input: InputType) -> Result<Ty> {
    let indices = input.tensor(op)?;
    if indices.dtype().is_integer() {
        Ok(indices)
    } else {
        Err(Error::dtype(op, "integer indices", indices.dtype()))
    }
}

/// The indices in a dtype that holds every position of an axis of `size`, and `size` itself, so
/// that none wraps around in theirs.
fn widened(f: &mut Func, indices: Value, size: usize) -> Value {
    let long = i32::try_from(size).is_err();
    match indices.dtype() {
        DType::I64 | DType::U64 => indices,
        _ if long => f.convert(indices, DType::I64),
        DType::I32 | DType::U32 => indices,
        _ => f.convert(indices, DType::I32),
    }
}

/// Where indices lie in `0..size`.
fn in_range(f: &mut Func, indices: Value, size: usize) -> Value {
    let limit = f.constant_int(indices.dtype(), indices.shape(), size as i64);
    let below = f.compare(Compare::Lt, indices, limit);
    if !indices.dtype().is_signed() {
        return below;
    }
    let zero = f.constant_int(indices.dtype(), indices.shape(), 0);
    let positive = f.compare(Compare::Ge, indices, zero);
    f.binary("and", below, positive)
}

/// What a selection holds where all indices are out of range.
fn fill(f: &mut Func, out: Ty, outside: Outside) -> Value {
    let scalar = Shape::scalar();
    let value = match out.dtype() {
        d if outside == Outside::Zero => f.constant(d, &scalar, 0.0),
        DType::Bool => f.constant(DType::Bool, &scalar, 1.0),
        d if d.is_float() => f.constant(d, &scalar, f64::NAN),
        d if d.is_signed() => f.identity(Reduction::Max, d),
        d => f.identity(Reduction::Min, d),
    };
    f.broadcast_in_dim(value, out.shape(), &[])
}

/// `values`, whose axes `axes` are those of `indices`, with what stands for a value out of range
/// where one is not in `0..size`.
fn guard(
    f: &mut Func,
    values: Value,
    indices: Value,
    size: usize,
    axes: &[usize],
    outside: Outside,
) -> Value {
    if outside == Outside::Never {
        return values;
    }
    let valid = in_range(f, indices, size);
    let valid = f.broadcast_in_dim(valid, values.shape(), axes);
    let fill = fill(f, values.ty(), outside);
    f.select(valid, values, fill)
}

/// The derivative of an operator whose second operand says where along an axis of the first its
/// elements come from.
pub(super) fn add_along(vjp: &Vjp<'_>, axis: usize) -> Result<Gradients> {
    let zeros = vjp.zeros(0)?;
    let add = scatter::Scatter { axis, add: true };
    let sum = record_op(add, &[(&zeros).into(), vjp.operand(1)?, vjp.grad().into()])?;
    Ok(smallvec::smallvec![Some(sum), None])
}

/// The dtype that additions are made in.
fn accumulator(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    }
}

/// The sums of a vector's elements up to and with each.
fn prefix_sums(f: &mut Func, x: Value) -> Value {
    let zero = f.constant(x.dtype(), &Shape::scalar(), 0.0);
    let (mut sums, mut reach) = (x, 1);
    // Each round doubles how many elements a sum holds.
    while reach < x.shape().numel() {
        let shift = reach as i64;
        let earlier = f.pad(sums, zero, &[shift], &[-shift], &[0]);
        sums = f.binary("add", sums, earlier);
        reach *= 2;
    }
    sums
}

impl Tensor {
    /// What a selection along an axis of this tensor has to expect of indices; an error where they
    /// are known to be out of range.
    fn outside(
        &self,
        op: &'static str,
        indices: &Tensor,
        axis: usize,
        negative: bool,
        at: &'static Location<'static>,
    ) -> Result<Outside> {
        if !indices.dtype().is_integer() {
            return Err(Error::dtype(op, "integer indices", indices.dtype()).at(at));
        }
        let known = indices
            .check_indices(op, axis, self.dims()[axis], negative)
            .map_err(|e| e.at(at))?;
        Ok(if known { Outside::Never } else { Outside::Fill })
    }

    fn same_dtype(
        &self,
        op: &'static str,
        other: &Tensor,
        at: &'static Location<'static>,
    ) -> Result<()> {
        if self.dtype() == other.dtype() {
            return Ok(());
        }
        Err(Error::dtype(op, self.dtype().name(), other.dtype()).at(at))
    }
}
