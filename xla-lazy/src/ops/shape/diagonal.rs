//! Diagonals and triangles of matrices.

use crate::Tensor;
use crate::op::{Derivative, InputType, Number, Operator, Saves, entry};
use crate::ops::{only, where_shown_and_beside};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::view::{Strides, ViewRule};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

/// Row and column of every element of the last two axes.
fn positions(f: &mut Func, shape: &Shape) -> (Value, Value) {
    let rank = shape.rank();
    let rows = f.iota(DType::I64, shape, rank - 2);
    let columns = f.iota(DType::I64, shape, rank - 1);
    (rows, columns)
}

/// Matrices with zeros above (or below) a diagonal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Triangle<const LOWER: bool> {
    diagonal: i64,
}

impl<const LOWER: bool> Operator for Triangle<LOWER> {
    const NAME: &'static str = if LOWER { "tril" } else { "triu" };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| vjp.only(record_op(op.clone(), &[vjp.grad().into()])),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        match input.rank() {
            0 | 1 => Err(Error::shape(Self::NAME, "at least two axes", input.shape())),
            _ => Ok(input),
        }
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let matrix = Shape::new(&out.shape()[out.rank() - 2..]);
        let (rows, columns) = positions(f, &matrix);
        // No matrix has as many rows or columns, and so no sum of them wraps around.
        let most = i64::MAX / 2;
        let diagonal = self.diagonal.clamp(-most, most);
        let diagonal = f.constant_int(DType::I64, &matrix, diagonal);
        let limit = f.binary("add", rows, diagonal);
        let side = if LOWER { Compare::Le } else { Compare::Ge };
        let kept = f.compare(side, columns, limit);
        let axes: Dims = (out.rank() - 2..out.rank()).collect();
        let kept = f.broadcast_in_dim(kept, out.shape(), &axes);
        let zeros = f.constant(out.dtype(), out.shape(), 0.0);
        Ok(f.select(kept, inputs[0], zeros))
    }
}

/// The diagonal of square matrices on the last two axes, as the last axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Diagonal;

impl Operator for Diagonal {
    const NAME: &'static str = "diagonal";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |_, vjp| {
            let zeros = vjp.zeros(0)?;
            vjp.only(record_op(
                DiagonalUpdate,
                &[(&zeros).into(), vjp.grad().into()],
            ))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        Ok(ty(
            input.dtype(),
            &Shape::new(&input.shape()[..input.rank() - 1]),
        ))
    }

    /// In row-major order the elements of the diagonal are `n + 1` apart.
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (rank, n) = (out.rank(), out.shape()[out.rank() - 1]);
        let mut flat: Dims = out.shape().dims().into();
        flat[rank - 1] = n * n;
        let x = f.reshape(inputs[0], &Shape::from(flat.clone()));
        let mut steps = Dims::from_elem(1, rank);
        steps[rank - 1] = n + 1;
        Ok(f.slice(x, &Dims::from_elem(0, rank), &flat, &steps))
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Some(self)
    }
}

impl ViewRule for Diagonal {
    fn write(&self, input: &Tensor, value: &Tensor, _: &[Number]) -> Result<Tensor> {
        record_op(DiagonalUpdate, &[input.into(), value.into()])
    }

    fn strides(&self, _: &Shape, strides: &[i64], _: &Shape) -> Option<Strides> {
        let (&last, rest) = strides.split_last()?;
        let mut out: Strides = rest.into();
        let end = out.last_mut()?;
        *end = end.saturating_add(last);
        Some(out)
    }
}

/// Square matrices with another diagonal.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct DiagonalUpdate;

impl Operator for DiagonalUpdate {
    const NAME: &'static str = "diagonal_update";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| where_shown_and_beside(vjp, Diagonal, op.clone()),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (rows, columns) = positions(f, out.shape());
        let hit = f.compare(Compare::Eq, rows, columns);
        let axes: Dims = (0..out.rank() - 1).collect();
        let spread = f.broadcast_in_dim(inputs[1], out.shape(), &axes);
        Ok(f.select(hit, spread, inputs[0]))
    }
}

impl Tensor {
    /// The lower triangle of matrices on the last two axes, with zeros above the diagonal that lies
    /// `diagonal` above the main one.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for fewer than two axes.
    #[track_caller]
    pub fn tril(&self, diagonal: i64) -> Result<Tensor> {
        record_op(Triangle::<true> { diagonal }, &[self.into()])
    }

