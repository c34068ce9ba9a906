//! The tensor: a handle on a storage, or on a view of one. Operators are not here but in `ops`.

use crate::compiled;
use crate::grad::Leaf;
use crate::op::OpEntry;
use crate::spmd::{self, NamedSharding};
use crate::storage::{History, Storage, Value};
use crate::sync::{self, DeviceValue};
use crate::trace::{self, Trace, flag};
use crate::ty::{Ty, ty};
use crate::view::{Origin, View};
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{DType, Device, Element, Error, IntoShape, Literal, Result, Shape, Site};
use xla_runtime::metrics;

/// An n-dimensional array on a device, computed when it is needed.
///
/// Operators record; [`crate::sync`] compiles and runs what was recorded. Cloning makes another
/// handle on the same value, as assigning does in PyTorch, and in-place methods (their names end in
/// `_`) change the value for every handle and every view of it.
///
/// Handles are `Send` and `Sync`. An operator records into the trace of the replica that its
/// operands are pending in.
pub struct Tensor {
    pub(crate) storage: Arc<Storage>,
    pub(crate) view: Option<Arc<View>>,
}

impl Clone for Tensor {
    fn clone(&self) -> Self {
        Tensor {
            storage: Arc::clone(&self.storage),
            view: self.view.clone(),
        }
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        self.storage.handle_dropped();
    }
}

/// Where and as what a tensor is made: a dtype, a device or a sharding, both or neither (`()`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TensorOptions {
    dtype: Option<DType>,
    device: Option<Device>,
    sharding: Option<&'static NamedSharding>,
}

impl TensorOptions {
    /// The dtype asked for.
    pub fn dtype(&self) -> Option<DType> {
        self.dtype
    }

    /// The device asked for.
    pub fn device(&self) -> Option<Device> {
        self.device
    }

    /// The sharding asked for, over the mesh that the device stands for.
    pub fn sharding(&self) -> Option<&NamedSharding> {
        self.sharding
    }

    /// The device asked for, or the calling replica's.
    ///
    /// # Errors
    /// [`Error::NoReplicaContext`] on a thread that belongs to no replica while a launch runs.
    pub fn device_or_current(&self, op: &'static str) -> Result<Device> {
        match self.device {
            Some(device) => Ok(device),
            None => spmd::default_device(op),
        }
    }

    /// A new tensor as these options have it spread.
    pub(crate) fn spread(
        &self,
        op: &'static str,
        made: Tensor,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        if let Some(sharding) = self.sharding {
            spmd::spread(op, &made, sharding, at)?;
        }
        Ok(made)
    }
}

impl From<&NamedSharding> for TensorOptions {
    fn from(sharding: &NamedSharding) -> Self {
        TensorOptions {
            dtype: None,
            device: Some(sharding.mesh().device()),
            sharding: Some(sharding.interned()),
        }
    }
}

impl From<(DType, &NamedSharding)> for TensorOptions {
    fn from((dtype, sharding): (DType, &NamedSharding)) -> Self {
        TensorOptions {
            dtype: Some(dtype),
            ..TensorOptions::from(sharding)
        }
    }
}

impl From<()> for TensorOptions {
    fn from((): ()) -> Self {
        TensorOptions::default()
    }
}

impl From<DType> for TensorOptions {
    fn from(dtype: DType) -> Self {
        TensorOptions {
            dtype: Some(dtype),
            ..TensorOptions::default()
        }
    }
}

impl From<Device> for TensorOptions {
    fn from(device: Device) -> Self {
        TensorOptions {
            device: Some(device),
            ..TensorOptions::default()
        }
    }
}

impl From<&Device> for TensorOptions {
    fn from(device: &Device) -> Self {
        TensorOptions::from(*device)
    }
}

impl From<(DType, Device)> for TensorOptions {
    fn from((dtype, device): (DType, Device)) -> Self {
        TensorOptions {
            dtype: Some(dtype),
            device: Some(device),
            sharding: None,
        }
    }
}

impl From<(DType, &Device)> for TensorOptions {
    fn from((dtype, device): (DType, &Device)) -> Self {
        TensorOptions::from((dtype, *device))
    }
}

impl Tensor {
    pub(crate) fn of(storage: Arc<Storage>) -> Self {
        Tensor {
            storage,
            view: None,
        }
    }

    pub(crate) fn with_view(&self, view: View) -> Self {
        Tensor {
            storage: Arc::clone(&self.storage),
            view: Some(Arc::new(view)),
        }
    }

    /// The computed value of this tensor as one that autograd knows this history of.
    pub(crate) fn with_history(&self, history: History) -> Tensor {
        let value = match &self.storage.lock().value {
            Value::Ready(value) if self.view.is_none() => value.clone(),
            _ => return self.clone(),
        };
        let storage = Storage::new(
            self.storage.ty(),
            self.storage.device(),
            Value::Ready(value),
        );
        storage.lock().history = Some(history);
        Tensor::of(Arc::new(storage))
    }

