//! The trace: an append-only list of what a replica recorded since its last sync.
//!
//! An operator appends its node and folds it into a running hash, so at sync the program's key is
//! already there, whatever its size. Nothing is walked, nothing re-hashed, and in a loop that
//! records the same operators again nothing is allocated: storages of dead nodes are used again.

mod record;
mod recording;
mod region;
mod scope;
mod template;
mod turn;

pub(crate) use record::{
    claim, detach, is_others, rearrange, rebind, record_at, record_classed, record_on, with_node,
};
pub use record::{record, record_collective, record_op};
pub(crate) use recording::{
    Input, Node, NumberClass, Numbers, Overwrite, PARAMETER, Param, Recording, Slot, flag,
    next_epoch, number_type,
};
pub(crate) use region::{Argument, Recorded, Region, Tape, record_region, replay};
pub(crate) use scope::{ambient, recorder};
pub use scope::{enable_grad, is_grad_enabled, no_grad, recorded_by, set_grad_enabled};
pub(crate) use template::Template;
pub(crate) use turn::Undisturbed;

use crate::hash::Hash128;
use crate::op::{InputType, Number, OpEntry, Operand};
use crate::storage::{Storage, Value};
use crate::sync::{self, DeviceValue, InFlight, Pending};
use crate::tensor::Tensor;
use crate::ty::Ty;
use crate::view::View;
use smallvec::{SmallVec, smallvec};
use std::cell::RefCell;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xla_core::{Category, DType, Device, Error, Result};
use xla_runtime::owner_lock::{OwnerGuard, OwnerLock, thread_token};

/// What the lock of a trace guards.
pub(crate) struct State {
    pub(crate) recording: Recording,
    /// An empty recording whose memory the next epoch uses.
    pub(crate) spare: Option<Recording>,
    /// Storages of dead nodes that nobody else refers to, to be used again.
    pub(crate) free: Vec<Arc<Storage>>,
    pub(crate) in_flight: std::collections::VecDeque<InFlight>,
    pub(crate) step: u64,
    /// What the last program with effects returned for the next one to come after.
    pub(crate) order: Option<DeviceValue>,
    /// The programs run alone since the gang last met, oldest first.
    pub(crate) flushed: Vec<(usize, Hash128)>,
}

/// The trace of one replica: a device with the thread that drives it.
pub(crate) struct Trace {
    pub(crate) device: Device,
    owner: u64,
    state: OwnerLock<State>,
    /// Held while a program is cut, compiled and started. A thread that needs a value of a program
    /// being started waits here.
    pub(crate) syncing: Mutex<()>,
    buried: Mutex<Vec<Arc<Storage>>>,
    /// Whether the owner's thread has ended: it will neither record nor sync any more.
    ended: AtomicBool,
    /// The thread that records a region, else 0.
    region: AtomicU64,
    /// The thread that goes through it backwards, else 0.
    pass: AtomicU64,
}

/// A trace on the thread that records it.
struct Mine {
    trace: Arc<Trace>,
    /// What handles that were dropped leave to the values recorded next.
    spent: RefCell<Vec<Arc<Storage>>>,
}

impl Mine {
    /// Lets go of what dropped handles have left.
    fn release_spent(&self) {
        if let Ok(mut spent) = self.spent.try_borrow_mut() {
            for storage in spent.drain(..) {
                storage.set_spent(false);
            }
        }
    }

    /// Whether nobody else has a storage that this trace knows.
    fn is_idle(&self) -> bool {
        self.release_spent();
        drop(self.trace.exhume());
        let state = self.trace.lock();
        let mut storages = state.recording.storages.iter().flatten();
        storages.all(|storage| Arc::strong_count(storage) == 1)
    }
}

/// The traces of one thread, by the device's number.
struct OfThread(Vec<Option<Mine>>);

impl Drop for OfThread {
    /// Storages kept for use again hold their trace, and it holds them: the thread's end is where
    /// that circle is broken. What is pending and held elsewhere stays, and can still be computed.
    fn drop(&mut self) {
        for mine in self.0.iter().flatten() {
            mine.release_spent();
            let trace = &mine.trace;
            trace.ended.store(true, Ordering::Release);
            drop(trace.exhume());
            let mut state = trace.lock();
            let mut unused = std::mem::take(&mut state.free);
            state.spare = None;
            let dead = |storage: &Arc<Storage>| Arc::strong_count(storage) == 1;
            let storages = state.recording.storages.iter_mut();
            unused.extend(storages.filter_map(|slot| slot.take_if(|storage| dead(storage))));
            drop(state);
            drop(unused);
        }
    }
}

