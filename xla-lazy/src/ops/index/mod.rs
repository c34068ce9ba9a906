//! Selection by integer tensors.
//!
//! An index that came from the host is checked when the operator is recorded. One computed on the
//! device cannot be: where it is out of range the result is NaN for floats, the least value for
//! signed integers, the greatest for unsigned ones and true for `bool`, and an addition at such an
//! index is dropped.

use crate::op::{Derivative, InputType, Operator, Saves};
use crate::stablehlo::{Compare, Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::{Gradients, Tensor, Vjp};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

fn index_type(op: &'static str, input: InputType) -> Result<Ty> {
    let indices = input.tensor(op)?;
    if indices.dtype().is_integer() {
        Ok(indices)
    } else {
        Err(Error::dtype(op, "integer indices", indices.dtype()))
    }
}

/// The indices in a dtype that holds every position of an axis of `size`, so that neither the size
/// nor a position wraps around in theirs.
fn widened(f: &mut Func, indices: Value, size: usize) -> Value {
    let long = i32::try_from(size).is_err();
    match indices.dtype() {
        DType::I64 | DType::U64 => indices,
        _ if long => f.convert(indices, DType::I64),
        DType::I32 | DType::U32 => indices,
        _ => f.convert(indices, DType::I32),
    }
}

/// What stands for a value out of range, everywhere.
fn fill(f: &mut Func, out: Ty) -> Value {
    let scalar = Shape::scalar();
    let value = match out.dtype() {
        DType::Bool => f.constant(DType::Bool, &scalar, 1.0),
        d if d.is_float() => f.constant(d, &scalar, f64::NAN),
        d if d.is_signed() => f.identity(Reduction::Max, d),
        d => f.identity(Reduction::Min, d),
    };
    f.broadcast_in_dim(value, out.shape(), &[])
}

/// `values` where `indices` lie in `0..size`, else what stands for a value out of range.
fn mask(f: &mut Func, values: Value, indices: Value, size: usize, axes: &[usize]) -> Value {
    let limit = f.constant_int(indices.dtype(), indices.shape(), size as i64);
    let mut valid = f.compare(Compare::Lt, indices, limit);
    if indices.dtype().is_signed() {
        let zero = f.constant_int(indices.dtype(), indices.shape(), 0);
        let positive = f.compare(Compare::Ge, indices, zero);
        valid = f.binary("and", valid, positive);
    }
    let valid = f.broadcast_in_dim(valid, values.shape(), axes);
    let fill = fill(f, values.ty());
    f.select(valid, values, fill)
}

/// The derivative of a selection: the gradient, added to zeros at the places selected from.
fn add_where_taken<O: Operator>(vjp: &Vjp<'_>, add: O) -> Result<Gradients> {
    let zeros = vjp.zeros(0)?;
    let operands = [(&zeros).into(), vjp.operand(1)?, vjp.grad().into()];
    Ok(smallvec::smallvec![Some(record_op(add, &operands)?), None])
}

/// The derivative of an operator whose second operand says where along an axis of the first its
/// elements come from.
pub(super) fn add_along(vjp: &Vjp<'_>, axis: usize) -> Result<Gradients> {
    add_where_taken(vjp, ScatterAdd { axis })
}

/// The derivative of an addition at places: the gradient as it is, and what it holds at the places.
fn take_where_added<O: Operator>(vjp: &Vjp<'_>, select: O) -> Result<Gradients> {
    let part = record_op(select, &[vjp.grad().into(), vjp.operand(1)?])?;
    let whole = vjp.grad().clone();
    Ok(smallvec::smallvec![Some(whole), None, Some(part)])
}

/// Whole slices along an axis. `checked` indices are known to be in range.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct IndexSelect {
    axis: usize,
    checked: bool,
}

impl Operator for IndexSelect {
    const NAME: &'static str = "index_select";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| add_where_taken(vjp, IndexAdd { axis: op.axis }),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let indices = index_type(Self::NAME, inputs[1])?;
        if indices.rank() > 1 {
            return Err(Error::shape(
                Self::NAME,
                "indices of rank 0 or 1",
                indices.shape(),
            ));
        }
        let mut dims: Dims = x.shape().dims().into();
        dims[self.axis] = indices.shape().numel();
        Ok(ty(x.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let size = inputs[0].shape()[self.axis];
        if size == 0 {
            return Ok(fill(f, out));
        }
        let indices = widened(f, inputs[1], size);
        let indices = f.reshape(indices, &Shape::new(&[out.shape()[self.axis]]));
        let values = f.take(inputs[0], indices, self.axis);
        Ok(if self.checked {
            values
        } else {
            mask(f, values, indices, size, &[self.axis])
        })
    }
}

/// The first operand with slices added along an axis, at indices out of range nothing.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct IndexAdd {
    axis: usize,
}

