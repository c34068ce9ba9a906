//! Writes in place. Every handle on the tensor and every view of it sees them.

use super::ScatterReduce;
use crate::Tensor;
use crate::op::{Number, Operand};
use std::panic::Location;
use xla_core::{Error, Result};

macro_rules! in_place {
    ($($method:ident $(<$life:lifetime>)? $op:ident($($argument:ident: $type:ty),*);)*) => {
        impl Tensor {$(
            #[doc = concat!("[`Tensor::", stringify!($op), "`] in place; returns a handle on this tensor.")]
            ///
            /// # Errors
            #[doc = concat!("As [`Tensor::", stringify!($op), "`];")]
            /// [`Error::Autograd`] for a leaf that requires a gradient, outside
            /// [`crate::no_grad`].
            #[track_caller]
            pub fn $method$(<$life>)?(&self, $($argument: $type),*) -> Result<Tensor> {
                let value = self.$op($($argument),*)?;
                self.assign(stringify!($method), value)
            }
        )*}
    };
}

in_place! {
    index_add_ index_add(dim: i64, indices: &Tensor, source: &Tensor, alpha: Option<Number>);
    index_copy_ index_copy(dim: i64, indices: &Tensor, source: &Tensor);
    index_fill_<'a> index_fill(dim: i64, indices: &Tensor, value: impl Into<Operand<'a>>);
    scatter_<'a> scatter(dim: i64, indices: &Tensor, source: impl Into<Operand<'a>>);
    scatter_add_ scatter_add(dim: i64, indices: &Tensor, source: &Tensor);
    scatter_reduce_ scatter_reduce(
        dim: i64,
        indices: &Tensor,
        source: &Tensor,
        reduce: ScatterReduce,
        include_self: bool
    );
}

impl Tensor {
    /// [`Tensor::masked_fill`] in place; returns a handle on this tensor.
    ///
    /// # Errors
    /// As [`Tensor::masked_fill`]; [`Error::ShapeMismatch`] when the mask does not expand to this
    /// shape; [`Error::Autograd`] for a leaf that requires a gradient, outside [`crate::no_grad`].
    #[track_caller]
    pub fn masked_fill_<'a>(&self, mask: &Tensor, value: impl Into<Operand<'a>>) -> Result<Tensor> {
        self.covers("masked_fill_", mask)?;
        let filled = self.masked_fill(mask, value)?;
        self.assign("masked_fill_", filled)
    }

    /// [`Tensor::masked_scatter`] in place; returns a handle on this tensor.
    ///
    /// # Errors
    /// As [`Tensor::masked_scatter`]; [`Error::ShapeMismatch`] when the mask does not expand to
    /// this shape; [`Error::Autograd`] for a leaf that requires a gradient, outside
    /// [`crate::no_grad`].
    #[track_caller]
    pub fn masked_scatter_(&self, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
        self.covers("masked_scatter_", mask)?;
        let written = self.masked_scatter(mask, source)?;
        self.assign("masked_scatter_", written)
    }

    #[track_caller]
    fn covers(&self, op: &'static str, mask: &Tensor) -> Result<()> {
        if mask.shape().expands_to(self.shape()) {
            return Ok(());
        }
        let expected = format!("a mask that expands to {}", self.shape());
        Err(Error::shape(op, expected, mask.shape()).at(Location::caller()))
    }
}
