//! The value behind a tensor: pending in a trace, computed on a device, or failed.

use crate::grad::{GradNode, Leaf};
use crate::spmd::NamedSharding;
use crate::sync::DeviceValue;
use crate::trace::{Overwrite, Slot, Trace};
use crate::ty::Ty;
use crossbeam::atomic::AtomicCell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xla_core::{Device, Error};
use xla_runtime::owner_lock::thread_token;

/// What a storage holds just now.
pub(crate) enum Value {
    /// A node of this trace, at [`Storage::slot`].
    Pending(Arc<Trace>),
    /// Computed, or being computed.
    Ready(DeviceValue),
    /// The program that should have computed it failed.
    Failed(Arc<Error>),
}

/// Where a materialised value came from, for autograd.
#[derive(Clone)]
pub(crate) enum History {
    /// The operator that made it, kept because the value outlived its trace.
    Node(Arc<GradNode>),
    /// A backward pass went through it and freed the graph.
    Freed,
}

/// The part of a storage that changes seldom: behind a lock, off the recording path.
pub(crate) struct Contents {
    pub(crate) value: Value,
    /// Raised by every in-place change.
    pub(crate) version: u64,
    /// The latest of these changes.
    pub(crate) changed: Option<Overwrite>,
    pub(crate) leaf: Option<Arc<Leaf>>,
    pub(crate) history: Option<History>,
    /// Where the gradient is kept of a value that is no leaf, if it was asked to be.
    pub(crate) retained: Option<Arc<Leaf>>,
    /// Smallest and largest element of an integer value that came from the host.
    pub(crate) range: Option<(i64, i64)>,
    /// The argument of the compiled function being recorded that the range is of.
    pub(crate) argument: Option<u32>,
    /// How the value is to be spread over the mesh whose device this is on, whatever it becomes.
    pub(crate) mark: Option<NamedSharding>,
}

/// One value, shared by every handle on it and every view of it. In-place operators rebind it.
pub(crate) struct Storage {
    // Read with every operator; written only by `replace`.
    ty: AtomicCell<Ty>,
    device: AtomicCell<Device>,
    /// The node that stands for the value in the epoch it names, as a pending result or as a
    /// parameter. Written under the lock of that epoch's trace.
    slot: AtomicU64,
    /// The thread whose trace may hold the value pending.
    owner: AtomicU64,
    /// Whether the contents may be other than those of a value that was just recorded.
    touched: AtomicBool,
    /// Whether one of the references is of a handle that was dropped. Written by the owner alone.
    spent: AtomicBool,
    contents: Mutex<Contents>,
}

impl Storage {
    pub(crate) fn new(ty: Ty, device: Device, value: Value) -> Self {
        let owner = match &value {
            Value::Pending(trace) => trace.owner(),
            _ => 0,
        };
        Storage {
            ty: AtomicCell::new(ty),
            device: AtomicCell::new(device),
            slot: AtomicU64::new(0),
            owner: AtomicU64::new(owner),
            touched: AtomicBool::new(false),
            spent: AtomicBool::new(false),
            contents: Mutex::new(Contents {
                value,
                version: 0,
                changed: None,
                leaf: None,
                history: None,
                retained: None,
                range: None,
                argument: None,
                mark: None,
            }),
        }
    }

    /// Whether the caller's is the only reference, so that the storage can stand for another value.
    pub(crate) fn is_unused(this: &Arc<Self>) -> bool {
        // In this order: with no weak reference left, no strong one can come to be but from a strong
        // one.
        let unused = Arc::weak_count(this) == 0 && Arc::strong_count(this) == 1;
        // What others did before they let go of it comes before what is done with it next.
        fence(Ordering::Acquire);
        unused
    }

    /// Whether anybody but the trace uses the storage.
    pub(crate) fn is_held(this: &Arc<Self>) -> bool {
        Arc::strong_count(this) > 1 + usize::from(this.spent.load(Ordering::Relaxed))
    }

    /// Whether a handle that is being dropped is the only one on a value just recorded by the calling
    /// thread, which then keeps it for the next value. Nothing is kept alive by that but the storage: it
    /// holds no history, and a buffer only where another thread computed the value at that very moment.
    #[inline]
    pub(crate) fn is_spent_by_drop(self: &Arc<Self>) -> bool {
        self.owner.load(Ordering::Relaxed) == thread_token()
            && !self.touched.load(Ordering::Relaxed)
            && Arc::strong_count(self) == 2
    }

    /// Says that a handle's reference outlives it, or does so no longer.
    #[inline]
    pub(crate) fn set_spent(&self, spent: bool) {
        self.spent.store(spent, Ordering::Relaxed);
    }

