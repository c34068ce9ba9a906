//! Collectives as operators: each a block of shape rule, lowering and derivative, like any other.
//!
//! All members of the gang record the same operator, with the whole partition into groups rather
//! than the group they are in: XLA compiles one program for all replicas.

mod all_reduce;
mod broadcast;
mod separate;

pub(crate) use all_reduce::all_reduce_in;
pub use all_reduce::{AllReduceOptions, ReduceOp, all_reduce, all_reduce_, all_reduce_many};
pub use broadcast::broadcast;

use std::fmt::Write;
use xla_core::Shape;
use xla_lazy::Ty;
use xla_lazy::stablehlo::{Func, Reduction, Value, tensor_type};

/// A partition of the gang's members (their positions) into groups of one size, each of which
/// communicates within itself.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct ReplicaGroups(Vec<Vec<u32>>);

impl ReplicaGroups {
    /// One group of all `size` members.
    pub(crate) fn all(size: usize) -> Self {
        ReplicaGroups(vec![(0..size as u32).collect()])
    }

    /// Members of each group.
    fn size(&self) -> usize {
        self.0.first().map_or(0, Vec::len)
    }

    /// The `replica_groups` attribute.
    fn attribute(&self) -> String {
        format!(
            "replica_groups = dense<{:?}> : tensor<{}x{}xi64>",
            self.0,
            self.0.len(),
            self.size()
        )
    }
}

/// `x` combined across the members of each group.
fn reduce_across(f: &mut Func, reduction: Reduction, x: Value, groups: &ReplicaGroups) -> Value {
    let scalar = tensor_type(x.dtype(), &Shape::scalar());
    let mut text = format!("\"stablehlo.all_reduce\"({x}) ({{\n");
    let _ = write!(
        text,
        "    ^bb0(%left: {scalar}, %right: {scalar}):\n      \
         %both = stablehlo.{} %left, %right : {scalar}\n      \
         stablehlo.return %both : {scalar}\n    }}) {{{}}}",
        reduction.mnemonic(),
        groups.attribute()
    );
    f.call(text, &[x], x.ty())
}

/// Whether the replica that runs the program is this member of the gang: a `bool` scalar.
fn is_member(f: &mut Func, member: u32) -> Value {
    use xla_core::DType;
    use xla_lazy::stablehlo::Compare;
    let scalar = Shape::scalar();
    let id_type = xla_lazy::ty(DType::U32, &scalar);
    let id = f.emit(
        "stablehlo.replica_id",
        tensor_type(DType::U32, &scalar),
        id_type,
    );
    let member = f.constant_int(DType::U32, &scalar, member.into());
    f.compare(Compare::Eq, id, member)
}

/// The same bits as another type of the same width.
fn bitcast(f: &mut Func, x: Value, out: Ty) -> Value {
    f.call(format_args!("stablehlo.bitcast_convert {x}"), &[x], out)
}
