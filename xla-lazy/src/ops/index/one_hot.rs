//! Indices as rows of zeros with a one.

use super::{index_type, widened};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operator};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

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
