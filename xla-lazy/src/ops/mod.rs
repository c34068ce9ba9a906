//! The operators. One file a family, one adjacent block an operator: its type and attributes, shape
//! rule, lowering, derivative, and the [`crate::Tensor`] method that records it.

mod activation;
mod binary;
mod cast;
mod control;
mod creation;
mod einsum;
mod grid;
mod index;
mod inplace;
mod linalg;
mod manual;
mod matmul;
mod operators;
mod random;
mod reduce;
mod scan;
mod shape;
mod sharding;
mod slice;
mod softmax;
mod sort;
mod unary;

pub use activation::GeluApproximation;
pub use binary::{NanToNum, RoundingMode};
pub(crate) use cast::{CHANGED_UNRECORDED, COPY, OVERWRITTEN};
pub(crate) use control::after;
pub use control::{
    ScanOptions, WhileOptions, fori_loop, optimization_barrier, scan, scan_with, while_loop,
    while_loop_with,
};
pub use grid::MeshgridIndexing;
pub use index::{Index, ScatterReduce};
pub use linalg::SolveTriangularOptions;
pub use manual::{axis_index, shard_map};
pub use random::{Generator, default_generator, manual_seed};
pub(crate) use random::{Snapshot, take_generators_off_devices};
pub(crate) use sharding::{constrained, sharding_entry};
pub use slice::PadMode;

use crate::op::{InputType, Operator};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::{Gradients, Vjp};
use xla_core::{DType, Error, Result, Shape};

/// The shape that all tensor operands broadcast to.
fn broadcast(op: &'static str, inputs: &[InputType]) -> Result<Shape> {
    let mut shape: Option<Shape> = None;
    for input in inputs {
        if let InputType::Tensor(ty) = input {
            shape = Some(match shape {
                Some(shape) => shape.broadcast(op, ty.shape())?,
                None => ty.shape().clone(),
            });
        }
    }
    Ok(shape.unwrap_or_default())
}

/// The one tensor operand's type, with integers and `bool` taken as `f32`: how PyTorch types
/// transcendental functions.
fn float_of(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    let input = only(op, inputs)?;
    if input.dtype().is_float() {
        Ok(input)
    } else {
        Ok(ty(DType::F32, input.shape()))
    }
}

/// The one tensor operand's type, which must be a number's.
fn numeric(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    let input = only(op, inputs)?;
    match input.dtype() {
        DType::Bool => Err(Error::dtype(
            op,
            "an integer or floating-point dtype",
            DType::Bool,
        )),
        _ => Ok(input),
    }
}

/// The one tensor operand's type, which must be a floating-point one.
fn floating(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    let input = only(op, inputs)?;
    match input.dtype().is_float() {
        true => Ok(input),
        false => Err(Error::dtype(op, "a floating-point dtype", input.dtype())),
    }
}

/// `bool` in the operand's shape.
fn boolean(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    Ok(ty(DType::Bool, only(op, inputs)?.shape()))
}

fn only(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    match inputs {
        [input] => input.tensor(op),
        _ => Err(Error::Internal {
            what: op,
            expected: "one operand".into(),
        }),
    }
}

/// The derivative of a write through a view: for the target the gradient with zeros where the view
/// shows it, for what is written the gradient there.
fn where_shown_and_beside<V: Operator, U: Operator>(
    vjp: &Vjp<'_>,
    view: V,
    update: U,
) -> Result<Gradients> {
    let part = record_op(view, &[vjp.grad().into()])?;
    let zeros = part.zeros_like()?;
    let rest = record_op(update, &[vjp.grad().into(), (&zeros).into()])?;
    Ok(smallvec::smallvec![Some(rest), Some(part)])
}