impl Operator for IndexAdd {
    const NAME: &'static str = "index_add";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| {
            let checked = false;
            take_where_added(
                vjp,
                IndexSelect {
                    axis: op.axis,
                    checked,
                },
            )
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let indices = index_type(Self::NAME, inputs[1])?;
        let updates = inputs[2].tensor(Self::NAME)?;
        let mut dims: Dims = x.shape().dims().into();
        dims[self.axis] = indices.shape().numel();
        if updates.shape().dims() != dims.as_slice() {
            return Err(Error::shape(
                Self::NAME,
                format!("slices of {dims:?}"),
                updates.shape(),
            ));
        }
        if updates.dtype() != x.dtype() {
            return Err(Error::dtype(Self::NAME, x.dtype().name(), updates.dtype()));
        }
        Ok(x)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let count = inputs[2].shape()[self.axis];
        let indices = widened(f, inputs[1], inputs[0].shape()[self.axis]);
        let indices = f.reshape(indices, &Shape::new(&[count]));
        Ok(f.scatter_slices(
            Some(Reduction::Sum),
            inputs[0],
            indices,
            inputs[2],
            self.axis,
        ))
    }
}

/// One element along an axis for each index.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Gather {
    axis: usize,
    checked: bool,
}

/// The index of every element, with `indices` on `axis` and each element's own position on the
/// other axes, along a new last axis.
fn full_indices(f: &mut Func, indices: Value, axis: usize) -> Value {
    let rank = indices.shape().rank();
    let mut column: Dims = indices.shape().dims().into();
    column.push(1);
    let column = Shape::from(column);
    let columns: Vec<Value> = (0..rank)
        .map(|i| {
            let positions = match i == axis {
                true => indices,
                false => f.iota(indices.dtype(), indices.shape(), i),
            };
            f.reshape(positions, &column)
        })
        .collect();
    f.concatenate(&columns, rank)
}

impl Operator for Gather {
    const NAME: &'static str = "gather";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| add_where_taken(vjp, ScatterAdd { axis: op.axis }),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let indices = index_type(Self::NAME, inputs[1])?;
        fits_but_for(Self::NAME, x.shape(), indices.shape(), self.axis)?;
        Ok(ty(x.dtype(), indices.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (x, rank) = (inputs[0], out.rank());
        if x.shape().numel() == 0 {
            return Ok(fill(f, out));
        }
        let longest = x.shape().iter().copied().max().unwrap_or(0);
        let indices = widened(f, inputs[1], longest);
        let full = full_indices(f, indices, self.axis);
        let axes: Vec<usize> = (0..rank).collect();
        let ones = vec!["1"; rank].join(", ");
        let values = f.call(
            format_args!(
                "\"stablehlo.gather\"({x}, {full}) <{{dimension_numbers = #stablehlo.gather<collapsed_slice_dims = {axes:?}, start_index_map = {axes:?}, index_vector_dim = {rank}>, indices_are_sorted = false, slice_sizes = array<i64: {ones}>}}>"
            ),
            &[x, full],
            out,
        );
        let size = x.shape()[self.axis];
        Ok(if self.checked {
            values
        } else {
            mask(f, values, indices, size, &axes)
        })
    }
}

/// Indices may be shorter than the tensor on other axes, never longer.
fn fits_but_for(op: &'static str, x: &Shape, indices: &Shape, axis: usize) -> Result<()> {
    let fits = x.rank() == indices.rank() && (0..x.rank()).all(|i| i == axis || indices[i] <= x[i]);
    if fits {
        return Ok(());
    }
    let expected = format!(
        "indices of rank {} within {x} but for axis {axis}",
        x.rank()
    );
    Err(Error::shape(op, expected, indices))
}

/// The first operand with single elements added along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ScatterAdd {
    axis: usize,
}

