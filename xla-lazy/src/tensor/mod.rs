//! The tensor: a handle on a storage, or on a view of one. Operators are not here but in `ops`.

mod assign;
mod autograd;
mod indices;
mod options;
mod transfer;

pub use options::TensorOptions;

use crate::handle::Handle;
use crate::op::OpEntry;
use crate::spmd;
use crate::storage::Storage;
use crate::ty::Ty;
use crate::view::View;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{DType, Device, Result, Shape};

/// An n-dimensional array on a device, computed when it is needed.
///
/// Operators record; [`crate::sync`] compiles and runs what was recorded. Cloning makes another
/// handle on the same value, as assigning does in PyTorch, and in-place methods (their names end in
/// `_`) change the value for every handle and every view of it.
///
/// Handles are `Send` and `Sync`. An operator records into the trace of the replica that its
/// operands are pending in.
pub struct Tensor {
    pub(crate) storage: Handle,
    pub(crate) view: Option<Arc<View>>,
}

impl Clone for Tensor {
    fn clone(&self) -> Self {
        Tensor {
            storage: self.storage.clone(),
            view: self.view.clone(),
        }
    }
}

impl Tensor {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.ty().dtype()
    }

    /// Axis lengths.
    pub fn shape(&self) -> &'static Shape {
        self.ty().shape()
    }

    /// Axis lengths, outermost first.
    pub fn dims(&self) -> &'static [usize] {
        self.ty().shape().dims()
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.ty().rank()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.ty().shape().numel()
    }

    /// Length of one axis, counted from the end when negative.
    ///
    /// # Errors
    /// [`Error::Axis`](xla_core::Error::Axis) when there is no such axis.
    #[track_caller]
    pub fn size(&self, dim: i64) -> Result<usize> {
        let location = Location::caller();
        self.shape()
            .axis("size", dim)
            .map(|a| self.dims()[a])
            .map_err(|e| e.at(location))
    }

    /// The device that the value lives on.
    pub fn device(&self) -> Device {
        spmd::used_on(self.storage.device())
    }

    /// A number that all handles on one storage and its views share, and no other tensor has that is
    /// alive: for telling whether two tensors are the same.
    pub fn storage_id(&self) -> usize {
        Arc::as_ptr(&self.storage).addr()
    }

    /// How often the value has been changed in place; shared by all views of it.
    pub fn version(&self) -> u64 {
        self.storage.lock().version
    }

    pub(crate) fn of(storage: Arc<Storage>) -> Self {
        Tensor {
            storage: Handle::new(storage),
            view: None,
        }
    }

    pub(crate) fn with_view(&self, view: View) -> Self {
        Tensor {
            storage: self.storage.clone(),
            view: Some(Arc::new(view)),
        }
    }

    /// A view of this tensor by an operator without numbers.
    #[track_caller]
    pub(crate) fn view_op(&self, entry: &'static OpEntry) -> Result<Tensor> {
        self.view_by(entry, &[])
    }

    pub(crate) fn ty(&self) -> Ty {
        self.view.as_ref().map_or(self.storage.ty(), |v| v.ty)
    }
}

impl fmt::Debug for Tensor {
    /// The type and device; the values are not computed for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor {} on {}", self.ty(), self.device())
    }
}
