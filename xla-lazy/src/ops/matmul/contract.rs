//! The contraction that all products and `einsum` are cases of.

use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::{Gradients, MatmulPrecision, Vjp, get_float32_matmul_precision};
use xla_core::{Dims, Result, Shape};

/// `stablehlo.dot_general`: the result's axes are those of the batch, the free ones of the first
/// operand, those of the second. Its derivatives are products of the same kind, so that no operand
/// is ever transposed or repeated for them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Contract {
    batch: [Dims; 2],
    contract: [Dims; 2],
    precision: MatmulPrecision,
}

impl Contract {
    /// The axes of an operand that are neither batched nor contracted.
    fn free(&self, side: usize, rank: usize) -> Dims {
        let bound = |i: &usize| !self.batch[side].contains(i) && !self.contract[side].contains(i);
        (0..rank).filter(bound).collect()
    }

    /// The gradient of one operand: the output's gradient contracted with the other operand over the
    /// axes that are the other's alone.
    fn gradient(&self, vjp: &Vjp<'_>, side: usize) -> Result<Tensor> {
        let other = 1 - side;
        let (grad, value) = (vjp.grad(), vjp.input(other)?);
        let batches = self.batch[0].len();
        let free = [0, 1].map(|s| self.free(s, vjp.shape(s).rank()));
        let first = if other == 0 { 0 } else { free[0].len() };
        let theirs: Dims = (batches + first..).take(free[other].len()).collect();
        // What the contraction leaves of the other operand, in its order, as axes of this one.
        let mut left: Vec<(usize, usize)> = self.contract[other]
            .iter()
            .copied()
            .zip(self.contract[side].iter().copied())
            .collect();
        left.sort_unstable();
        let contracted = left.iter().map(|&(_, mine)| mine);
        let batch: Dims = (0..batches).collect();
        let lead = self.batch[side].iter().copied();
        let grad_first: Dims = lead
            .clone()
            .chain(free[side].iter().copied())
            .chain(contracted.clone())
            .collect();
        let value_first: Dims = lead
            .chain(contracted)
            .chain(free[side].iter().copied())
            .collect();
        let (product, order) = match value_first.is_sorted() {
            true => {
                let op = Contract {
                    batch: [self.batch[other].clone(), batch],
                    contract: [free[other].clone(), theirs],
                    precision: self.precision,
                };
                (record_op(op, &[value.into(), grad.into()])?, value_first)
            }
            false => {
                let op = Contract {
                    batch: [batch, self.batch[other].clone()],
                    contract: [theirs, free[other].clone()],
                    precision: self.precision,
                };
                (record_op(op, &[grad.into(), value.into()])?, grad_first)
            }
        };
        let mut places = Dims::from_elem(0, order.len());
        for (at, &axis) in order.iter().enumerate() {
            places[axis] = at;
        }
        arranged(&product, &places)?.to_dtype(vjp.dtype(side))
    }
}

/// The axes in another order, unless it is theirs.
#[track_caller]
fn arranged(x: &Tensor, axes: &[usize]) -> Result<Tensor> {
    match axes.is_sorted() {
        true => Ok(x.clone()),
        false => x.permute(axes),
    }
}

impl Operator for Contract {
    const NAME: &'static str = "matmul";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::CROSSWISE,
        rule: |op, vjp| -> Result<Gradients> { vjp.each(|side| op.gradient(vjp, side)) },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let operands = [inputs[0].tensor(Self::NAME)?, inputs[1].tensor(Self::NAME)?];
        let mut dims: Dims = self.batch[0]
            .iter()
            .map(|&i| operands[0].shape()[i])
            .collect();
        for (side, operand) in operands.iter().enumerate() {
            let free = self.free(side, operand.rank());
            dims.extend(free.iter().map(|&i| operand.shape()[i]));
        }
        Ok(ty(operands[0].dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let [batch, contract] =
            [&self.batch, &self.contract].map(|[a, b]| (a.as_slice(), b.as_slice()));
        Ok(f.with_precision(self.precision, |f| {
            f.contract(inputs[0], inputs[1], batch, contract)
        }))
    }
}

/// A tensor with a name for each of its axes.
#[derive(Debug, Clone)]
pub(in crate::ops) struct Labelled {
    pub(in crate::ops) tensor: Tensor,
    pub(in crate::ops) labels: Vec<usize>,
}

impl Labelled {
    fn axis(&self, label: usize) -> Option<usize> {
        self.labels.iter().position(|&l| l == label)
    }