    /// Whether the trace and the handle spent are all that refers to the storage, so that both can stand
    /// for another value.
    #[inline]
    pub(crate) fn is_only_spent(this: &Arc<Self>) -> bool {
        let only = Arc::weak_count(this) == 0
            && Arc::strong_count(this) == 2
            && !this.touched.load(Ordering::Relaxed);
        // As in `is_unused`.
        fence(Ordering::Acquire);
        only
    }

    /// Makes an unused pending storage of this trace stand for a new node.
    #[inline]
    pub(crate) fn recycle(&self, ty: Ty, slot: Slot) {
        self.ty.store(ty);
        self.set_slot(slot);
        if self.touched.load(Ordering::Relaxed) {
            self.reset();
        }
    }

    #[cold]
    fn reset(&self) {
        let mut contents = self.lock();
        contents.version = 0;
        contents.changed = None;
        contents.range = None;
        contents.argument = None;
        contents.mark = None;
        let leaves = [contents.leaf.take(), contents.retained.take()];
        let history = contents.history.take();
        drop(contents);
        self.touched.store(false, Ordering::Relaxed);
        // They may hold handles, which are dropped only while no storage is locked.
        drop((leaves, history));
    }

    #[inline]
    pub(crate) fn ty(&self) -> Ty {
        self.ty.load()
    }

    #[inline]
    pub(crate) fn device(&self) -> Device {
        self.device.load()
    }

    /// Makes this the value after a change in place that a compiled function has made.
    pub(crate) fn change(&self, value: Value, slot: Slot) {
        let mut contents = self.lock();
        let old = std::mem::replace(&mut contents.value, value);
        self.set_slot(slot);
        contents.version += 1;
        contents.changed = None;
        contents.range = None;
        contents.argument = None;
        let history = contents.history.take();
        drop(contents);
        // They may hold handles, which are dropped only while no storage is locked.
        drop((old, history));
    }

    /// Makes a computed value of any dtype, on any device, this storage's. Nothing may be pending
    /// that reads or makes its value.
    pub(crate) fn replace(&self, ty: Ty, device: Device, value: DeviceValue) {
        let mut contents = self.lock();
        let old = std::mem::replace(&mut contents.value, Value::Ready(value));
        if self.device.load() != device {
            contents.mark = None;
        }
        self.ty.store(ty);
        self.device.store(device);
        self.set_slot(Slot::NONE);
        contents.version += 1;
        contents.range = None;
        let history = contents.history.take();
        drop(contents);
        // They may hold handles, which are dropped only while no storage is locked.
        drop((old, history));
    }

    /// Makes a copy on another device this storage's value. Nothing may be pending that reads it.
    pub(crate) fn relocate(&self, device: Device, value: DeviceValue) {
        let mut contents = self.lock();
        let old = std::mem::replace(&mut contents.value, Value::Ready(value));
        self.device.store(device);
        self.set_slot(Slot::NONE);
        contents.mark = None;
        drop(contents);
        drop(old);
    }

    #[inline]
    pub(crate) fn slot(&self) -> Slot {
        Slot::from_bits(self.slot.load(Ordering::Acquire))
    }

    pub(crate) fn set_slot(&self, slot: Slot) {
        self.slot.store(slot.bits(), Ordering::Release);
    }

    pub(crate) fn set_owner(&self, token: u64) {
        self.owner.store(token, Ordering::Relaxed);
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Contents> {
        self.touched.store(true, Ordering::Relaxed);
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the value is to be spread, if somebody has said so.
    pub(crate) fn mark(&self) -> Option<NamedSharding> {
        self.lock().mark.clone()
    }

    /// The trace the value is pending in.
    pub(crate) fn pending_in(&self) -> Option<Arc<Trace>> {
        match &self.lock().value {
            Value::Pending(trace) => Some(Arc::clone(trace)),
            _ => None,
        }
    }

    /// A handle is dropped on this thread. Were it the last one on a value pending in another
    /// thread's trace, that trace's next program would depend on who came first; so the owner lets
    /// go of it, after its next sync.
    #[inline]
    pub(crate) fn handle_dropped(self: &Arc<Self>) {
        let owner = self.owner.load(Ordering::Relaxed);
        if owner != 0 && owner != thread_token() {
            self.defer_drop();
        }
    }

    #[cold]
    fn defer_drop(self: &Arc<Self>) {
        if let Some(trace) = self.pending_in()
            && trace.owner() != thread_token()
        {
            trace.bury(Arc::clone(self));
        }
    }
}
