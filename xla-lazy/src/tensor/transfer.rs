//! Values on their way: from the host, to another device, back to the host.

use super::{Tensor, TensorOptions};
use crate::compiled;
use crate::spmd;
use crate::storage::{Storage, Value};
use crate::sync::{self, DeviceValue};
use crate::trace;
use crate::ty::ty;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{Element, Error, IntoShape, Literal, Result};
use xla_runtime::metrics;

impl Tensor {
    /// A tensor with a literal's values, sent to the device now. The dtype is the literal's unless
    /// the options name another, to which the host converts first.
    ///
    /// The literal is immutable, so where its memory is aligned the device uses it without a copy.
    ///
    /// # Errors
    /// The runtime's, when the device does not exist or has no memory left.
    ///
    /// ```no_run
    /// use xla_core::Literal;
    /// use xla_lazy::Tensor;
    /// let x = Tensor::from_literal(Literal::from_vec(vec![1.0f32, 2.0], [2])?, ())?;
    /// assert_eq!(x.to_vec::<f32>()?, [1.0, 2.0]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn from_literal(literal: Literal, options: impl Into<TensorOptions>) -> Result<Tensor> {
        let _attributed = metrics::attribute("from_literal", trace::recorder(Location::caller()));
        let options = options.into();
        let device = options.device_or_current("Tensor::from_literal")?;
        let literal = literal.cast(options.dtype().unwrap_or(literal.dtype()));
        let range = literal.integer_range();
        let ty = ty(literal.dtype(), literal.shape());
        let value = match options.sharding() {
            None => DeviceValue::upload(literal, device)?,
            Some(sharding) => {
                let shape = literal.shape();
                let checked = sharding.check("Tensor::from_literal", shape);
                checked.map_err(|e| e.at(Location::caller()))?;
                DeviceValue::spread_out(literal.dtype(), shape, sharding, |index| {
                    spmd::blocks::cut(&literal, index)
                })?
            }
        };
        sync::note(&value, "Tensor::from_literal", Location::caller());
        let storage = Arc::new(Storage::new(ty, device, Value::Ready(value)));
        let mut contents = storage.lock();
        contents.range = range;
        contents.mark = options.sharding().cloned();
        drop(contents);
        compiled::made(&storage);
        Ok(Tensor::of(storage))
    }

    /// A tensor with a copy of a slice. Changing the slice later never changes the tensor.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the shape does not hold as many elements; otherwise as
    /// [`Tensor::from_literal`].
    #[track_caller]
    pub fn from_slice<T: Element>(
        data: &[T],
        shape: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        let location = Location::caller();
        let literal = Literal::from_slice(data, shape).map_err(|e| e.at(location))?;
        Tensor::from_literal(literal, options)
    }

    /// A tensor with a vector's values; the vector's memory is given to it.
    ///
    /// # Errors
    /// As [`Tensor::from_slice`].
    #[track_caller]
    pub fn from_vec<T: Element>(
        data: Vec<T>,
        shape: impl IntoShape,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        let location = Location::caller();
        let literal = Literal::from_vec(data, shape).map_err(|e| e.at(location))?;
        Tensor::from_literal(literal, options)
    }

    /// A tensor with an `ndarray` array's values.
    ///
    /// # Errors
    /// As [`Tensor::from_literal`].
    #[track_caller]
    pub fn from_array<T: Element, D: ndarray::Dimension>(
        array: ndarray::Array<T, D>,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        Tensor::from_literal(Literal::from_array(array), options)
    }

    /// The tensor on another device or with another dtype; a handle on this one when it is there
    /// already. Moving to another device reads nothing to the host but waits for the value.
    ///
    /// # Errors
    /// The pending program's, when the value has to be computed first and that fails.
    /// [`Error::Autograd`] when a tensor that requires a gradient would move, outside
    /// [`crate::no_grad`]: no gradient flows from one device to another.
    #[track_caller]
    pub fn to(&self, options: impl Into<TensorOptions>) -> Result<Tensor> {
        let options = options.into();
        let moved = match options.device() {
            Some(device) if device != self.device() => {
                if trace::is_grad_enabled() && self.requires_grad() {
                    return Err(Error::Autograd {
                        op: "to",
                        reason: "no gradient flows from one device to another".into(),
                        advice: "move its detach(), or move it inside no_grad(|| …)",
                        at: Location::caller().into(),
                    });
                }
                let value = sync::materialise(self, "to", Location::caller())?.copy_to(device)?;
                let storage = Storage::new(self.ty(), device, Value::Ready(value));
                storage.lock().range = self.index_range();
                Tensor::of(Arc::new(storage))
            }
            _ => self.clone(),
        };
        match options.dtype() {
            Some(dtype) => moved.to_dtype(dtype),
            None => Ok(moved),
        }
    }

    /// The values on the host. Executes what is pending, once, and waits for this tensor only.
    ///
    /// # Errors
    /// The pending program's compile or execution error, or a deadline.
    #[track_caller]
    pub fn to_literal(&self) -> Result<Literal> {
        self.read("to_literal", Location::caller())
    }

    /// The elements on the host, row-major; see [`Tensor::to_literal`].
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] when `T` is not the tensor's dtype; otherwise as
    /// [`Tensor::to_literal`].
    #[track_caller]
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype() {
            return Err(
                Error::dtype("to_vec", T::DTYPE.name(), self.dtype()).at(Location::caller())
            );
        }
        self.read("to_vec", Location::caller())?.to_vec()
    }

    /// The values as an `ndarray` array; see [`Tensor::to_literal`].
    ///
    /// # Errors
    /// As [`Tensor::to_vec`].
    #[track_caller]
    pub fn to_array<T: Element>(&self) -> Result<ndarray::ArrayD<T>> {
        if T::DTYPE != self.dtype() {
            return Err(
                Error::dtype("to_array", T::DTYPE.name(), self.dtype()).at(Location::caller())
            );
        }
        self.read("to_array", Location::caller())?.to_array()
    }

    /// The value of a tensor with one element, converted to `T`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when there is not exactly one element; otherwise as
    /// [`Tensor::to_literal`].
    #[track_caller]
    pub fn item<T: Element>(&self) -> Result<T> {
        if self.numel() != 1 {
            return Err(
                Error::shape("item", "exactly one element", self.shape()).at(Location::caller())
            );
        }
        let literal = self.read("item", Location::caller())?.cast(T::DTYPE);
        Ok(literal.as_slice::<T>()?[0])
    }

    /// The values on the host for the method `what`.
    fn read(&self, what: &'static str, at: &'static Location<'static>) -> Result<Literal> {
        let _attributed = metrics::attribute(what, trace::recorder(at));
        sync::materialise(self, what, at)?.to_literal()
    }
}