thread_local! {
    static TRACES: RefCell<OfThread> = const { RefCell::new(OfThread(Vec::new())) };
}

/// Spent storages that a thread keeps for a trace; what is dropped beyond is counted.
const MOST_SPENT: usize = 32;

/// Keeps the last handle on a value that the calling thread has recorded, for the next one.
#[inline]
pub(crate) fn spend(storage: Arc<Storage>) {
    // As a thread ends, and while its traces change, the handle is dropped for good.
    let _dropped_at_once = TRACES.try_with(|traces| {
        let traces = traces.try_borrow().ok()?;
        let mine = traces.0.get(storage.device().number())?.as_ref()?;
        let mut spent = mine.spent.try_borrow_mut().ok()?;
        if spent.len() < MOST_SPENT {
            storage.set_spent(true);
            spent.push(storage);
        }
        Some(())
    });
}

impl Trace {
    /// The calling thread's trace for a device.
    pub(crate) fn of_thread(device: Device) -> Arc<Trace> {
        Trace::with_known(device, |mine| Arc::clone(&mine.trace)).unwrap_or_else(|| {
            // Made outside: that may call back to find the thread's traces.
            let new = Trace::new(device);
            TRACES.with_borrow_mut(|OfThread(traces)| {
                if traces.len() <= device.number() {
                    traces.resize_with(device.number() + 1, || None);
                }
                let mine = traces[device.number()].get_or_insert_with(|| Mine {
                    trace: new,
                    spent: RefCell::default(),
                });
                Arc::clone(&mine.trace)
            })
        })
    }

    /// Calls `f` with the calling thread's trace for a device, if it has one, without taking a share
    /// of it. `f` must not ask for a trace that the thread may lack.
    #[inline]
    fn with_known<T>(device: Device, f: impl FnOnce(&Mine) -> T) -> Option<T> {
        // As a thread ends it has none any more.
        let known = TRACES.try_with(|traces| {
            let OfThread(traces) = &*traces.borrow();
            Some(f(traces.get(device.number())?.as_ref()?))
        });
        known.ok().flatten()
    }

    fn new(device: Device) -> Arc<Trace> {
        xla_runtime::context::await_work_with(sync::await_all);
        sync::prepare_release();
        Arc::new(Trace {
            device,
            owner: thread_token(),
            state: OwnerLock::new(State {
                recording: Recording::new(),
                spare: None,
                free: Vec::new(),
                in_flight: Default::default(),
                step: 0,
                order: None,
                flushed: Vec::new(),
            }),
            syncing: Mutex::new(()),
            buried: Mutex::new(Vec::new()),
            ended: AtomicBool::new(false),
            region: AtomicU64::new(0),
            pass: AtomicU64::new(0),
        })
    }

    /// Drops the calling thread's traces in which nothing is pending: what they still have they keep
    /// only to be faster.
    pub(crate) fn forget_idle() {
        let idle = TRACES.with_borrow_mut(|OfThread(traces)| {
            let idle = traces
                .iter_mut()
                .map(|slot| slot.take_if(|mine| mine.is_idle()));
            OfThread(idle.collect())
        });
        drop(idle);
    }

    /// Every trace the calling thread has.
    pub(crate) fn all_of_thread() -> SmallVec<[Arc<Trace>; 1]> {
        TRACES.with_borrow(|OfThread(traces)| {
            let traces = traces.iter().flatten();
            traces.map(|mine| Arc::clone(&mine.trace)).collect()
        })
    }

    /// Lets go of what the calling thread's dropped handles have left, if this trace is its own.
    pub(crate) fn release_spent(self: &Arc<Self>) {
        Trace::with_known(self.device, |mine| {
            if Arc::ptr_eq(&mine.trace, self) {
                mine.release_spent();
            }
        });
    }