    pub(in crate::ops) fn has(&self, label: usize) -> bool {
        self.labels.contains(&label)
    }

    /// Summed over the axes whose labels are not wanted.
    #[track_caller]
    pub(in crate::ops) fn summed(self, wanted: impl Fn(usize) -> bool) -> Result<Labelled> {
        let (kept, gone): (Vec<usize>, Vec<usize>) =
            (0..self.labels.len()).partition(|&i| wanted(self.labels[i]));
        if gone.is_empty() {
            return Ok(self);
        }
        Ok(Labelled {
            tensor: self.tensor.sum(gone.as_slice(), false)?,
            labels: kept.into_iter().map(|i| self.labels[i]).collect(),
        })
    }

    /// The axes in the order of these labels, all of which it has.
    #[track_caller]
    pub(in crate::ops) fn ordered(&self, labels: &[usize]) -> Result<Tensor> {
        let axes: Dims = labels.iter().filter_map(|&l| self.axis(l)).collect();
        arranged(&self.tensor, &axes)
    }

    /// Axes of length 1 for the labels it does not have, all in this order.
    #[track_caller]
    fn spread(&self, labels: &[usize]) -> Result<Tensor> {
        let dims: Dims = labels
            .iter()
            .map(|&l| self.axis(l).map_or(1, |axis| self.tensor.dims()[axis]))
            .collect();
        self.ordered(labels)?.reshape(dims.as_slice())
    }
}

/// The product of two tensors, summed over the labels that `out` lacks; its axes are `out`, each of
/// which one of the two has. Axes with the same label have the same length.
#[track_caller]
pub(in crate::ops) fn contract(a: Labelled, b: Labelled, out: &[usize]) -> Result<Labelled> {
    let has_b = b.labels.clone();
    let dtype = a.tensor.dtype();
    // Integers sum as `i64`, products keep their dtype.
    let narrowed = |x: Labelled| -> Result<Labelled> {
        Ok(Labelled {
            tensor: x.tensor.to_dtype(dtype)?,
            labels: x.labels,
        })
    };
    let a = narrowed(a.summed(|l| out.contains(&l) || has_b.contains(&l))?)?;
    let has_a = a.labels.clone();
    let b = narrowed(b.summed(|l| out.contains(&l) || has_a.contains(&l))?)?;
    let (batch, gone): (Vec<usize>, Vec<usize>) = a
        .labels
        .iter()
        .copied()
        .filter(|&l| b.has(l))
        .partition(|l| out.contains(l));
    let labels = out.to_vec();
    if gone.is_empty() {
        let tensor = a.spread(out)?.mul(&b.spread(out)?)?;
        return Ok(Labelled { tensor, labels });
    }
    let axes = |of: &Labelled, labels: &[usize]| -> Dims {
        labels.iter().filter_map(|&l| of.axis(l)).collect()
    };
    let op = Contract {
        batch: [axes(&a, &batch), axes(&b, &batch)],
        contract: [axes(&a, &gone), axes(&b, &gone)],
        precision: get_float32_matmul_precision(),
    };
    let free = |of: &Labelled| {
        let bound = |l: &usize| !batch.contains(l) && !gone.contains(l);
        of.labels.iter().copied().filter(bound).collect::<Vec<_>>()
    };
    let order = [batch.clone(), free(&a), free(&b)].concat();
    let product = record_op(op, &[(&a.tensor).into(), (&b.tensor).into()])?;
    let product = Labelled {
        tensor: product,
        labels: order,
    };
    Ok(Labelled {
        tensor: product.ordered(out)?,
        labels,
    })
}
