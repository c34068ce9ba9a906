//! Whole slices along an axis, selected and written.

use super::{Outside, accumulator, fill, guard, index_type, widened};
use crate::autocast::widest;
use crate::op::{Derivative, InputType, Number, Operand, Operator, Saves};
use crate::stablehlo::{Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::{Gradients, Tensor, Vjp};
use std::panic::Location;
use xla_core::{Dims, Error, Result, Shape};

/// Whole slices along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct IndexSelect {
    pub(super) axis: usize,
    pub(super) outside: Outside,
}

impl Operator for IndexSelect {
    const NAME: &'static str = "index_select";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| {
            let zeros = vjp.zeros(0)?;
            let add = IndexAdd { axis: op.axis };
            let sum = record_op(add, &[(&zeros).into(), vjp.operand(1)?, vjp.grad().into()])?;
            Ok(smallvec::smallvec![Some(sum), None])
        },
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
            return Ok(fill(f, out, self.outside));
        }
        let indices = widened(f, inputs[1], size);
        let indices = f.reshape(indices, &Shape::new(&[out.shape()[self.axis]]));
        if self.outside == Outside::Fill {
            f.watch_indices(indices, self.axis, size);
        }
        let values = f.take(inputs[0], indices, self.axis);
        Ok(guard(f, values, indices, size, &[self.axis], self.outside))
    }
}

/// The first operand with slices added or put along an axis.
fn write(f: &mut Func, inputs: &[Value], axis: usize, reduction: Option<Reduction>) -> Value {
    let (x, count) = (inputs[0], inputs[2].shape()[axis]);
    if inputs[2].shape().numel() == 0 {
        return x;
    }
    let indices = widened(f, inputs[1], x.shape()[axis]);
    let indices = f.reshape(indices, &Shape::new(&[count]));
    f.watch_indices(indices, axis, x.shape()[axis]);
    let wide = match reduction {
        Some(_) => accumulator(x.dtype()),
        None => x.dtype(),
    };
    let (base, slices) = (f.convert(x, wide), f.convert(inputs[2], wide));
    let written = f.scatter_slices(reduction, base, indices, slices, axis);
    f.convert(written, x.dtype())
}

/// What a written tensor's slices get of its gradient: what it holds at their places.
fn taken(vjp: &Vjp<'_>, axis: usize) -> Result<Tensor> {
    let outside = Outside::Zero;
    record_op(
        IndexSelect { axis, outside },
        &[vjp.grad().into(), vjp.operand(1)?],
    )
}

/// The first operand with slices added along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct IndexAdd {
    pub(super) axis: usize,
}

impl Operator for IndexAdd {
    const NAME: &'static str = "index_add";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| {
            let whole = vjp.grad().clone();
            Ok(smallvec::smallvec![
                Some(whole),
                None,
                Some(taken(vjp, op.axis)?)
            ])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(write(f, inputs, self.axis, Some(Reduction::Sum)))
    }
}

/// The first operand with slices replaced along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct IndexCopy {
    pub(super) axis: usize,
}

