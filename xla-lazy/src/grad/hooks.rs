//! What users have called with gradients on their way.

use super::Leaf;
use crate::Tensor;
use crate::handle::Handle;
use crate::storage::{Contents, History, Storage, Value};
use crate::trace;
use crate::view::View;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use xla_core::{Error, Result};

type Replace = dyn Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync;
type Accumulated = dyn Fn(&Tensor) -> Result<()> + Send + Sync;

/// A function under the number of its registration.
type Numbered<F> = (u64, Arc<F>);

/// Functions in the order of their registration.
struct List<F: ?Sized>(Arc<Mutex<Vec<Numbered<F>>>>);

impl<F: ?Sized> Default for List<F> {
    fn default() -> Self {
        List(Arc::default())
    }
}

impl<F: ?Sized + Send + Sync + 'static> List<F> {
    fn add(&self, hook: Arc<F>) -> HookHandle {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        locked(&self.0).push((id, hook));
        let list = Arc::downgrade(&self.0);
        HookHandle(Box::new(move || {
            if let Some(list) = list.upgrade() {
                // What the hook holds is dropped when the list is not locked.
                let removed: Vec<_> = locked(&list).extract_if(.., |(i, _)| *i == id).collect();
                drop(removed);
            }
        }))
    }

    /// The functions now: one may register or remove others.
    fn all(&self) -> Vec<Arc<F>> {
        locked(&self.0).iter().map(|(_, f)| Arc::clone(f)).collect()
    }
}

fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a hook off again. Dropping it does not.
pub struct HookHandle(Box<dyn Fn() + Send + Sync>);

impl HookHandle {
    /// Removes the hook: it is not called any more. Nothing happens the second time.
    pub fn remove(&self) {
        (self.0)();
    }
}

impl std::fmt::Debug for HookHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HookHandle")
    }
}

/// What is called with the gradient of one value.
#[derive(Default)]
pub(crate) struct Hooks {
    replace: List<Replace>,
    retained: Mutex<Option<Arc<Leaf>>>,
}

impl Hooks {
    /// Where the gradient is kept.
    pub(crate) fn retain(&self, retained: Option<Arc<Leaf>>) {
        *locked(&self.retained) = retained;
    }

    /// The gradient that flows on.
    pub(super) fn apply(
        &self,
        mut grad: Tensor,
        op: &'static str,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        for hook in self.replace.all() {
            let Some(new) = hook(&grad)? else { continue };
            if new.shape() != grad.shape() {
                let expected = format!("a gradient of shape {} from a hook", grad.shape());
                return Err(Error::shape(op, expected, new.shape()).at(at));
            }
            grad = new.to_dtype(grad.dtype())?;
        }
        let retained = locked(&self.retained).clone();
        if let Some(retained) = retained {
            retained.accumulate(&grad)?;
        }
        Ok(grad)
    }
}

/// What is called when the gradient of a leaf has been accumulated, with the leaf itself.
#[derive(Default)]
pub(super) struct Afterwards(List<dyn Fn() -> Result<()> + Send + Sync>);

impl Afterwards {
    fn add(
        &self,
        storage: Weak<Storage>,
        view: Option<Weak<View>>,
        hook: Arc<Accumulated>,
    ) -> HookHandle {
        self.0.add(Arc::new(move || {
            let Some(storage) = storage.upgrade() else {
                return Ok(());
            };
            match view.as_ref().map(Weak::upgrade) {
                Some(None) => Ok(()),
                view => hook(&Tensor {
                    storage: Handle::new(storage),
                    view: view.flatten(),
                }),
            }
        }))
    }

    pub(super) fn run(&self) -> Result<()> {
        self.0.all().iter().try_for_each(|hook| hook())
    }
}

