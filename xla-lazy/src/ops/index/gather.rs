//! Single elements along an axis.

use super::scatter::{hits, linear};
use super::{Outside, add_along, fill, guard, index_type, widened};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::stablehlo::{Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

/// Up to so many elements it is faster to compare each one's position with the index, which
/// compiles to vector instructions, than to fetch one.
const MOST_COMPARED: usize = 128;

/// One element along an axis for each index.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Gather {
    pub(super) axis: usize,
    pub(super) outside: Outside,
}

impl Operator for Gather {
    const NAME: &'static str = "gather";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| add_along(vjp, op.axis),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let indices = index_type(Self::NAME, inputs[1])?;
        fits_but_for(Self::NAME, x.shape(), indices.shape(), self.axis)?;
        Ok(ty(x.dtype(), indices.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (x, axes) = (inputs[0], (0..out.rank()).collect::<Dims>());
        let size = x.shape()[self.axis];
        if x.shape().numel() == 0 || out.shape().numel() == 0 {
            return Ok(fill(f, out, self.outside));
        }
        let values = match hits(f, inputs[1], x.shape(), self.axis) {
            Some(hit) if size <= MOST_COMPARED => {
                let sum = match x.dtype() {
                    DType::Bool => Reduction::Or,
                    _ => Reduction::Sum,
                };
                let zeros = f.constant(x.dtype(), x.shape(), 0.0);
                let kept = f.select(hit, x, zeros);
                let picked = f.reduce(sum, kept, &[self.axis]);
                f.reshape(picked, out.shape())
            }
            _ => {
                let places = linear(f, inputs[1], x.shape(), self.axis, false);
                let flat = f.reshape(x, &Shape::new(&[x.shape().numel()]));
                f.take(flat, places, 0)
            }
        };
        let indices = widened(f, inputs[1], size);
        if self.outside == Outside::Fill {
            f.watch_indices(indices, self.axis, size);
        }
        Ok(guard(f, values, indices, size, &axes, self.outside))
    }
}

/// Indices may be shorter than the tensor on other axes, never longer.
pub(super) fn fits_but_for(
    op: &'static str,
    x: &Shape,
    indices: &Shape,
    axis: usize,
) -> Result<()> {
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

impl Tensor {
    /// One element along an axis for each index: `out[i][j] = x[indices[i][j]][j]` for axis 0.
    ///
    /// # Errors
    /// As [`Tensor::index_select`].
    #[track_caller]
    pub fn gather(&self, dim: i64, indices: &Tensor) -> Result<Tensor> {
        const OP: &str = "gather";
        let at = Location::caller();
        // A scalar answers to the axes of a vector.
        if self.rank() == 0 && indices.rank() == 0 {
            return self
                .reshape([1])?
                .gather(dim, &indices.reshape([1])?)?
                .squeeze(0);
        }
        let axis = self.shape().axis(OP, dim).map_err(|e| e.at(at))?;
        let outside = self.outside(OP, indices, axis, false, at)?;
        record_op(Gather { axis, outside }, &[self.into(), indices.into()])
    }

    /// [`Tensor::gather`] where tensor and indices broadcast on the other axes; without an axis,
    /// from the flattened tensor by flattened indices.
    ///
    /// # Errors
    /// As [`Tensor::gather`]; [`Error::Broadcast`]; [`Error::ShapeMismatch`] when the numbers of
    /// axes differ.
    #[track_caller]
    pub fn take_along_dim(&self, indices: &Tensor, dim: Option<i64>) -> Result<Tensor> {
        const OP: &str = "take_along_dim";
        let at = Location::caller();
        let Some(dim) = dim else {
            return self
                .reshape([-1])?
                .take_along_dim(&indices.reshape([-1])?, Some(0));
        };
        if indices.rank() != self.rank() {
            let expected = format!("indices of rank {}", self.rank());
            return Err(Error::shape(OP, expected, indices.shape()).at(at));
        }
        let axis = self.shape().axis(OP, dim).map_err(|e| e.at(at))?;
        let outside = self.outside(OP, indices, axis, false, at)?;
        let without = |shape: &Shape| {
            let mut dims: Dims = shape.dims().into();
            dims[axis] = 1;
            Shape::from(dims)
        };
        let common = without(self.shape()).broadcast(OP, &without(indices.shape()));
        let mut dims: Dims = common.map_err(|e| e.at(at))?.dims().into();
        dims[axis] = self.dims()[axis];
        let x = self.expand(dims.as_slice())?;
        dims[axis] = indices.dims()[axis];
        let indices = indices.expand(dims.as_slice())?;
        record_op(Gather { axis, outside }, &[(&x).into(), (&indices).into()])
    }
}
