//! Contractions, also in the form that the compiler handles best.

use super::{Func, Value};
use crate::ty::ty;
use xla_core::{Dims, Shape};

/// Axes of the two operands that belong together.
type Pairs<'a> = (&'a [usize], &'a [usize]);

impl Func {
    /// [`Func::dot_general`] with axes that lie behind one another in both operands as one.
    ///
    /// XLA's compilers contract one axis at a time: of several they make one themselves, by
    /// transposing each operand into memory of its own, even where the axes need only be counted
    /// together. For the gradient of a weight that was applied to `[batch, length, features]` that
    /// is both operands.
    pub fn contract(&mut self, a: Value, b: Value, batch: Pairs<'_>, contract: Pairs<'_>) -> Value {
        let out = self.contracted(a, b, batch, contract);
        let joined = [batch, contract].map(joined);
        let [left, right] = [
            Runs::of(a, [(batch.0, &joined[0]), (contract.0, &joined[1])]),
            Runs::of(b, [(batch.1, &joined[0]), (contract.1, &joined[1])]),
        ];
        let (a, b) = (
            self.reshape(a, &left.shape(a)),
            self.reshape(b, &right.shape(b)),
        );
        let merged = |pairs: Pairs<'_>, joined: &[bool]| {
            let first = |runs: &Runs, axes: &[usize]| -> Dims {
                let firsts = axes.iter().zip(joined).filter(|(_, joined)| !**joined);
                firsts.map(|(&axis, _)| runs.0[axis]).collect()
            };
            (first(&left, pairs.0), first(&right, pairs.1))
        };
        let (batch, contract) = (merged(batch, &joined[0]), merged(contract, &joined[1]));
        let product = self.dot_general(a, b, (&batch.0, &batch.1), (&contract.0, &contract.1));
        self.reshape(product, &out)
    }

    /// Contracts and batches as `stablehlo.dot_general`; the result's axes are batch, free axes of
    /// `a`, free axes of `b`.
    pub fn dot_general(
        &mut self,
        a: Value,
        b: Value,
        batch: Pairs<'_>,
        contract: Pairs<'_>,
    ) -> Value {
        let out = ty(a.dtype(), &self.contracted(a, b, batch, contract));
        let batching = if batch.0.is_empty() {
            String::new()
        } else {
            format!("batching_dims = {:?} x {:?}, ", batch.0, batch.1)
        };
        let precision = match self.precision().stablehlo() {
            Some(name) => format!(", precision = [{name}, {name}]"),
            None => String::new(),
        };
        self.call(
            format_args!(
                "stablehlo.dot_general {a}, {b}, {batching}contracting_dims = {:?} x {:?}{precision}",
                contract.0, contract.1
            ),
            &[a, b],
            out,
        )
    }

    /// The shape of a contraction's result.
    fn contracted(&self, a: Value, b: Value, batch: Pairs<'_>, contract: Pairs<'_>) -> Shape {
        let free = |v: Value, bound: [&[usize]; 2]| -> Dims {
            let axes = 0..v.shape().rank();
            let free = axes.filter(|axis| !bound.iter().any(|b| b.contains(axis)));
            free.map(|axis| v.shape()[axis]).collect()
        };
        let mut dims: Dims = batch.0.iter().map(|&axis| a.shape()[axis]).collect();
        dims.extend(free(a, [batch.0, contract.0]));
        dims.extend(free(b, [batch.1, contract.1]));
        Shape::from(dims)
    }
}

/// For each pair of axes, whether in both operands it comes right behind the pair before it.
fn joined((left, right): Pairs<'_>) -> Vec<bool> {
    let behind = |axes: &[usize], at: usize| axes[at] == axes[at - 1] + 1;
    (0..left.len())
        .map(|at| at > 0 && behind(left, at) && behind(right, at))
        .collect()
}

/// For each axis of an operand the place of the axis that it becomes a part of.
struct Runs(Dims);

impl Runs {
    /// Axes that are neither batched nor contracted are joined to one another as well.
    fn of(operand: Value, bound: [(&[usize], &[bool]); 2]) -> Self {
        let place = |axis: usize| {
            bound.iter().find_map(|(axes, joined)| {
                let at = axes.iter().position(|&a| a == axis)?;
                Some(joined[at])
            })
        };
        let mut places = Dims::new();
        for axis in 0..operand.shape().rank() {
            let with_last = match place(axis) {
                Some(joined) => joined,
                None => axis > 0 && place(axis - 1).is_none(),
            };
            let next = places.last().map_or(0, |last| last + 1);
            places.push(next - usize::from(with_last));
        }
        Runs(places)
    }

    fn shape(&self, operand: Value) -> Shape {
        let mut dims = Dims::new();
        for (&place, &len) in self.0.iter().zip(operand.shape().dims()) {
            match dims.get_mut(place) {
                Some(run) => *run *= len,
                None => dims.push(len),
            }
        }
        Shape::from(dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xla_core::DType;

    /// The operation's text for operands of these shapes.
    fn lowered(a: &[usize], b: &[usize], batch: Pairs<'_>, contract: Pairs<'_>) -> String {
        let mut f = Func::new();
        let [a, b] = [a, b].map(|dims| f.argument(ty(DType::F32, &Shape::new(dims)), None));
        let product = f.contract(a, b, batch, contract);
        let text = f.finish("test", &[product]);
        text.replace(", precision = [HIGHEST, HIGHEST]", "")
    }

    #[test]
    fn axes_side_by_side_in_both_operands_are_one() {
        let weight = lowered(
            &[8, 128, 256],
            &[8, 128, 768],
            (&[], &[]),
            (&[0, 1], &[0, 1]),
        );
        assert!(weight.contains("contracting_dims = [0] x [0] : (tensor<1024x256xf32>, tensor<1024x768xf32>) -> tensor<256x768xf32>"), "{weight}");
        let rows = lowered(&[8, 128, 256], &[256, 768], (&[], &[]), (&[2], &[0]));
        assert!(rows.contains("contracting_dims = [1] x [0] : (tensor<1024x256xf32>, tensor<256x768xf32>) -> tensor<1024x768xf32>"), "{rows}");
        assert!(
            rows.contains("-> tensor<8x128x768xf32>\n    return"),
            "{rows}"
        );
        let heads = lowered(
            &[2, 3, 4, 5],
            &[2, 3, 6, 5],
            (&[0, 1], &[0, 1]),
            (&[3], &[3]),
        );
        assert!(heads.contains("batching_dims = [0] x [0], contracting_dims = [2] x [2] : (tensor<6x4x5xf32>, tensor<6x6x5xf32>) -> tensor<6x4x6xf32>"), "{heads}");
    }

    #[test]
    fn axes_in_another_order_stay_apart() {
        let crossed = lowered(&[2, 3, 4], &[3, 2, 5], (&[], &[]), (&[0, 1], &[1, 0]));
        assert!(
            crossed.contains(
                "contracting_dims = [0, 1] x [1, 0] : (tensor<2x3x4xf32>, tensor<3x2x5xf32>)"
            ),
            "{crossed}"
        );
        let between = lowered(&[2, 4, 3], &[2, 3, 5], (&[], &[]), (&[0, 2], &[0, 1]));
        assert!(
            between.contains(
                "contracting_dims = [0, 2] x [0, 1] : (tensor<2x4x3xf32>, tensor<2x3x5xf32>)"
            ),
            "{between}"
        );
    }
}
