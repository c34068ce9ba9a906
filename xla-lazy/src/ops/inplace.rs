//! In-place methods: they make the tensor's storage the value of a newly recorded operator, so that
//! every handle on it and every view of it sees the change.

use crate::Tensor;
use crate::op::{Number, Operand};
use crate::trace::no_grad;
use std::panic::Location;
use xla_core::{Error, Result};

macro_rules! in_place {
    ($($(#[$doc:meta])* $method:ident $op:ident;)*) => {
        impl Tensor {$(
            $(#[$doc])*
            ///
            /// Returns a handle on this tensor.
            ///
            /// # Errors
            /// [`Error::Broadcast`], or [`Error::ShapeMismatch`] when the result would have another
            /// shape; [`Error::DTypeMismatch`] when it cannot be kept in this tensor's dtype;
            /// [`Error::Autograd`] for a leaf that requires a gradient, outside
            /// [`crate::no_grad`].
            #[track_caller]
            pub fn $method<'a>(&self, other: impl Into<Operand<'a>>) -> Result<Tensor> {
                let value = self.$op(other)?;
                self.assign_result(stringify!($method), value)
            }
        )*}
    };
}

in_place! {
    /// `x += other`.
    add_ add;
    /// `x -= other`.
    sub_ sub;
    /// `x *= other`.
    mul_ mul;
    /// `x /= other`.
    div_ div;
}

impl Tensor {
    /// Assigns a computed value after PyTorch's checks: the shape is kept, and the dtype may not
    /// rise in category.
    #[track_caller]
    fn assign_result(&self, op: &'static str, value: Tensor) -> Result<Tensor> {
        let at = Location::caller();
        if value.shape() != self.shape() {
            let expected = format!("a result of shape {}", self.shape());
            return Err(Error::shape(op, expected, value.shape()).at(at));
        }
        if value.dtype().category() > self.dtype().category() {
            let expected = format!("a result that {} can hold", self.dtype());
            return Err(Error::dtype(op, expected, value.dtype()).at(at));
        }
        let value = value.to_dtype(self.dtype())?;
        self.assign(op, value)
    }

    /// `x += alpha * other`, with `alpha` as data.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    #[track_caller]
    pub fn add_scaled_(&self, other: &Tensor, alpha: impl Into<Number>) -> Result<Tensor> {
        let value = self.add(&other.mul(alpha.into())?)?;
        self.assign_result("add_scaled_", value)
    }

    /// Takes over the values of `other`, which is broadcast and converted.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when `other` does not broadcast to this shape; otherwise as
    /// [`Tensor::add_`].
    #[track_caller]
    pub fn copy_(&self, other: &Tensor) -> Result<Tensor> {
        let value = other.to_dtype(self.dtype())?.expand(self.shape())?;
        self.assign("copy_", value)
    }

    /// Sets every element to a number, which is data.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    #[track_caller]
    pub fn fill_(&self, value: impl Into<Number>) -> Result<Tensor> {
        let value = Tensor::full(self.shape(), value, (self.dtype(), self.device()))?;
        self.assign("fill_", value)
    }

    /// Sets every element to 0.
    ///
    /// # Errors
    /// As [`Tensor::add_`].
    #[track_caller]
    pub fn zero_(&self) -> Result<Tensor> {
        let value = self.zeros_like()?;
        self.assign("zero_", value)
    }

    /// Takes over the values of a tensor of the same shape and dtype without recording a gradient:
    /// PyTorch's `x.data = value`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`].
    #[track_caller]
    pub fn set_data(&self, value: &Tensor) -> Result<()> {
        let at = Location::caller();
        if value.shape() != self.shape() {
            let expected = format!("shape {}", self.shape());
            return Err(Error::shape("set_data", expected, value.shape()).at(at));
        }
        if value.dtype() != self.dtype() {
            return Err(Error::dtype("set_data", self.dtype().name(), value.dtype()).at(at));
        }
        no_grad(|| self.assign("set_data", value.detach()?)).map(drop)
    }
}