    pub(crate) fn ty(&self) -> Ty {
        self.view.as_ref().map_or(self.storage.ty(), |v| v.ty)
    }

    /// Where and as what this tensor is; spread as it is marked, but where each device has blocks of its
    /// own.
    pub(crate) fn alike(&self) -> TensorOptions {
        let spread = self.device().is_virtual() && spmd::manual_mesh().is_none();
        let sharding = match spread && self.view.is_none() {
            true => self.storage.mark(),
            false => None,
        };
        TensorOptions {
            dtype: Some(self.dtype()),
            device: Some(self.device()),
            sharding: sharding.map(|sharding| sharding.interned()),
        }
    }

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
        let literal = literal.cast(options.dtype.unwrap_or(literal.dtype()));
        let range = literal.integer_range();
        let ty = ty(literal.dtype(), literal.shape());
        let value = match options.sharding {
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
        contents.mark = options.sharding.cloned();
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
    /// [`Error::Axis`] when there is no such axis.
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
        let moved = match options.device {
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
        match options.dtype {
            Some(dtype) => moved.to_dtype(dtype),
            None => Ok(moved),
        }
    }

    /// Smallest and largest element, where they are known because the value came from the host and
    /// was only viewed or widened since.
    pub fn index_range(&self) -> Option<(i64, i64)> {
        let range = self.index_range_unnoted();
        if compiled::is_active() {
            // What is made of it may be part of the program.
            let same = move |tensor: &Tensor| Ok(tensor.index_range_unnoted() == range);
            compiled::check(self, same).ok()?;
        }
        range
    }

    /// Applies `rule` to [`Tensor::index_range`], for an operator that refuses indices but records
    /// the same program for all others. In a compiled function the rule is applied at each call.
    ///
    /// # Errors
    /// Those of `rule`.
    pub fn check_index_range(
        &self,
        rule: impl Fn(Option<(i64, i64)>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let rule = move |tensor: &Tensor| rule(tensor.index_range_unnoted()).map(|()| true);
        compiled::check(self, rule).map(drop)
    }

    pub(crate) fn index_range_unnoted(&self) -> Option<(i64, i64)> {
        let contents = self.storage.lock();
        let range = contents.range?;
        if self.shows_every_element() {
            return Some(range);
        }
        // A part need not hold the extremes of the whole.
        let Value::Ready(value) = &contents.value else {
            return None;
        };
        let value = value.clone();
        drop(contents);
        let whole = value.to_literal().ok()?.cast(DType::I64);
        self.view.as_ref()?.range_in(whole.as_slice().ok()?)
    }

    /// Whether no view in the chain leaves elements out.
    pub(crate) fn shows_every_element(&self) -> bool {
        let total = self.storage.ty().shape().numel();
        let mut view = self.view.as_deref();
        while let Some(step) = view {
            if step.ty.shape().numel() != total {
                return false;
            }
            view = step.parent.as_deref();
        }
        true
    }

    /// An error if an index that came from the host is outside `-size..size` (or `0..size` where
    /// negative ones have no meaning); otherwise whether all are known to be within.
    #[track_caller]
    pub(crate) fn check_indices(
        &self,
        op: &'static str,
        axis: usize,
        size: usize,
        negative: bool,
    ) -> Result<bool> {
        compiled::check(self, move |indices| {
            indices.indices_within(op, axis, size, negative)
        })
    }

    fn indices_within(
        &self,
        op: &'static str,
        axis: usize,
        size: usize,
        negative: bool,
    ) -> Result<bool> {
        let limit = i64::try_from(size).unwrap_or(i64::MAX);
        let floor = if negative { -limit } else { 0 };
        let outside = |(low, high): (i64, i64)| match (low < floor, high >= limit) {
            (true, _) => Some(low),
            (_, true) => Some(high),
            _ => None,
        };
        let Some(whole) = self.storage.lock().range else {
            return Ok(false);
        };
        // Where the whole is within, so is any part of it.
        if self.numel() == 0 || outside(whole).is_none() {
            return Ok(true);
        }
        let _attributed = metrics::attribute(op, trace::recorder(Location::caller()));
        let Some(range) = self.index_range_unnoted() else {
            return Ok(false);
        };
        match outside(range) {
            None => Ok(true),
            Some(index) => Err(Error::IndexOutOfRange {
                op,
                index,
                axis,
                size,
                at: Site::NONE,
            }),
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

    /// The values on the host for the method `what`.
    fn read(&self, what: &'static str, at: &'static Location<'static>) -> Result<Literal> {
        let _attributed = metrics::attribute(what, trace::recorder(at));
        sync::materialise(self, what, at)?.to_literal()
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

    /// Whether a gradient flows to this tensor.
    pub fn requires_grad(&self) -> bool {
        if !self.dtype().is_float() {
            return false;
        }
        match self.origin() {
            Origin::Storage => self.storage_grad_flags() & flag::GRAD != 0,
            Origin::Leaf => true,
            Origin::Detached => false,
        }
    }

    fn origin(&self) -> Origin {
        self.view.as_ref().map_or(Origin::Storage, |v| v.origin())
    }

    /// Whether the tensor is a leaf of the gradient graph: made by the user, not by an operator on
    /// tensors that require a gradient.
    pub fn is_leaf(&self) -> bool {
        !self.requires_grad() || self.leaf().is_some()
    }

    fn storage_grad_flags(&self) -> u8 {
        let slot = self.storage.slot();
        let contents = self.storage.lock();
        if contents.leaf.is_some() {
            return flag::GRAD | flag::LEAF;
        }
        let trace: Arc<Trace> = match &contents.value {
            Value::Pending(trace) => Arc::clone(trace),
            _ => {
                return if contents.history.is_some() {
                    flag::GRAD
                } else {
                    0
                };
            }
        };
        // The trace is locked before a storage, never after.
        drop(contents);
        let state = trace.lock();
        state.node_at(slot).map_or(0, |node| node.flags)
    }

    /// Makes the tensor a leaf that gradients accumulate into, or no longer one; returns a handle
    /// on it.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for a dtype that is not floating-point, [`Error::Autograd`] for the
    /// result of a recorded operator or a view other than [`Tensor::detach`]'s.
    #[track_caller]
    pub fn requires_grad_(&self, requires_grad: bool) -> Result<Tensor> {
        let location = Location::caller();
        let op = "requires_grad_";
        if requires_grad && !self.dtype().is_float() {
            return Err(Error::dtype(op, "a floating-point dtype", self.dtype()).at(location));
        }
        if let Some(view) = &self.view
            && !view.entry.differentiable
        {
            view.set_leaf(requires_grad);
            return Ok(self.clone());
        }
        if !self.is_leaf() || self.view.is_some() {
            return Err(Error::Autograd {
                op,
                reason: "the tensor is not a leaf".into(),
                advice: "call it on the tensor itself, or on a copy() of its detach()",
                at: location.into(),
            });
        }
        trace::with_node(op, self, location, |_, state, index| {
            let mut contents = self.storage.lock();
            contents.leaf = match (requires_grad, contents.leaf.take()) {
                (true, Some(leaf)) => Some(leaf),
                (true, None) => Some(Arc::new(Leaf::default())),
                (false, _) => None,
            };
            let leaf = contents.leaf.clone();
            drop(contents);
            state.recording.note_autograd(index, leaf.as_ref(), None);
        })?;
        Ok(self.clone())
    }

    /// Ends the tensor's history: it becomes a leaf that requires no gradient.
    ///
    /// # Errors
    /// [`Error::Autograd`] for a view.
    #[track_caller]
    pub fn detach_(&self) -> Result<Tensor> {
        let at = Location::caller();
        if self.leaf().is_some() {
            return self.requires_grad_(false);
        }
        if self.view.is_some() {
            return Err(Error::Autograd {
                op: "detach_",
                reason: "a view has the history of its base".into(),
                advice: "use detach(), or call detach_() on the base",
                at: at.into(),
            });
        }
        trace::detach("detach_", &self.storage, at)?;
        Ok(self.clone())
    }

    pub(crate) fn leaf(&self) -> Option<Arc<Leaf>> {
        match &self.view {
            Some(view) => view.leaf(),
            None => self.storage.lock().leaf.clone(),
        }
    }

    /// A view of this tensor by an operator without numbers.
    #[track_caller]
    pub(crate) fn view_op(&self, entry: &'static OpEntry) -> Result<Tensor> {
        self.view_by(entry, &[])
    }

    /// Makes `value` the value of this tensor: of its storage, or of the part of it that this view
    /// shows. `value` has the tensor's type.
    #[track_caller]
    pub(crate) fn assign(&self, op: &'static str, value: Tensor) -> Result<Tensor> {
        let location = Location::caller();
        let error = |reason: &str, advice| Error::Autograd {
            op,
            reason: reason.into(),
            advice,
            at: location.into(),
        };
        let origin = self.origin();
        if trace::is_grad_enabled() {
            let leaf = match origin {
                Origin::Storage => self.storage.lock().leaf.is_some(),
                Origin::Leaf => true,
                Origin::Detached => false,
            };
            if leaf {
                return Err(error(
                    "a leaf that requires a gradient is changed in place",
                    "wrap the change in no_grad(|| …)",
                ));
            }
            // The base has a history of its own, or none, in which this value is no step.
            if matches!(origin, Origin::Detached) && value.requires_grad() {
                return Err(error(
                    "a detached tensor would take a value that requires a gradient",
                    "change a copy() of it, or wrap the change in no_grad(|| …)",
                ));
            }
        }
        let whole = self.write_back(value).map_err(|e| e.at(location))?;
        let rebind = || trace::rebind(op, &self.storage, &whole, location);
        if matches!(origin, Origin::Detached) {
            // What autograd does not see is no change to it.
            trace::no_grad(rebind)?;
        } else {
            rebind()?;
        }
        Ok(self.clone())
    }
}

impl fmt::Debug for Tensor {
    /// The type and device; the values are not computed for it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor {} on {}", self.ty(), self.device())
    }
}
