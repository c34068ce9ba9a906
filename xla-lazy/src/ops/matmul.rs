//! Matrix products and the contraction that they and `einsum` are cases of.

use crate::Tensor;
use crate::autocast::lower;
use crate::op::{Derivative, InputType, Number, Operator, Saves};
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::{Gradients, MatmulPrecision, Vjp, get_float32_matmul_precision};
use std::panic::Location;
use xla_core::{Axes, DType, Dims, Error, IntoAxes, Result, Shape};

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
pub(super) struct Labelled {
    pub(super) tensor: Tensor,
    pub(super) labels: Vec<usize>,
}

impl Labelled {
    fn axis(&self, label: usize) -> Option<usize> {
        self.labels.iter().position(|&l| l == label)
    }

    pub(super) fn has(&self, label: usize) -> bool {
        self.labels.contains(&label)
    }

    /// Summed over the axes whose labels are not wanted.
    #[track_caller]
    pub(super) fn summed(self, wanted: impl Fn(usize) -> bool) -> Result<Labelled> {
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
    pub(super) fn ordered(&self, labels: &[usize]) -> Result<Tensor> {
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
pub(super) fn contract(a: Labelled, b: Labelled, out: &[usize]) -> Result<Labelled> {
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

/// An error unless both are of one numeric dtype.
pub(super) fn same_dtype(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    if a.dtype() != b.dtype() {
        let expected = format!("two operands of {}", a.dtype());
        return Err(Error::dtype(op, expected, b.dtype()));
    }
    if a.dtype() == DType::Bool {
        let expected = "an integer or floating-point dtype";
        return Err(Error::dtype(op, expected, a.dtype()));
    }
    Ok(())
}

fn ranks(op: &'static str, expected: &'static str, operands: [(&Tensor, usize); 2]) -> Result<()> {
    if operands.iter().all(|(x, rank)| x.rank() == *rank) {
        return Ok(());
    }
    let got = format!("{} x {}", operands[0].0.shape(), operands[1].0.shape());
    Err(Error::shape(op, expected, got))
}

/// `left @ right` under the name that the user called. A batch axis that only the left operand has
/// is more rows of one product; the left operand is repeated along those that it lacks.
#[track_caller]
fn product(op: &'static str, left: &Tensor, right: &Tensor) -> Result<Tensor> {
    let at = Location::caller();
    let both = || format!("{} x {}", left.shape(), right.shape());
    if left.rank() == 0 || right.rank() == 0 {
        return Err(Error::shape(op, "at least one axis on each side", both()).at(at));
    }
    same_dtype(op, left, right).map_err(|e| e.at(at))?;
    let (row, column) = (left.rank() == 1, right.rank() == 1);
    let k = left.dims()[left.rank() - 1];
    let k2 = right.dims()[right.rank().saturating_sub(2)];
    if k != k2 {
        let expected = format!("as many columns as rows: {k} equal to {k2}");
        return Err(Error::shape(op, expected, both()).at(at));
    }
    let lead = |x: &Tensor| Shape::new(&x.dims()[..x.rank().saturating_sub(2)]);
    let (left_batch, right_batch) = (lead(left), lead(right));
    let batch = left_batch
        .broadcast(op, &right_batch)
        .map_err(|e| e.at(at))?;
    let count = batch.rank();
    // Labels: the batch's axes, then rows, columns and what is summed over.
    let (m, n, inner) = (count, count + 1, count + 2);
    let mut left = left.clone();
    if !row && !right_batch.expands_to(&left_batch) {
        let mut dims: Dims = batch.dims().into();
        dims.extend_from_slice(&left.dims()[left.rank() - 2..]);
        left = left.expand(Shape::from(dims))?;
    }
    let named = |x: &Tensor, own: &[usize]| -> Result<Labelled> {
        let lead = x.rank() - own.len();
        let offset = count - lead;
        // An axis of length 1 that the batch does not have is no axis of the product.
        let held: Vec<usize> = (0..lead)
            .filter(|&i| x.dims()[i] == batch[offset + i])
            .collect();
        let dims: Dims = held
            .iter()
            .map(|&i| x.dims()[i])
            .chain(x.dims()[lead..].iter().copied())
            .collect();
        let labels = held.iter().map(|&i| offset + i);
        Ok(Labelled {
            tensor: match dims.len() == x.rank() {
                true => x.clone(),
                false => x.reshape(dims.as_slice())?,
            },
            labels: labels.chain(own.iter().copied()).collect(),
        })
    };
    let (left_own, right_own) = ([m, inner], [inner, n]);
    let a = named(&left, &left_own[usize::from(row)..])?;
    let b = named(right, &right_own[..right_own.len() - usize::from(column)])?;
    let mut out: Vec<usize> = (0..count).collect();
    out.extend((!row).then_some(m));
    out.extend((!column).then_some(n));
    Ok(contract(a, b, &out)?.tensor)
}

/// `beta * input + alpha * product`, with the numbers as data; a `beta` of 0 leaves the input out.
#[track_caller]
fn combine(
    op: &'static str,
    input: &Tensor,
    product: Tensor,
    beta: Number,
    alpha: Number,
) -> Result<Tensor> {
    let at = Location::caller();
    if !input.shape().expands_to(product.shape()) {
        let expected = format!("an input that broadcasts to {}", product.shape());
        return Err(Error::shape(op, expected, input.shape()).at(at));
    }
    if input.dtype() != product.dtype() {
        let expected = format!("an input of {}", product.dtype());
        return Err(Error::dtype(op, expected, input.dtype()).at(at));
    }
    let one = |number: Number| number.to_f64() == 1.0;
    let product = match one(alpha) {
        true => product,
        false => product.mul(alpha)?,
    };
    match beta.to_f64() {
        // Nothing of the input's values, but a gradient of 0 for it.
        0.0 => {
            let never = Tensor::zeros((), (DType::Bool, input.device()))?;
            product.add(&never.select_from(input, 0)?)
        }
        _ if one(beta) => product.add(input),
        _ => product.add(&input.mul(beta)?),
    }
}

impl Tensor {
    /// The matrix product, by PyTorch's rule: two vectors give their inner product, a vector on the
    /// left is a row and one on the right a column whose axis vanishes, axes before the last two
    /// broadcast.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] with both shapes, [`Error::Broadcast`] for the batch axes,
    /// [`Error::DTypeMismatch`] when the dtypes differ.
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Result<Tensor> {
        product("matmul", &*lower(self)?, &*lower(other)?)
    }

    /// The product of two matrices.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
    #[track_caller]
    pub fn mm(&self, other: &Tensor) -> Result<Tensor> {
        let at = Location::caller();
        ranks("mm", "two matrices", [(self, 2), (other, 2)]).map_err(|e| e.at(at))?;
        product("mm", &*lower(self)?, &*lower(other)?)
    }

    /// The products of as many pairs of matrices: `[b, n, k] x [b, k, m]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
    #[track_caller]
    pub fn bmm(&self, other: &Tensor) -> Result<Tensor> {
        let at = Location::caller();
        batches("bmm", self, other).map_err(|e| e.at(at))?;
        product("bmm", &*lower(self)?, &*lower(other)?)
    }

    /// A matrix times a vector.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
    #[track_caller]
    pub fn mv(&self, vector: &Tensor) -> Result<Tensor> {
        let at = Location::caller();
        ranks("mv", "a matrix and a vector", [(self, 2), (vector, 1)]).map_err(|e| e.at(at))?;
        product("mv", self, vector)
    }

    /// The inner product of two vectors.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
    #[track_caller]
    pub fn dot(&self, other: &Tensor) -> Result<Tensor> {
        let at = Location::caller();
        ranks("dot", "two vectors", [(self, 1), (other, 1)]).map_err(|e| e.at(at))?;
        product("dot", self, other)
    }

    /// The products of each element of one vector with each of another, `[n, m]`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for operands that are no vectors.
    #[track_caller]
    pub fn outer(&self, other: &Tensor) -> Result<Tensor> {
        let at = Location::caller();
        ranks("outer", "two vectors", [(self, 1), (other, 1)]).map_err(|e| e.at(at))?;
        self.unsqueeze(1)?.mul(other)
    }

    /// `beta * self + alpha * a @ b`, of two matrices. The numbers are data; with a `beta` of 0 this
    /// tensor counts for nothing, even where it is NaN.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the shapes do not fit or this tensor does not broadcast to the
    /// product's, [`Error::DTypeMismatch`] when the dtypes differ.
    #[track_caller]
    pub fn addmm(
        &self,
        a: &Tensor,
        b: &Tensor,
        beta: impl Into<Number>,
        alpha: impl Into<Number>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        ranks("addmm", "two matrices", [(a, 2), (b, 2)]).map_err(|e| e.at(at))?;
        let product = product("addmm", &*lower(a)?, &*lower(b)?)?;
        combine("addmm", &*lower(self)?, product, beta.into(), alpha.into())
    }

    /// `beta * self + alpha * a @ v`, of a matrix and a vector; otherwise as [`Tensor::addmm`].
    ///
    /// # Errors
    /// As [`Tensor::addmm`].
    #[track_caller]
    pub fn addmv(
        &self,
        a: &Tensor,
        v: &Tensor,
        beta: impl Into<Number>,
        alpha: impl Into<Number>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        ranks("addmv", "a matrix and a vector", [(a, 2), (v, 1)]).map_err(|e| e.at(at))?;
        let product = product("addmv", a, v)?;
        combine("addmv", self, product, beta.into(), alpha.into())
    }

    /// `beta * self + alpha * bmm(a, b)`; otherwise as [`Tensor::addmm`].
    ///
    /// # Errors
    /// As [`Tensor::addmm`].
    #[track_caller]
    pub fn baddbmm(
        &self,
        a: &Tensor,
        b: &Tensor,
        beta: impl Into<Number>,
        alpha: impl Into<Number>,
    ) -> Result<Tensor> {
        let at = Location::caller();
        batches("baddbmm", a, b).map_err(|e| e.at(at))?;
        let product = product("baddbmm", &*lower(a)?, &*lower(b)?)?;
        combine(
            "baddbmm",
            &*lower(self)?,
            product,
            beta.into(),
            alpha.into(),
        )
    }

    /// The sum of products over pairs of axes, the first of `dims` with the first of `other_dims` and
    /// so on; the result has the remaining axes of this tensor, then those of the other.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] for lists of different lengths or an axis named twice;
    /// [`Error::ShapeMismatch`] when a pair differs in length, [`Error::DTypeMismatch`].
    #[track_caller]
    pub fn tensordot(
        &self,
        other: &Tensor,
        dims: impl IntoAxes,
        other_dims: impl IntoAxes,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let (lowered, other) = (lower(self)?, &*lower(other)?);
        lowered.contracted(other, dims.into_axes(), other_dims.into_axes(), at)
    }

    fn contracted(
        &self,
        other: &Tensor,
        dims: Axes,
        other_dims: Axes,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        const OP: &str = "tensordot";
        let mine = paired(OP, self, dims).map_err(|e| e.at(at))?;
        let theirs = paired(OP, other, other_dims).map_err(|e| e.at(at))?;
        if mine.len() != theirs.len() {
            let expected = format!("{} axes, as many as dims", mine.len());
            return Err(Error::argument(OP, "other_dims", expected, theirs.len()).at(at));
        }
        same_dtype(OP, self, other).map_err(|e| e.at(at))?;
        for (&i, &j) in mine.iter().zip(&theirs) {
            let (size, other_size) = (self.dims()[i], other.dims()[j]);
            if size != other_size {
                let expected =
                    format!("axis {i} as long as axis {j}: {size} equal to {other_size}");
                let got = format!("{} x {}", self.shape(), other.shape());
                return Err(Error::shape(OP, expected, got).at(at));
            }
        }
        let labels: Vec<usize> = (0..self.rank()).collect();
        let other_labels: Vec<usize> = (0..other.rank())
            .map(|j| match theirs.iter().position(|&t| t == j) {
                Some(pair) => mine[pair],
                None => self.rank() + j,
            })
            .collect();
        let out: Vec<usize> = labels
            .iter()
            .filter(|l| !mine.contains(l))
            .chain(other_labels.iter().filter(|&&l| l >= self.rank()))
            .copied()
            .collect();
        let named = |tensor: &Tensor, labels| Labelled {
            tensor: tensor.clone(),
            labels,
        };
        Ok(contract(named(self, labels), named(other, other_labels), &out)?.tensor)
    }
}

fn batches(op: &'static str, a: &Tensor, b: &Tensor) -> Result<()> {
    let expected = "as many matrices on each side, [b, n, k] x [b, k, m]";
    ranks(op, expected, [(a, 3), (b, 3)])?;
    if a.dims()[0] == b.dims()[0] {
        return Ok(());
    }
    Err(Error::shape(
        op,
        expected,
        format!("{} x {}", a.shape(), b.shape()),
    ))
}

/// The axes as positions in the order given, which is that of their pairing.
fn paired(op: &'static str, x: &Tensor, axes: Axes) -> Result<Vec<usize>> {
    let sorted = axes.resolve(op, x.rank())?;
    match axes {
        Axes::All => Ok(sorted.to_vec()),
        Axes::List(list) => list.iter().map(|&d| x.shape().axis(op, d)).collect(),
    }
}
