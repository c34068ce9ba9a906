//! Linear algebra.

use crate::autocast::full;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::{Gradients, Tensor, Vjp};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

/// The type of square matrices on the last two axes, of `f32` or `f64`.
fn square(op: &'static str, input: InputType) -> Result<Ty> {
    let x = input.tensor(op)?;
    if !matches!(x.dtype(), DType::F32 | DType::F64) {
        return Err(Error::dtype(op, "matrices of f32 or f64", x.dtype()));
    }
    match *x.shape().dims() {
        [.., rows, columns] if rows == columns => Ok(x),
        _ => Err(Error::shape(
            op,
            "square matrices on the last two axes",
            x.shape(),
        )),
    }
}

/// Whether each element lies in the triangle, with the diagonal.
fn in_triangle(f: &mut Func, shape: &Shape, upper: bool) -> Value {
    let last = shape.rank() - 1;
    let row = f.iota(DType::I32, shape, last - 1);
    let column = f.iota(DType::I32, shape, last);
    let direction = if upper { Compare::Le } else { Compare::Ge };
    f.compare(direction, row, column)
}

/// The transposed matrices.
fn adjoint(x: &Tensor) -> Result<Tensor> {
    x.transpose(-2, -1)
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Cholesky;

impl Operator for Cholesky {
    const NAME: &'static str = "cholesky";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::OUTPUT,
        // With P = tril(L' g) and its diagonal halved, L'^-1 P L^-1 made symmetric
        // (Murray 2016, arXiv:1602.07527).
        rule: |_, vjp: &Vjp<'_>| {
            let l = vjp.output()?;
            let lower = adjoint(l)?.matmul(vjp.grad())?.tril(0)?;
            let p = lower.add(&lower.tril(-1)?)?.mul(0.5)?;
            let left = solve(&adjoint(l)?, &p, true, true, false)?;
            let both = solve(l, &left, false, false, false)?;
            vjp.only(both.add(&adjoint(&both)?)?.mul(0.5))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        square(Self::NAME, inputs[0])
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let zeros = f.constant(out.dtype(), out.shape(), 0.0);
        if out.shape().numel() == 0 {
            return Ok(zeros);
        }
        let l = f.emit(
            format_args!("stablehlo.cholesky {}, lower = true", inputs[0]),
            crate::stablehlo::tensor_type(out.dtype(), out.shape()),
            out,
        );
        let kept = in_triangle(f, out.shape(), false);
        Ok(f.select(kept, l, zeros))
    }
}

/// The solution `x` of `a x = b`, or of `x a = b`, with triangular `a`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TriangularSolve {
    upper: bool,
    left: bool,
    unit: bool,
}

impl TriangularSolve {
    fn gradients(&self, vjp: &Vjp<'_>) -> Result<Gradients> {
        let (a, x) = (vjp.input(0)?, vjp.output()?);
        let b = solve(&adjoint(a)?, vjp.grad(), !self.upper, self.left, self.unit)?;
        let a = match vjp.needs(0) {
            true => {
                let product = match self.left {
                    true => b.matmul(&adjoint(x)?)?,
                    false => adjoint(x)?.matmul(&b)?,
                };
                let beside = i64::from(self.unit);
                let part = match self.upper {
                    true => product.triu(beside)?,
                    false => product.tril(-beside)?,
                };
                Some(part.neg()?)
            }
            false => None,
        };
        Ok(smallvec::smallvec![a, Some(b)])
    }
}

impl Operator for TriangularSolve {
    const NAME: &'static str = "solve_triangular";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(0).and_output(),
        rule: |op, vjp| op.gradients(vjp),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[1].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (a, b) = (inputs[0], inputs[1]);
        if out.shape().numel() == 0 {
            return Ok(b);
        }
        let (left, lower, unit) = (self.left, !self.upper, self.unit);
        Ok(f.call(
            format_args!(
                "\"stablehlo.triangular_solve\"({a}, {b}) <{{left_side = {left}, lower = {lower}, unit_diagonal = {unit}, transpose_a = #stablehlo<transpose NO_TRANSPOSE>}}>"
            ),
            &[a, b],
            out,
        ))
    }
}

/// [`Tensor::solve_triangular`] of operands that fit.
#[track_caller]
fn solve(a: &Tensor, b: &Tensor, upper: bool, left: bool, unit: bool) -> Result<Tensor> {
    record_op(TriangularSolve { upper, left, unit }, &[a.into(), b.into()])
}