    /// What the calling thread's last dropped handle has left, if this trace is its own.
    #[inline]
    fn pop_spent(self: &Arc<Self>) -> Option<Arc<Storage>> {
        let spent = Trace::with_known(self.device, |mine| match Arc::ptr_eq(&mine.trace, self) {
            true => mine.spent.try_borrow_mut().ok()?.pop(),
            false => None,
        })??;
        spent.set_spent(false);
        Some(spent)
    }

    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    #[inline]
    pub(crate) fn lock(&self) -> OwnerGuard<'_, State> {
        self.state.lock()
    }

    /// A copy of what is recorded, to be looked at.
    pub(crate) fn snapshot(&self) -> Pending {
        let state = self.lock();
        let live = sync::live_nodes(&state.recording);
        Pending::new(state.recording.without_storages(), live, Vec::new())
    }

    /// Whether the owner's thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Keeps a handle that another thread dropped until the owner's next sync is over. Its own lock
    /// keeps a drop from waiting for a recording in progress.
    pub(crate) fn bury(&self, storage: Arc<Storage>) {
        let mut buried = self.buried.lock().unwrap_or_else(PoisonError::into_inner);
        if self.has_ended() {
            drop(buried);
            self.forget(&storage);
        } else {
            buried.push(storage);
        }
    }

    /// Lets go of a storage whose last handle is being dropped, in a trace that nobody syncs: they
    /// would keep each other. Not waited for, because handles are also dropped under locks.
    fn forget(&self, storage: &Arc<Storage>) {
        let Some(mut state) = self.state.try_lock() else {
            return;
        };
        let Some(index) = storage.slot().in_epoch(state.recording.epoch) else {
            return;
        };
        // The handle, the caller and the recording.
        let last = Arc::strong_count(storage) == 3;
        let kept = &mut state.recording.storages[index as usize];
        let forgotten = kept.take_if(|kept| last && Arc::ptr_eq(kept, storage));
        drop(state);
        drop(forgotten);
    }

    pub(crate) fn exhume(&self) -> Vec<Arc<Storage>> {
        std::mem::take(&mut *self.buried.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Why an operand has no node yet.
enum Blocked {
    /// Pending in another trace.
    Foreign(Arc<Trace>),
    /// In a program of this trace that is being started.
    Starting,
    Failed(Error),
}

impl State {
    /// The number of the step that is about to be executed.
    pub(crate) fn begin_step(&mut self) -> u64 {
        self.step += 1;
        self.step - 1
    }

    /// The node of a storage's value.
    #[inline]
    fn node_of(
        &mut self,
        trace: &Arc<Trace>,
        storage: &Arc<Storage>,
        location: &'static Location<'static>,
    ) -> Result<u32, Blocked> {
        match storage.slot().in_epoch(self.recording.epoch) {
            Some(index) => Ok(index),
            None => self.bring_in(trace, storage, location),
        }
    }

    #[cold]
    fn bring_in(
        &mut self,
        trace: &Arc<Trace>,
        storage: &Arc<Storage>,
        location: &'static Location<'static>,
    ) -> Result<u32, Blocked> {
        if let Some(enclosing) = self.recording.enclosing.take() {
            return self.capture(trace, enclosing, storage, location);
        }
        let contents = storage.lock();
        match &contents.value {
            Value::Pending(other) if Arc::ptr_eq(other, trace) => Err(Blocked::Starting),
            Value::Pending(other) => Err(Blocked::Foreign(Arc::clone(other))),
            Value::Failed(error) => Err(Blocked::Failed(Error::clone(error))),
            Value::Ready(value) => {
                let index = self.recording.enter(storage, value, location);
                let (leaf, history) = (contents.leaf.as_ref(), contents.history.as_ref());
                if leaf.is_some() || history.is_some() {
                    self.recording.note_autograd(index, leaf, history);
                }
                Ok(index)
            }
        }
    }

    /// The node of a tensor's value, deriving views.
    #[inline]
    fn node_of_tensor(
        &mut self,
        trace: &Arc<Trace>,
        tensor: &Tensor,
        location: &'static Location<'static>,
    ) -> Result<u32, Blocked> {
        let base = self.node_of(trace, &tensor.storage, location)?;
        match &tensor.view {
            None => Ok(base),
            Some(view) if view.ty.dtype() != tensor.storage.ty().dtype() => {
                Err(Blocked::Failed(Error::DTypeMismatch {
                    op: view.entry.name,
                    expected: format!("{}, as when the view was made", view.ty.dtype()),
                    got: tensor.storage.ty().dtype(),
                    at: location.into(),
                }))
            }
            Some(view) => Ok(self.derive(view, &tensor.storage, base, location)),
        }
    }

    fn derive(
        &mut self,
        view: &View,
        storage: &Storage,
        base: u32,
        location: &'static Location<'static>,
    ) -> u32 {
        let epoch = self.recording.epoch;
        let from = match &view.parent {
            Some(parent) => self.derive(parent, storage, base, location),
            None => base,
        };
        let from_slot = Slot::new(epoch, from);
        let leaf = view.leaf();
        let passes_grad =
            self.recording.nodes[from as usize].has(flag::GRAD) && view.entry.differentiable;
        let wants_grad = passes_grad && is_grad_enabled();
        let serves = |node: Node| match (&leaf, node.has(flag::LEAF)) {
            // Without recording gradients a node that has one serves as well.
            (None, false) => {
                let has = node.has(flag::GRAD);
                has == wants_grad || has && passes_grad
            }
            (leaf, is_leaf) => leaf.is_some() == is_leaf,
        };
        if view.derived_from.load(Ordering::Acquire) == from_slot.bits()
            && let Some(node) =
                Slot::from_bits(view.derived.load(Ordering::Acquire)).in_epoch(epoch)
            && serves(self.recording.nodes[node as usize])
            // A backward pass frees what it went through, but a view can be read again.
            && !self.recording.nodes[node as usize].has(flag::FREED)
        {
            return node;
        }
        let mut inputs: SmallVec<[Input; 4]> = smallvec![Input::Node(from)];
        for number in &view.numbers {
            inputs.push(self.recording.numbers.push(DType::I64, *number));
        }
        let flags = match wants_grad {
            true => flag::VIEW | flag::GRAD,
            false => flag::VIEW,
        };
        let node = self
            .recording
            .push(view.entry, view.ty, &inputs, flags, location);
        if leaf.is_some() {
            self.recording.note_autograd(node, leaf.as_ref(), None);
        }
        let slot = Slot::new(epoch, node);
        if wants_grad {
            let first = view.identify(storage.lock().version, slot);
            if first != slot {
                self.recording.derived_again.push((node, first));
            }
            if let Some(hooks) = view.hooks.get() {
                self.recording.hooks.insert(node, Arc::clone(hooks));
            }
        }
        view.derived.store(slot.bits(), Ordering::Release);
        view.derived_from.store(from_slot.bits(), Ordering::Release);
        node
    }

    /// The parameter node of a value that an earlier program computed, under its storage or, where
    /// that now stands for something else, under a new one.
    pub(crate) fn enter_value(
        &mut self,
        trace: &Arc<Trace>,
        ty: Ty,
        storage: Option<Arc<Storage>>,
        value: &DeviceValue,
        location: &'static Location<'static>,
    ) -> u32 {
        let storage = storage.unwrap_or_else(|| {
            Arc::new(Storage::new(ty, trace.device, Value::Ready(value.clone())))
        });
        let index = self.recording.enter(&storage, value, location);
        let contents = storage.lock();
        let (leaf, history) = (contents.leaf.clone(), contents.history.clone());
        drop(contents);
        self.recording
            .note_autograd(index, leaf.as_ref(), history.as_ref());
        index
    }

    /// A storage that stands for a node: one that nobody uses any more, or a new one.
    pub(crate) fn storage_for(&mut self, trace: &Arc<Trace>, index: u32) -> Arc<Storage> {
        let ty = self.recording.nodes[index as usize].ty;
        let slot = Slot::new(self.recording.epoch, index);
        let spent = trace.pop_spent();
        let [own, given] = match spent.and_then(|spent| self.recording.take_spent(spent)) {
            Some(both) => both,
            None => {
                let storage = self.free.pop().unwrap_or_else(|| {
                    let value = Value::Pending(Arc::clone(trace));
                    Arc::new(Storage::new(ty, trace.device, value))
                });
                [Arc::clone(&storage), storage]
            }
        };
        given.recycle(ty, slot);
        self.recording.storages[index as usize] = Some(own);
        given
    }

    /// A handle on a node's value, for the backward pass.
    pub(crate) fn handle(&mut self, trace: &Arc<Trace>, index: u32) -> Tensor {
        if let Some(storage) = &self.recording.storages[index as usize] {
            return Tensor::of(Arc::clone(storage));
        }
        let storage = match self.recording.param_of(index) {
            Some(param) => {
                // The parameter's own storage was rebound: its old value needs one of its own.
                let ty = self.recording.nodes[index as usize].ty;
                let value = Value::Ready(param.value.clone());
                let storage = Arc::new(Storage::new(ty, trace.device, value));
                storage.set_slot(Slot::new(self.recording.epoch, index));
                self.recording.storages[index as usize] = Some(Arc::clone(&storage));
                storage
            }
            None => self.storage_for(trace, index),
        };
        Tensor::of(storage)
    }

    /// Records an operator and returns its node.
    #[inline]
    fn append(
        &mut self,
        trace: &Arc<Trace>,
        entry: &'static OpEntry,
        operands: &[Operand<'_>],
        location: &'static Location<'static>,
    ) -> Result<u32, Blocked> {
        const INPUT: Input = Input::Node(u32::MAX);
        const TYPE: InputType = InputType::Number(Category::Float);
        // Most operators have one operand or two. Where the compiler knows how many, what is gathered of
        // them stays in registers.
        match *operands {
            [a] => self.append_of(trace, entry, &[a], &mut [INPUT], &mut [TYPE], location),
            [a, b] => {
                let (inputs, types) = (&mut [INPUT; 2], &mut [TYPE; 2]);
                self.append_of(trace, entry, &[a, b], inputs, types, location)
            }
            _ => {
                let mut inputs: SmallVec<[Input; 8]> = smallvec![INPUT; operands.len()];
                let mut types: SmallVec<[InputType; 8]> = smallvec![TYPE; operands.len()];
                self.append_of(trace, entry, operands, &mut inputs, &mut types, location)
            }
        }
    }

    /// [`State::append`] with room for as many inputs and types as there are operands.
    #[inline(always)]
    fn append_of(
        &mut self,
        trace: &Arc<Trace>,
        entry: &'static OpEntry,
        operands: &[Operand<'_>],
        inputs: &mut [Input],
        types: &mut [InputType],
        location: &'static Location<'static>,
    ) -> Result<u32, Blocked> {
        let mut grad = false;
        let mut numbers = false;
        for (operand, (input, ty)) in operands.iter().zip(inputs.iter_mut().zip(&mut *types)) {
            match operand {
                Operand::Tensor(tensor) => {
                    let index = self.node_of_tensor(trace, tensor, location)?;
                    let node = &self.recording.nodes[index as usize];
                    *input = Input::Node(index);
                    *ty = InputType::Tensor(node.ty);
                    grad |= node.has(flag::GRAD);
                }
                Operand::Number(number) => {
                    numbers = true;
                    *ty = InputType::Number(number.category());
                }
            }
        }
        let out = entry
            .infer(types)
            .map_err(|e| Blocked::Failed(e.at(location)))?;
        if numbers {
            let wide =
                |t: &InputType| matches!(t, InputType::Tensor(ty) if ty.dtype() == DType::F64);
            let dtype = match out.dtype() == DType::F64 || types.iter().any(wide) {
                true => DType::F64,
                false => DType::F32,
            };
            for (input, operand) in inputs.iter_mut().zip(operands) {
                if let Operand::Number(number) = operand {
                    *input = self.recording.numbers.push(dtype, *number);
                }
            }
        }
        let grad = grad && entry.differentiable && out.dtype().is_float() && is_grad_enabled();
        let flags = if grad { flag::GRAD } else { 0 };
        Ok(self.recording.push(entry, out, inputs, flags, location))
    }

    /// Operators of the same operands that no gradient flows through, whose numbers, the last of the
    /// operands, have classes already.
    fn append_classed(
        &mut self,
        trace: &Arc<Trace>,
        entries: &[&'static OpEntry],
        tensors: &[&Tensor],
        numbers: &[(NumberClass, Number)],
        location: &'static Location<'static>,
    ) -> Result<Vec<u32>, Blocked> {
        let mut inputs = Vec::with_capacity(tensors.len() + numbers.len());
        let mut types = Vec::with_capacity(inputs.capacity());
        for tensor in tensors {
            let index = self.node_of_tensor(trace, tensor, location)?;
            inputs.push(Input::Node(index));
            types.push(InputType::Tensor(self.recording.nodes[index as usize].ty));
        }
        let infer = |entry: &&'static OpEntry| {
            let out = entry.infer(&types);
            out.map_err(|e| Blocked::Failed(e.at(location)))
        };
        let outs = entries.iter().map(infer).collect::<Result<Vec<_>, _>>()?;
        for (class, number) in numbers {
            let dtype = number_type(*class).dtype();
            inputs.push(self.recording.numbers.push(dtype, *number));
        }
        let recording = &mut self.recording;
        let all = entries.iter().zip(outs);
        Ok(all
            .map(|(entry, out)| recording.push(entry, out, &inputs, 0, location))
            .collect())
    }
}