impl Tensor {
    /// Has `hook` called with the gradient of this tensor in each backward pass that reaches it,
    /// before it flows on, or into the leaf. What the hook returns takes the gradient's place; hooks
    /// are called in the order of their registration, each with what the one before made of it. As
    /// PyTorch's `Tensor.register_hook`.
    ///
    /// # Errors
    /// [`Error::Autograd`] when the tensor does not require a gradient, or its graph was freed. An
    /// error of the hook becomes that of the pass.
    ///
    /// ```no_run
    /// # fn demo(h: &xla_lazy::Tensor) -> xla_core::Result<()> {
    /// let handle = h.register_hook(|gradient| gradient.mul(2.0).map(Some))?;
    /// h.sum((), false)?.backward()?;
    /// handle.remove();
    /// # Ok(())
    /// # }
    /// ```
    #[track_caller]
    pub fn register_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<Option<Tensor>> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        let hooks = self.hooks("register_hook", Location::caller())?;
        Ok(hooks.replace.add(Arc::new(hook)))
    }

    /// Has `hook` called with this leaf each time that a backward pass has accumulated its gradient.
    /// As PyTorch's `Tensor.register_post_accumulate_grad_hook`.
    ///
    /// # Errors
    /// [`Error::Autograd`] when the tensor is not a leaf that requires a gradient.
    #[track_caller]
    pub fn register_post_accumulate_grad_hook(
        &self,
        hook: impl Fn(&Tensor) -> Result<()> + Send + Sync + 'static,
    ) -> Result<HookHandle> {
        let op = "register_post_accumulate_grad_hook";
        let leaf = self.leaf_for(op, Location::caller())?;
        let storage = Arc::downgrade(&self.storage);
        let view = self.view.as_ref().map(Arc::downgrade);
        Ok(leaf.afterwards.add(storage, view, Arc::new(hook)))
    }

    /// Keeps the gradient of a tensor that is no leaf, for [`Tensor::grad`]; nothing happens on a
    /// leaf.
    ///
    /// # Errors
    /// As [`Tensor::register_hook`].
    #[track_caller]
    pub fn retain_grad(&self) -> Result<()> {
        let hooks = self.hooks("retain_grad", Location::caller())?;
        if self.leaf().is_some() || self.retained().is_some() {
            return Ok(());
        }
        let kept: Arc<Leaf> = Arc::default();
        match &self.view {
            Some(view) => drop(view.retained.set(Arc::clone(&kept))),
            None => self.storage.lock().retained = Some(Arc::clone(&kept)),
        }
        hooks.retain(Some(kept));
        Ok(())
    }

    /// Where the gradient of this tensor, which is no leaf, is kept.
    pub(super) fn retained(&self) -> Option<Arc<Leaf>> {
        match &self.view {
            Some(view) => view.retained.get().cloned(),
            None => self.storage.lock().retained.clone(),
        }
    }

    fn hooks(&self, op: &'static str, at: &'static Location<'static>) -> Result<Arc<Hooks>> {
        let error = |reason: &str, advice| Error::Autograd {
            op,
            reason: reason.into(),
            advice,
            at: at.into(),
        };
        if !self.requires_grad() {
            return Err(error(
                "the tensor does not require a gradient",
                "call requires_grad_(true) on it, or on a leaf it is computed from",
            ));
        }
        if let Some(leaf) = self.leaf() {
            return Ok(Arc::clone(&leaf.hooks));
        }
        let history = match &*self.storage.lock() {
            Contents {
                value: Value::Ready(_),
                history,
                ..
            } if self.view.is_none() => history.clone(),
            _ => None,
        };
        match history {
            Some(History::Node(node)) => Ok(node.hooks()),
            Some(History::Freed) => Err(error(
                "the graph was freed by an earlier backward pass",
                "register the hook before that pass",
            )),
            None => trace::enable_grad(|| {
                trace::with_node(op, self, at, |_, state, index| {
                    let hooks = state.recording.hooks.entry(index).or_default();
                    if let Some(view) = &self.view {
                        // For the view's nodes in programs to come.
                        drop(view.hooks.set(Arc::clone(hooks)));
                    }
                    Arc::clone(hooks)
                })
            }),
        }
    }
}
