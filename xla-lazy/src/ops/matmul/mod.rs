//! Matrix products and the contraction that they and `einsum` are cases of.

mod contract;
mod tensordot;

pub(super) use contract::{Labelled, contract};

use crate::Tensor;
use crate::autocast::lower;
use crate::op::Number;
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

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