/// What [`Tensor::solve_triangular`] solves; PyTorch's defaults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SolveTriangularOptions {
    /// Whether the matrix is upper triangular.
    pub upper: bool,
    /// Whether it stands on the left of the unknown.
    pub left: bool,
    /// Whether its diagonal is taken to be 1 and not read.
    pub unitriangular: bool,
}

impl Default for SolveTriangularOptions {
    fn default() -> Self {
        SolveTriangularOptions {
            upper: true,
            left: true,
            unitriangular: false,
        }
    }
}

/// Two operands with matrices on their last axes, their axes before that broadcast.
#[track_caller]
fn batched(op: &'static str, a: &Tensor, b: &Tensor) -> Result<(Tensor, Tensor)> {
    let lead = |x: &Tensor| Shape::new(&x.dims()[..x.rank() - 2]);
    let batch = lead(a).broadcast(op, &lead(b))?;
    let expanded = |x: &Tensor| {
        let mut dims: Dims = batch.dims().into();
        dims.extend_from_slice(&x.dims()[x.rank() - 2..]);
        x.expand(Shape::from(dims))
    };
    Ok((expanded(a)?, expanded(b)?))
}

impl Tensor {
    /// The lower triangular `l` with `l lᵀ` equal to these symmetric positive definite matrices, on
    /// the last two axes; with `upper` its transpose. Only the lower triangle is read. Where a matrix
    /// is not positive definite the result is NaN.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for matrices that are not square, [`Error::DTypeMismatch`] for
    /// another dtype than `f32` and `f64`.
    #[track_caller]
    pub fn cholesky(&self, upper: bool) -> Result<Tensor> {
        let lower = record_op(Cholesky, &[(&*full(self)?).into()])?;
        match upper {
            true => adjoint(&lower),
            false => Ok(lower),
        }
    }

    /// The solution `x` of `a x = b` (or `x a = b`, see `options`) with triangular matrices `a`, which
    /// are these, on the last two axes: PyTorch's `torch.linalg.solve_triangular`. Elements on the
    /// other side of the diagonal are not read. Axes in front broadcast.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when these matrices are not square or `b` does not fit them,
    /// [`Error::Broadcast`], [`Error::DTypeMismatch`] for dtypes that differ or are neither `f32` nor
    /// `f64`.
    #[track_caller]
    pub fn solve_triangular(&self, b: &Tensor, options: SolveTriangularOptions) -> Result<Tensor> {
        const OP: &str = TriangularSolve::NAME;
        let at = Location::caller();
        let SolveTriangularOptions {
            upper,
            left,
            unitriangular,
        } = options;
        let fits = || -> Result<()> {
            let a = square(OP, InputType::Tensor(ty(self.dtype(), self.shape())))?;
            if b.dtype() != a.dtype() {
                return Err(Error::dtype(OP, format!("b of {}", a.dtype()), b.dtype()));
            }
            let size = a.shape()[a.rank() - 1];
            match *b.dims() {
                [.., rows, columns] if size == if left { rows } else { columns } => Ok(()),
                _ => {
                    let side = if left { "rows" } else { "columns" };
                    let expected = format!("b with {size} {side} for a of {}", a.shape());
                    Err(Error::shape(OP, expected, b.shape()))
                }
            }
        };
        fits().map_err(|e| e.at(at))?;
        let (a, b) = batched(OP, self, b).map_err(|e| e.at(at))?;
        solve(&a, &b, upper, left, unitriangular)
    }

    /// The solution `x` of `a x = b`, where these are the right-hand sides `b` and `factor` is the
    /// [`Tensor::cholesky`] of `a`, upper or lower.
    ///
    /// # Errors
    /// As [`Tensor::solve_triangular`].
    #[track_caller]
    pub fn cholesky_solve(&self, factor: &Tensor, upper: bool) -> Result<Tensor> {
        let side = |upper| SolveTriangularOptions {
            upper,
            ..SolveTriangularOptions::default()
        };
        let at = Location::caller();
        if factor.rank() < 2 {
            let expected = "square matrices on the last two axes";
            return Err(Error::shape("cholesky_solve", expected, factor.shape()).at(at));
        }
        let (b, factor) = (full(self)?, &*full(factor)?);
        let transposed = adjoint(factor)?;
        let (lower, above) = match upper {
            true => (&transposed, factor),
            false => (factor, &transposed),
        };
        above.solve_triangular(&lower.solve_triangular(&b, side(false))?, side(true))
    }

    /// The sum of a matrix's diagonal.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for what is no matrix.
    #[track_caller]
    pub fn trace(&self) -> Result<Tensor> {
        if self.rank() != 2 {
            let at = Location::caller();
            return Err(Error::shape("trace", "a matrix", self.shape()).at(at));
        }
        full(self)?.diagonal(0, 0, 1)?.sum((), false)
    }