impl Operator for ScatterAdd {
    const NAME: &'static str = "scatter_add";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| {
            let checked = false;
            take_where_added(
                vjp,
                Gather {
                    axis: op.axis,
                    checked,
                },
            )
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let indices = index_type(Self::NAME, inputs[1])?;
        fits_but_for(Self::NAME, x.shape(), indices.shape(), self.axis)?;
        let updates = inputs[2].tensor(Self::NAME)?;
        if updates.shape() != indices.shape() {
            let expected = format!("updates of the indices' shape {}", indices.shape());
            return Err(Error::shape(Self::NAME, expected, updates.shape()));
        }
        Ok(x)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        if inputs[2].shape().numel() == 0 || out.shape().numel() == 0 {
            return Ok(inputs[0]);
        }
        let longest = out.shape().iter().copied().max().unwrap_or(0);
        let indices = widened(f, inputs[1], longest);
        let full = full_indices(f, indices, self.axis);
        let axes: Vec<usize> = (0..out.rank()).collect();
        let numbers = format!(
            "inserted_window_dims = {axes:?}, scatter_dims_to_operand_dims = {axes:?}, index_vector_dim = {}",
            out.rank()
        );
        Ok(f.scatter(Some(Reduction::Sum), inputs[0], full, inputs[2], &numbers))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct OneHot {
    classes: usize,
}

impl Operator for OneHot {
    const NAME: &'static str = "one_hot";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let indices = index_type(Self::NAME, inputs[0])?;
        let mut dims: Dims = indices.shape().dims().into();
        dims.push(self.classes);
        Ok(ty(DType::I64, &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let axes: Vec<usize> = (0..out.rank() - 1).collect();
        let indices = widened(f, inputs[0], self.classes);
        let indices = f.broadcast_in_dim(indices, out.shape(), &axes);
        let classes = f.iota(indices.dtype(), out.shape(), out.rank() - 1);
        let hit = f.compare(Compare::Eq, indices, classes);
        Ok(f.convert(hit, out.dtype()))
    }
}

impl Tensor {
    /// The slices along an axis that `indices` (an integer tensor of rank 1 or 0) names.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for indices that came from the host; [`Error::DTypeMismatch`],
    /// [`Error::ShapeMismatch`], [`Error::Axis`].
    #[track_caller]
    pub fn index_select(&self, dim: i64, indices: &Tensor) -> Result<Tensor> {
        let at = Location::caller();
        let axis = self
            .shape()
            .axis("index_select", dim)
            .map_err(|e| e.at(at))?;
        let checked = self.checked("index_select", indices, axis, at)?;
        record_op(
            IndexSelect { axis, checked },
            &[self.into(), indices.into()],
        )
    }

    /// One element along an axis for each index: `out[i][j] = x[indices[i][j]][j]` for axis 0.
    ///
    /// # Errors
    /// As [`Tensor::index_select`].
    #[track_caller]
    pub fn gather(&self, dim: i64, indices: &Tensor) -> Result<Tensor> {
        let at = Location::caller();
        let axis = self.shape().axis("gather", dim).map_err(|e| e.at(at))?;
        let checked = self.checked("gather", indices, axis, at)?;
        record_op(Gather { axis, checked }, &[self.into(), indices.into()])
    }

    /// Whether indices are known to be in range; an error where they are known not to be.
    fn checked(
        &self,
        op: &'static str,
        indices: &Tensor,
        axis: usize,
        at: &'static Location<'static>,
    ) -> Result<bool> {
        if !indices.dtype().is_integer() {
            return Err(Error::dtype(op, "integer indices", indices.dtype()).at(at));
        }
        indices
            .check_indices(op, axis, self.dims()[axis], false)
            .map_err(|e| e.at(at))?;
        Ok(indices.index_range().is_some())
    }

    /// For each index a row of zeros with a one at its place; `i64`. Without a number of classes it
    /// is the largest index plus one, which is read to the host unless it came from there.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for indices that came from the host,
    /// [`Error::DTypeMismatch`] for indices that are no integers.
    #[track_caller]
    pub fn one_hot(&self, num_classes: Option<usize>) -> Result<Tensor> {
        let at = Location::caller();
        if !self.dtype().is_integer() {
            return Err(Error::dtype("one_hot", "integer indices", self.dtype()).at(at));
        }
        let classes = match (num_classes, self.index_range()) {
            (Some(classes), _) => classes,
            (None, Some((_, high))) => usize::try_from(high).map_or(0, |h| h + 1),
            (None, None) if self.numel() == 0 => {
                return Err(Error::argument("one_hot", "num_classes", "a number", "none").at(at));
            }
            (None, None) => {
                let highest: i64 = self.amax((), false)?.item()?;
                usize::try_from(highest).map_or(0, |h| h + 1)
            }
        };
        self.check_indices("one_hot", self.rank(), classes, false)
            .map_err(|e| e.at(at))?;
        record_op(OneHot { classes }, &[self.into()])
    }
}