    /// The upper triangle, with zeros below the diagonal; as [`Tensor::tril`].
    ///
    /// # Errors
    /// As [`Tensor::tril`].
    #[track_caller]
    pub fn triu(&self, diagonal: i64) -> Result<Tensor> {
        record_op(Triangle::<false> { diagonal }, &[self.into()])
    }

    /// The diagonal `offset` above the main one of the matrices on two axes, as a last axis: a
    /// view.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] for one axis twice.
    #[track_caller]
    pub fn diagonal(&self, offset: i64, dim1: i64, dim2: i64) -> Result<Tensor> {
        const OP: &str = "diagonal";
        let at = Location::caller();
        let (first, second) = (
            self.shape().axis(OP, dim1).map_err(|e| e.at(at))?,
            self.shape().axis(OP, dim2).map_err(|e| e.at(at))?,
        );
        if first == second {
            return Err(Error::argument(OP, "dim2", "another axis than dim1", dim2).at(at));
        }
        let (rows, columns) = (self.dims()[first], self.dims()[second]);
        let distance = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        // The square whose main diagonal is the one asked for.
        let (row, column) = if offset < 0 {
            (distance.min(rows), 0)
        } else {
            (0, distance.min(columns))
        };
        let len = (rows - row).min(columns - column);
        let square = self.narrow(first as i64, row as i64, len)?.narrow(
            second as i64,
            column as i64,
            len,
        )?;
        let mut axes: Dims = (0..self.rank())
            .filter(|axis| *axis != first && *axis != second)
            .collect();
        axes.extend([first, second]);
        square
            .permute(axes.as_slice())?
            .view_by(entry(Diagonal), &[])
    }

    /// Matrices on axes `dim1` and `dim2` of the result whose diagonal `offset` above the main one
    /// is this tensor's last axis, and zeros elsewhere.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for a scalar; [`Error::Axis`]; [`Error::Argument`] for one axis
    /// twice.
    #[track_caller]
    pub fn diag_embed(&self, offset: i64, dim1: i64, dim2: i64) -> Result<Tensor> {
        const OP: &str = "diag_embed";
        let at = Location::caller();
        let Some((&len, batch)) = self.dims().split_last() else {
            return Err(Error::shape(OP, "at least one axis", self.shape()).at(at));
        };
        let distance = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
        let mut dims: Dims = batch.into();
        dims.extend([len.saturating_add(distance); 2]);
        let longer = Shape::from(dims);
        let (first, second) = (
            longer.axis(OP, dim1).map_err(|e| e.at(at))?,
            longer.axis(OP, dim2).map_err(|e| e.at(at))?,
        );
        if first == second {
            return Err(Error::argument(OP, "dim2", "another axis than dim1", dim2).at(at));
        }
        if ty(self.dtype(), &longer).is_too_large() {
            let expected = "an offset that makes less than 2^63 bytes";
            return Err(Error::argument(OP, "offset", expected, offset).at(at));
        }
        let rank = longer.rank();
        let mut square: Dims = batch.into();
        square.extend([len; 2]);
        let zeros = Tensor::zeros(Shape::from(square), (self.dtype(), self.device()))?;
        let matrix = record_op(DiagonalUpdate, &[(&zeros).into(), self.into()])?;
        let apart = distance as i64;
        // By axes from the last: columns, then rows.
        let padding = match offset {
            0 => return matrix.movedim([rank - 2, rank - 1], [first, second]),
            1.. => [apart, 0, 0, apart],
            _ => [0, apart, apart, 0],
        };
        matrix
            .pad(padding, 0)?
            .movedim([rank - 2, rank - 1], [first, second])
    }

    /// A vector as the diagonal of a matrix, or the diagonal of a matrix as a vector (a copy).
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for other than one or two axes.
    #[track_caller]
    pub fn diag(&self, diagonal: i64) -> Result<Tensor> {
        match self.rank() {
            1 => self.diag_embed(diagonal, 0, 1),
            2 => self.diagonal(diagonal, 0, 1)?.copy(),
            _ => {
                Err(Error::shape("diag", "a vector or a matrix", self.shape())
                    .at(Location::caller()))
            }
        }
    }
}
