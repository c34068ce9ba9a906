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

#[cfg(test)]
mod tests {
    use super::*;
    use xla_core::DType;
    use xla_lazy::ty;

    fn check(program: impl FnOnce(&mut Func, Value) -> Value, expected: &str) {
        let mut f = Func::new();
        let x = f.argument(ty(DType::F32, &Shape::new(&[2])), None);
        let y = program(&mut f, x);
        let text = f.finish("test", &[y]);
        let body: Vec<&str> = text.lines().map(str::trim).collect();
        let expected: Vec<&str> = expected.trim().lines().map(str::trim).collect();
        assert_eq!(body[2..body.len() - 3], expected, "{text}");
    }

    #[test]
    fn a_reduction_names_the_whole_partition() {
        let halves = ReplicaGroups(vec![vec![0, 2], vec![1, 3]]);
        check(
            |f, x| reduce_across(f, Reduction::Max, x, &halves),
            r#"
            %1 = "stablehlo.all_reduce"(%0) ({
            ^bb0(%left: tensor<f32>, %right: tensor<f32>):
            %both = stablehlo.maximum %left, %right : tensor<f32>
            stablehlo.return %both : tensor<f32>
            }) {replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>} : (tensor<2xf32>) -> tensor<2xf32>
            "#,
        );
    }

    #[test]
    fn one_group_holds_all_members() {
        let attribute = "replica_groups = dense<[[0, 1, 2]]> : tensor<1x3xi64>";
        assert_eq!(ReplicaGroups::all(3).attribute(), attribute);
    }

    #[test]
    fn a_member_is_found_by_its_replica_id() {
        check(
            |f, _| is_member(f, 3),
            "
            %1 = stablehlo.replica_id : tensor<ui32>
            %2 = stablehlo.constant dense<3> : tensor<ui32>
            %3 = stablehlo.compare EQ, %1, %2 : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
            ",
        );
    }
}