impl Operator for IndexCopy {
    const NAME: &'static str = "index_copy";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| -> Result<Gradients> {
            let zeros = vjp.zeros(2)?;
            let operands = [vjp.grad().into(), vjp.operand(1)?, (&zeros).into()];
            let rest = record_op(op.clone(), &operands)?;
            Ok(smallvec::smallvec![
                Some(rest),
                None,
                Some(taken(vjp, op.axis)?)
            ])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(write(f, inputs, self.axis, None))
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
        const OP: &str = "index_select";
        let at = Location::caller();
        // A scalar answers to the axes of a vector.
        if self.rank() == 0 && indices.numel() == 1 {
            return self.reshape([1])?.index_select(dim, indices)?.squeeze(0);
        }
        let axis = self.shape().axis(OP, dim).map_err(|e| e.at(at))?;
        let outside = self.outside(OP, indices, axis, false, at)?;
        record_op(
            IndexSelect { axis, outside },
            &[self.into(), indices.into()],
        )
    }

    /// This tensor with the slices of `source` added along an axis, at the places that `indices`
    /// names, `alpha` (which is data; `None` for 1) times. Slices at one place are all added.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for indices that came from the host; [`Error::DTypeMismatch`],
    /// [`Error::ShapeMismatch`], [`Error::Axis`].
    #[track_caller]
    pub fn index_add(
        &self,
        dim: i64,
        indices: &Tensor,
        source: &Tensor,
        alpha: Option<Number>,
    ) -> Result<Tensor> {
        let axis = self.written("index_add", dim, indices, source)?;
        let scaled = match alpha {
            Some(alpha) => source.mul(alpha)?.to_dtype(self.dtype())?,
            None => source.clone(),
        };
        record_op(
            IndexAdd { axis },
            &[self.into(), indices.into(), (&scaled).into()],
        )
    }

    /// This tensor with slices along an axis, at the places that `indices` names, replaced by those
    /// of `source`. Of several slices for one place any may stay.
    ///
    /// # Errors
    /// As [`Tensor::index_add`].
    #[track_caller]
    pub fn index_copy(&self, dim: i64, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        let widest = widest(&[self, source]);
        let (target, source) = (widest.of(self)?, widest.of(source)?);
        let axis = target.written("index_copy", dim, indices, &source)?;
        let operands = [&*target, indices, &*source].map(Operand::Tensor);
        record_op(IndexCopy { axis }, &operands)
    }

    /// This tensor with the slices along an axis that `indices` names filled with a number, which
    /// is data, or a scalar tensor. Negative indices count from the end.
    ///
    /// # Errors
    /// As [`Tensor::index_add`]; [`Error::ShapeMismatch`] for a value with axes.
    #[track_caller]
    pub fn index_fill<'a>(
        &self,
        dim: i64,
        indices: &Tensor,
        value: impl Into<Operand<'a>>,
    ) -> Result<Tensor> {
        const OP: &str = "index_fill";
        let at = Location::caller();
        let axis = self.shape().axis(OP, dim).map_err(|e| e.at(at))?;
        if indices.rank() > 1 {
            return Err(Error::shape(OP, "indices of rank 0 or 1", indices.shape()).at(at));
        }
        self.outside(OP, indices, axis, true, at)?;
        let mut dims: Dims = self.dims().into();
        dims[axis] = indices.numel();
        let source = match value.into() {
            Operand::Number(value) => {
                Tensor::full(dims.as_slice(), value, (self.dtype(), self.device()))?
            }
            Operand::Tensor(value) if value.rank() == 0 => {
                value.to_dtype(self.dtype())?.expand(dims.as_slice())?
            }
            Operand::Tensor(value) => {
                return Err(Error::shape(OP, "a number or a scalar", value.shape()).at(at));
            }
        };
        let places = super::advanced::positions(&[(indices, self.dims()[axis])])?;
        record_op(
            IndexCopy { axis },
            &[self.into(), (&places).into(), (&source).into()],
        )
    }

    /// The axis of a write of slices, after its checks.
    #[track_caller]
    fn written(
        &self,
        op: &'static str,
        dim: i64,
        indices: &Tensor,
        source: &Tensor,
    ) -> Result<usize> {
        let at = Location::caller();
        let axis = self.shape().axis(op, dim).map_err(|e| e.at(at))?;
        self.outside(op, indices, axis, false, at)?;
        if indices.rank() > 1 {
            return Err(Error::shape(op, "indices of rank 0 or 1", indices.shape()).at(at));
        }
        let mut dims: Dims = self.dims().into();
        dims[axis] = indices.numel();
        if source.dims() != dims.as_slice() {
            let expected = format!("a source of shape {}", Shape::from(dims));
            return Err(Error::shape(op, expected, source.shape()).at(at));
        }
        self.same_dtype(op, source, at)?;
        Ok(axis)
    }
}
