//! What autograd knows of a tensor: whether a gradient flows to it, where its history ends.

use super::Tensor;
use crate::grad::Leaf;
use crate::storage::{History, Storage, Value};
use crate::trace::{self, Trace, flag};
use crate::view::Origin;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{Error, Result};

impl Tensor {
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

    /// Whether the tensor is a leaf of the gradient graph: made by the user, not by an operator on
    /// tensors that require a gradient.
    pub fn is_leaf(&self) -> bool {
        !self.requires_grad() || self.leaf().is_some()
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

    pub(super) fn origin(&self) -> Origin {
        self.view.as_ref().map_or(Origin::Storage, |v| v.origin())
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
}