    /// Kronecker's product: each element of this tensor times the other, side by side. The shorter
    /// shape gets axes of length 1 in front.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the result would be too large.
    #[track_caller]
    pub fn kron(&self, other: &Tensor) -> Result<Tensor> {
        let at = Location::caller();
        let rank = self.rank().max(other.rank());
        let padded = |x: &Tensor| -> Dims {
            let missing = rank - x.rank();
            let ones = std::iter::repeat_n(1, missing);
            ones.chain(x.dims().iter().copied()).collect()
        };
        let (left, right) = (padded(self), padded(other));
        let mut spread = [Dims::new(), Dims::new()];
        let mut merged = Dims::new();
        for (&a, &b) in left.iter().zip(&right) {
            spread[0].extend([a, 1]);
            spread[1].extend([1, b]);
            let Some(length) = a.checked_mul(b) else {
                let expected = "lengths whose product is below 2^64";
                return Err(Error::shape("kron", expected, format!("{a} x {b}")).at(at));
            };
            merged.push(length);
        }
        let [left, right] = spread;
        self.reshape(left.as_slice())?
            .mul(&other.reshape(right.as_slice())?)?
            .reshape(merged.as_slice())
    }

    /// The cross product of vectors of 3 elements, which lie along `dim`. Other axes broadcast.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::ShapeMismatch`] when the axis is not 3 long or the ranks differ,
    /// [`Error::Broadcast`].
    #[track_caller]
    pub fn cross(&self, other: &Tensor, dim: i64) -> Result<Tensor> {
        const OP: &str = "cross";
        let at = Location::caller();
        if self.rank() != other.rank() {
            let expected = format!("a tensor of {} axes", self.rank());
            return Err(Error::shape(OP, expected, other.shape()).at(at));
        }
        let shape = self
            .shape()
            .broadcast(OP, other.shape())
            .map_err(|e| e.at(at))?;
        let axis = shape.axis(OP, dim).map_err(|e| e.at(at))?;
        for x in [self, other] {
            if x.dims()[axis] != 3 {
                let expected = format!("length 3 on axis {axis}");
                return Err(Error::shape(OP, expected, x.shape()).at(at));
            }
        }
        // Component i is x[i+1] y[i+2] - x[i+2] y[i+1]: each operand turned by one and by two.
        let turned = |x: &Tensor, by: usize| {
            let head = x.narrow(axis as i64, by as i64, 3 - by)?;
            let tail = x.narrow(axis as i64, 0, by)?;
            Tensor::cat(&[&head, &tail], axis as i64)
        };
        let forth = turned(self, 1)?.mul(&turned(other, 2)?)?;
        forth.sub(&turned(self, 2)?.mul(&turned(other, 1)?)?)
    }

    /// The distances between each row of this tensor, `[.., p, m]`, and each of another,
    /// `[.., r, m]`: `(Σ |x - y|^p)^(1/p)`, `[.., p, r]`. Axes in front broadcast. A `p` of 0 counts
    /// the differences that are not 0, an infinite one takes the largest. Where the distance is 0 the
    /// gradient is 0.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the rows differ in length, [`Error::Broadcast`],
    /// [`Error::DTypeMismatch`], [`Error::Argument`] for a negative `p`.
    #[track_caller]
    pub fn cdist(&self, other: &Tensor, p: f64) -> Result<Tensor> {
        const OP: &str = "cdist";
        let at = Location::caller();
        let fits = || -> Result<()> {
            for x in [self, other] {
                if !x.dtype().is_float() {
                    return Err(Error::dtype(OP, "a floating-point dtype", x.dtype()));
                }
                if x.rank() < 2 {
                    return Err(Error::shape(OP, "rows on the last axis but one", x.shape()));
                }
            }
            if self.size(-1)? != other.size(-1)? {
                let expected = format!("rows of length {}", self.size(-1)?);
                return Err(Error::shape(OP, expected, other.shape()));
            }
            if p.is_nan() || p < 0.0 {
                return Err(Error::argument(OP, "p", "a number of at least 0", p));
            }
            Ok(())
        };
        fits().map_err(|e| e.at(at))?;
        let (x, y) = batched(OP, &*full(self)?, &*full(other)?).map_err(|e| e.at(at))?;
        let apart = x.unsqueeze(-2)?.sub(&y.unsqueeze(-3)?)?;
        // A norm has no largest of no differences; a distance of nothing is 0.
        match apart.size(-1)? {
            0 => apart.sum(-1, false),
            _ => apart.norm(p, -1, false),
        }
    }
}
