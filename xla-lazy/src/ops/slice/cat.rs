//! Tensors put together from others.

use crate::Tensor;
use crate::autocast::widest;
use crate::op::{Derivative, InputType, Operand, Operator, Saves, promote};
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{Dims, Error, Result, Shape};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Cat {
    axis: usize,
}

impl Operator for Cat {
    const NAME: &'static str = "cat";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let mut start = 0;
            (0..vjp.len())
                .map(|i| {
                    let len = vjp.shape(i)[op.axis];
                    let from = start;
                    start += len;
                    if !vjp.needs(i) {
                        return Ok(None);
                    }
                    let part = vjp.grad().narrow(op.axis as i64, from as i64, len)?;
                    part.to_dtype(vjp.dtype(i)).map(Some)
                })
                .collect()
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let first = inputs[0].tensor(Self::NAME)?;
        let mut dims: Dims = first.shape().dims().into();
        dims[self.axis] = 0;
        for input in inputs {
            let this = input.tensor(Self::NAME)?.shape();
            let fits = this.rank() == dims.len()
                && (0..dims.len()).all(|i| i == self.axis || this[i] == dims[i]);
            if !fits {
                let expected = format!("{} but for axis {}", first.shape(), self.axis);
                return Err(Error::shape(Self::NAME, expected, this));
            }
            dims[self.axis] = dims[self.axis].saturating_add(this[self.axis]);
        }
        Ok(ty(promote(inputs), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let converted: Vec<Value> = inputs.iter().map(|&x| f.convert(x, out.dtype())).collect();
        Ok(f.concatenate(&converted, self.axis))
    }
}

impl Tensor {
    /// Tensors one after the other along an axis. Vectors without elements go with any others, as
    /// in PyTorch.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when other axes differ, [`Error::Axis`], [`Error::Argument`] for no
    /// tensors.
    #[track_caller]
    pub fn cat(tensors: &[&Tensor], dim: i64) -> Result<Tensor> {
        let at = Location::caller();
        let counted = |t: &&&Tensor| t.dims() != [0];
        let Some(first) = tensors.iter().find(counted).or(tensors.first()) else {
            return Err(Error::argument("cat", "tensors", "at least one", "none").at(at));
        };
        let axis = first.shape().axis("cat", dim).map_err(|e| e.at(at))?;
        let mut none: Dims = first.dims().into();
        none[axis] = 0;
        let mut parts = Vec::with_capacity(tensors.len());
        let widest = widest(tensors);
        for tensor in tensors {
            let tensor = widest.of(tensor)?;
            parts.push(match tensor.dims() {
                [0] => tensor.reshape(none.as_slice())?,
                _ => tensor.into_owned(),
            });
        }
        record_op(
            Cat { axis },
            &parts.iter().map(Operand::Tensor).collect::<Vec<_>>(),
        )
    }

    /// Tensors of one shape along a new axis.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when shapes differ, [`Error::Axis`], [`Error::Argument`] for no
    /// tensors.
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], dim: i64) -> Result<Tensor> {
        const OP: &str = "stack";
        let at = Location::caller();
        let Some(first) = tensors.first() else {
            return Err(Error::argument(OP, "tensors", "at least one", "none").at(at));
        };
        let longer = Shape::from(Dims::from_elem(1, first.rank() + 1));
        let axis = longer.axis(OP, dim).map_err(|e| e.at(at))? as i64;
        if let Some(other) = tensors.iter().find(|t| t.shape() != first.shape()) {
            let expected = format!("tensors of shape {}", first.shape());
            return Err(Error::shape(OP, expected, other.shape()).at(at));
        }
        let mut slices = Vec::with_capacity(tensors.len());
        for tensor in tensors {
            slices.push(tensor.unsqueeze(axis)?);
        }
        Tensor::cat(&slices.iter().collect::<Vec<_>>(), axis)
    }
}
