//! The trace: an append-only list of what a replica recorded since its last sync.
//!
//! An operator appends its node and folds it into a running hash, so at sync the program's key is
//! already there, whatever its size. Nothing is walked, nothing re-hashed, and in a loop that
//! records the same operators again nothing is allocated: storages of dead nodes are used again.

use crate::gang::Gang;
use crate::grad::Leaf;
use crate::hash::{self, Hash128};
use crate::op::{InputType, Number, OpEntry, Operand, Operator, promote};
use crate::storage::{History, Storage, Value, thread_token};
use crate::sync::{self, DeviceValue, InFlight};
use crate::tensor::Tensor;
use crate::ty::{Ty, ty};
use crate::view::View;
use smallvec::SmallVec;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use xla_core::{DType, Device, Error, Result, Shape, Site};

/// A node of a trace in one epoch: the epoch above, the node's index plus one below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot(u64);

const INDEX_BITS: u32 = 24;

impl Slot {
    pub(crate) const NONE: Slot = Slot(0);

    pub(crate) fn new(epoch: u64, index: u32) -> Self {
        Slot(epoch << INDEX_BITS | u64::from(index + 1))
    }

    pub(crate) fn from_bits(bits: u64) -> Self {
        Slot(bits)
    }

    pub(crate) fn bits(self) -> u64 {
        self.0
    }

    /// The node's index, if the slot is of this epoch.
    #[inline]
    pub(crate) fn in_epoch(self, epoch: u64) -> Option<u32> {
        (self.0 >> INDEX_BITS == epoch).then(|| (self.0 & ((1 << INDEX_BITS) - 1)) as u32 - 1)
    }
}

/// Most operators that one trace holds: the index's bits, less some room.
const MAX_NODES: usize = (1 << INDEX_BITS) - (1 << 16);

/// Facts about a node that are not part of the program.
pub(crate) mod flag {
    /// A gradient flows to the value.
    pub(crate) const GRAD: u8 = 1;
    /// The value is a leaf of the gradient graph.
    pub(crate) const LEAF: u8 = 2;
    /// A backward pass has gone through the node and freed it.
    pub(crate) const FREED: u8 = 4;
    /// The value enters from a buffer.
    pub(crate) const PARAM: u8 = 8;
    /// A collective.
    pub(crate) const COLLECTIVE: u8 = 16;
}

/// One recorded operator.
#[derive(Clone, Copy)]
pub(crate) struct Node {
    pub(crate) entry: &'static OpEntry,
    pub(crate) ty: Ty,
    pub(crate) location: &'static Location<'static>,
    first: u32,
    count: u16,
    pub(crate) flags: u8,
}

impl Node {
    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// A buffer that entered the program.
pub(crate) struct Param {
    pub(crate) node: u32,
    pub(crate) value: DeviceValue,
    /// The node that its storage was rebound to by an in-place operator.
    pub(crate) rebound: Option<u32>,
}

/// Which packed vector a number travels in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum NumberClass {
    F32 = 1,
    F64 = 2,
    I64 = 3,
}

/// An operand of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Input {
    Node(u32),
    Number(NumberClass, u32),
}

const TAG: u32 = 30;

impl Input {
    fn encode(self) -> u32 {
        match self {
            Input::Node(index) => index,
            Input::Number(class, slot) => (class as u32) << TAG | slot,
        }
    }

    #[inline]
    fn decode(word: u32) -> Self {
        let slot = word & ((1 << TAG) - 1);
        match word >> TAG {
            0 => Input::Node(word),
            1 => Input::Number(NumberClass::F32, slot),
            2 => Input::Number(NumberClass::F64, slot),
            _ => Input::Number(NumberClass::I64, slot),
        }
    }
}

/// The numbers of a program, in the order recorded; slots are never merged.
#[derive(Default)]
pub(crate) struct Numbers {
    pub(crate) f32: Vec<f32>,
    pub(crate) f64: Vec<f64>,
    pub(crate) i64: Vec<i64>,
}

impl Numbers {
    /// A whole number stays one, whatever it meets; a float is as wide as what it meets.
    fn push(&mut self, meets: DType, number: Number) -> Input {
        let slot = |len: usize| (len - 1) as u32;
        match number {
            Number::Int(i) => {
                self.i64.push(i);
                Input::Number(NumberClass::I64, slot(self.i64.len()))
            }
            Number::Float(x) if meets == DType::F64 => {
                self.f64.push(x);
                Input::Number(NumberClass::F64, slot(self.f64.len()))
            }
            Number::Float(x) => {
                self.f32.push(x as f32);
                Input::Number(NumberClass::F32, slot(self.f32.len()))
            }
        }
    }

    pub(crate) fn get(&self, class: NumberClass, slot: u32) -> Number {
        let slot = slot as usize;
        match class {
            NumberClass::F32 => Number::Float(self.f32[slot].into()),
            NumberClass::F64 => Number::Float(self.f64[slot]),
            NumberClass::I64 => Number::Int(self.i64[slot]),
        }
    }
}

/// What was recorded since the last sync.
#[derive(Default)]
pub(crate) struct Recording {
    pub(crate) epoch: u64,
    pub(crate) nodes: Vec<Node>,
    /// Hash of the program up to and including each node.
    pub(crate) chain: Vec<Hash128>,
    operands: Vec<u32>,
    /// For each node the storage that it is the value of, if any.
    pub(crate) storages: Vec<Option<Arc<Storage>>>,
    pub(crate) params: Vec<Param>,
    entered: HashMap<u64, u32>,
    pub(crate) numbers: Numbers,
    pub(crate) leaves: HashMap<u32, Arc<Leaf>>,
    pub(crate) histories: HashMap<u32, History>,
    pub(crate) gang: Option<Arc<dyn Gang>>,
}

/// The leaf node of a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Parameter;

static PARAMETER: OpEntry = OpEntry::of(&Parameter);

impl Operator for Parameter {
    const NAME: &'static str = "parameter";
    const DERIVATIVE: crate::Derivative<Self> = crate::Derivative::Zero;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Err(Error::Internal {
            what: "parameter",
            expected: "a type from its buffer".into(),
        })
    }

    fn lower(
        &self,
        _: &mut crate::stablehlo::Func,
        _: &[crate::stablehlo::Value],
        _: Ty,
    ) -> Result<crate::stablehlo::Value> {
        Err(Error::Internal {
            what: "parameter",
            expected: "an argument of the program".into(),
        })
    }
}

impl Recording {
    pub(crate) fn inputs(&self, node: &Node) -> impl ExactSizeIterator<Item = Input> + '_ {
        let first = node.first as usize;
        self.operands[first..first + node.count as usize]
            .iter()
            .map(|w| Input::decode(*w))
    }

    /// The encoded operands of all nodes, for comparing two programs.
    pub(crate) fn operand_words(&self) -> &[u32] {
        &self.operands
    }

    pub(crate) fn operand_range(&self, node: &Node) -> (u32, u16) {
        (node.first, node.count)
    }

    pub(crate) fn push(
        &mut self,
        entry: &'static OpEntry,
        ty: Ty,
        inputs: &[Input],
        flags: u8,
        location: &'static Location<'static>,
    ) -> u32 {
        let index = self.nodes.len() as u32;
        let first = self.operands.len() as u32;
        let mut state = self.chain.last().copied().unwrap_or(hash::SEED);
        state = hash::fold(state, entry.hash[0] ^ inputs.len() as u64, entry.hash[1]);
        let type_hash = ty.hash();
        state = hash::fold(state, type_hash[0], type_hash[1]);
        for pair in inputs.chunks(2) {
            let second = pair.get(1).map_or(u32::MAX, |i| i.encode());
            state = hash::fold(state, pair[0].encode().into(), second.into());
        }
        self.operands.extend(inputs.iter().map(|i| i.encode()));
        self.nodes.push(Node {
            entry,
            ty,
            location,
            first,
            count: inputs.len() as u16,
            flags,
        });
        self.chain.push(state);
        self.storages.push(None);
        index
    }

    /// The parameter node of a computed value.
    fn enter(
        &mut self,
        storage: &Arc<Storage>,
        value: &DeviceValue,
        location: &'static Location<'static>,
    ) -> u32 {
        if let Some(&index) = self.entered.get(&value.id()) {
            storage.set_slot(Slot::new(self.epoch, index));
            return index;
        }
        let index = self.push(&PARAMETER, storage.ty, &[], flag::PARAM, location);
        self.params.push(Param {
            node: index,
            value: value.clone(),
            rebound: None,
        });
        self.entered.insert(value.id(), index);
        self.storages[index as usize] = Some(Arc::clone(storage));
        storage.set_slot(Slot::new(self.epoch, index));
        index
    }

    /// Notes what autograd knows of a value that enters or changes its status.
    pub(crate) fn note_autograd(
        &mut self,
        index: u32,
        leaf: Option<&Arc<Leaf>>,
        history: Option<&History>,
    ) {
        let node = &mut self.nodes[index as usize];
        node.flags &= !(flag::GRAD | flag::LEAF);
        self.leaves.remove(&index);
        self.histories.remove(&index);
        if let Some(leaf) = leaf {
            node.flags |= flag::GRAD | flag::LEAF;
            self.leaves.insert(index, Arc::clone(leaf));
        } else if let Some(history) = history {
            node.flags |= flag::GRAD;
            self.histories.insert(index, history.clone());
        }
    }

    pub(crate) fn param_of(&self, node: u32) -> Option<&Param> {
        let at = self.params.binary_search_by_key(&node, |p| p.node).ok()?;
        self.params.get(at)
    }

    /// A number of another recording, as a number of this one.
    pub(crate) fn renumber(&mut self, class: NumberClass, from: &Recording, slot: u32) -> Input {
        self.numbers
            .push(number_type(class).dtype(), from.numbers.get(class, slot))
    }

    /// Records that a parameter's storage now is the value of another node.
    pub(crate) fn rebind_param(&mut self, from: u32, to: u32) {
        // A storage that was rebound before is found by the node it was rebound to.
        if let Ok(at) = self.params.binary_search_by_key(&from, |p| p.node) {
            self.params[at].rebound = Some(to);
        } else if let Some(param) = self.params.iter_mut().find(|p| p.rebound == Some(from)) {
            param.rebound = Some(to);
        }
    }

    pub(crate) fn clear(&mut self) {
        self.nodes.clear();
        self.chain.clear();
        self.operands.clear();
        self.storages.clear();
        self.params.clear();
        self.entered.clear();
        self.numbers.f32.clear();
        self.numbers.f64.clear();
        self.numbers.i64.clear();
        self.leaves.clear();
        self.histories.clear();
        self.gang = None;
    }
}

/// What the lock of a trace guards.
pub(crate) struct State {
    pub(crate) recording: Recording,
    /// An empty recording whose memory the next epoch uses.
    pub(crate) spare: Option<Recording>,
    /// Storages of dead nodes, to be used again.
    pub(crate) free: Vec<Arc<Storage>>,
    pub(crate) in_flight: std::collections::VecDeque<InFlight>,
    pub(crate) step: u64,
    /// The programs run alone since the gang last met, oldest first.
    pub(crate) flushed: Vec<(usize, Hash128)>,
}

/// The trace of one replica: a device with the thread that drives it.
pub(crate) struct Trace {
    pub(crate) device: Device,
    owner: u64,
    state: Mutex<State>,
    /// Held while a program is cut, compiled and started. A thread that needs a value of a program
    /// being started waits here.
    pub(crate) syncing: Mutex<()>,
    buried: Mutex<Vec<Arc<Storage>>>,
}

/// Epochs of all traces come from here, so that a slot names its trace as well.
pub(crate) fn next_epoch() -> u64 {
    static EPOCH: AtomicU64 = AtomicU64::new(1);
    EPOCH.fetch_add(1, Ordering::Relaxed)
}

thread_local! {
    static TRACES: RefCell<Vec<Option<Arc<Trace>>>> = const { RefCell::new(Vec::new()) };
    static GRAD_DISABLED: Cell<u32> = const { Cell::new(0) };
}

/// Whether operators on tensors that require a gradient record one: true unless inside
/// [`no_grad`].
pub fn is_grad_enabled() -> bool {
    GRAD_DISABLED.get() == 0
}

/// Runs `f` without recording gradients, as PyTorch's `torch.no_grad`.
pub fn no_grad<T>(f: impl FnOnce() -> T) -> T {
    struct Restore;
    impl Drop for Restore {
        fn drop(&mut self) {
            GRAD_DISABLED.set(GRAD_DISABLED.get() - 1);
        }
    }
    GRAD_DISABLED.set(GRAD_DISABLED.get() + 1);
    let _restore = Restore;
    f()
}

impl Trace {
    /// The calling thread's trace for a device.
    pub(crate) fn of_thread(device: Device) -> Arc<Trace> {
        TRACES.with_borrow_mut(|traces| {
            if traces.len() <= device.ordinal() {
                traces.resize(device.ordinal() + 1, None);
            }
            let new = || {
                Arc::new(Trace {
                    device,
                    owner: thread_token(),
                    state: Mutex::new(State {
                        recording: Recording {
                            epoch: next_epoch(),
                            ..Recording::default()
                        },
                        spare: None,
                        free: Vec::new(),
                        in_flight: Default::default(),
                        step: 0,
                        flushed: Vec::new(),
                    }),
                    syncing: Mutex::new(()),
                    buried: Mutex::new(Vec::new()),
                })
            };
            Arc::clone(traces[device.ordinal()].get_or_insert_with(new))
        })
    }

    /// Every trace the calling thread has.
    pub(crate) fn all_of_thread() -> Vec<Arc<Trace>> {
        TRACES.with_borrow(|traces| traces.iter().flatten().cloned().collect())
    }

    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a handle that another thread dropped until the owner's next sync is over. Its own lock
    /// keeps a drop from waiting for a recording in progress.
    pub(crate) fn bury(&self, storage: Arc<Storage>) {
        self.buried
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(storage);
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
            Some(view) => Ok(self.derive(view, base, location)),
        }
    }

    fn derive(&mut self, view: &View, base: u32, location: &'static Location<'static>) -> u32 {
        let epoch = self.recording.epoch;
        let base_slot = Slot::new(epoch, base);
        let wants_grad = |nodes: &[Node], of: u32| {
            nodes[of as usize].has(flag::GRAD) && view.entry.differentiable && is_grad_enabled()
        };
        if view.derived_from.load(Ordering::Acquire) == base_slot.bits()
            && let Some(node) =
                Slot::from_bits(view.derived.load(Ordering::Acquire)).in_epoch(epoch)
            && self.recording.nodes[node as usize].has(flag::GRAD)
                == wants_grad(&self.recording.nodes, base)
        {
            return node;
        }
        let from = match &view.parent {
            Some(parent) => self.derive(parent, base, location),
            None => base,
        };
        let mut inputs: SmallVec<[Input; 4]> = smallvec::smallvec![Input::Node(from)];
        for number in &view.numbers {
            inputs.push(self.recording.numbers.push(DType::I64, *number));
        }
        let flags = if wants_grad(&self.recording.nodes, from) {
            flag::GRAD
        } else {
            0
        };
        let node = self
            .recording
            .push(view.entry, view.ty, &inputs, flags, location);
        view.derived
            .store(Slot::new(epoch, node).bits(), Ordering::Release);
        view.derived_from.store(base_slot.bits(), Ordering::Release);
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
        let storage = loop {
            match self.free.pop() {
                Some(mut unused) => {
                    if let Some(storage) = Arc::get_mut(&mut unused) {
                        storage.recycle(ty, slot);
                        break unused;
                    }
                }
                None => {
                    let value = Value::Pending(Arc::clone(trace));
                    let storage = Arc::new(Storage::new(ty, trace.device, value));
                    storage.set_slot(slot);
                    break storage;
                }
            }
        };
        self.recording.storages[index as usize] = Some(Arc::clone(&storage));
        storage
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

    #[inline]
    fn append(
        &mut self,
        trace: &Arc<Trace>,
        entry: &'static OpEntry,
        operands: &[Operand<'_>],
        location: &'static Location<'static>,
    ) -> Result<u32, Blocked> {
        let mut inputs: SmallVec<[Input; 8]> = SmallVec::new();
        let mut types: SmallVec<[InputType; 8]> = SmallVec::new();
        let mut grad = false;
        let mut numbers = false;
        for operand in operands {
            match operand {
                Operand::Tensor(tensor) => {
                    let index = self.node_of_tensor(trace, tensor, location)?;
                    let node = &self.recording.nodes[index as usize];
                    inputs.push(Input::Node(index));
                    types.push(InputType::Tensor(node.ty));
                    grad |= node.has(flag::GRAD);
                }
                Operand::Number(number) => {
                    numbers = true;
                    inputs.push(Input::Node(u32::MAX));
                    types.push(InputType::Number(number.category()));
                }
            }
        }
        let out = entry
            .op
            .infer(&types)
            .map_err(|e| Blocked::Failed(e.at(location)))?;
        if numbers {
            let dtype = match out.dtype() {
                DType::F64 => DType::F64,
                _ => promote(&types),
            };
            for (input, operand) in inputs.iter_mut().zip(operands) {
                if let Operand::Number(number) = operand {
                    *input = self.recording.numbers.push(dtype, *number);
                }
            }
        }
        let grad = grad && entry.differentiable && out.dtype().is_float() && is_grad_enabled();
        let flags = if grad { flag::GRAD } else { 0 };
        Ok(self.recording.push(entry, out, &inputs, flags, location))
    }
}

/// The trace that operands are recorded into: that of the first pending one, else the calling
/// thread's own.
fn choose(entry: &'static OpEntry, operands: &[Operand<'_>], at: Site) -> Result<Arc<Trace>> {
    let mut device: Option<Device> = None;
    for operand in operands {
        if let Operand::Tensor(tensor) = operand {
            let this = tensor.storage.device;
            match device {
                Some(left) if left != this => {
                    return Err(Error::DeviceMismatch {
                        op: entry.name,
                        left,
                        right: this,
                        at,
                    });
                }
                _ => device = Some(this),
            }
        }
    }
    let device = match device {
        Some(device) => device,
        None => xla_runtime::context::current(entry.name)?.device(),
    };
    Ok(Trace::of_thread(device))
}

fn too_large(nodes: usize) -> Error {
    Error::ProgramTooLarge {
        nodes,
        limit: MAX_NODES,
    }
}

/// Records an operator and returns its result, a pending tensor.
///
/// # Errors
/// What the operator's shape rule says of the operands, operands on two devices, or the error of
/// an operand whose own program failed; all with the caller's line.
#[track_caller]
#[inline]
pub fn record(entry: &'static OpEntry, operands: &[Operand<'_>]) -> Result<Tensor> {
    record_at(entry, operands, Location::caller())
}

/// [`record`] for an operator with attributes.
///
/// # Errors
/// As [`record`].
#[track_caller]
pub fn record_op<O: Operator>(op: O, operands: &[Operand<'_>]) -> Result<Tensor> {
    record_at(crate::op::entry(op), operands, Location::caller())
}

pub(crate) fn record_at(
    entry: &'static OpEntry,
    operands: &[Operand<'_>],
    location: &'static Location<'static>,
) -> Result<Tensor> {
    let trace = choose(entry, operands, location.into())?;
    record_in(trace, entry, operands, location, None)
}

/// Records an operator without operands on a device.
pub(crate) fn record_on(
    device: Device,
    entry: &'static OpEntry,
    operands: &[Operand<'_>],
    location: &'static Location<'static>,
) -> Result<Tensor> {
    record_in(Trace::of_thread(device), entry, operands, location, None)
}

/// Records a collective: an operator that the members of `gang` execute together. The trace that
/// holds it is executed only when all of them have come.
///
/// # Errors
/// As [`record`]; [`Error::ForeignTrace`] where another gang's collectives are pending.
#[track_caller]
pub fn record_collective<O: Operator>(
    gang: &Arc<dyn Gang>,
    op: O,
    operands: &[Operand<'_>],
) -> Result<Tensor> {
    let location = Location::caller();
    let entry = crate::op::entry(op);
    let trace = choose(entry, operands, location.into())?;
    record_in(trace, entry, operands, location, Some(gang))
}

fn record_in(
    mut trace: Arc<Trace>,
    entry: &'static OpEntry,
    operands: &[Operand<'_>],
    location: &'static Location<'static>,
    gang: Option<&Arc<dyn Gang>>,
) -> Result<Tensor> {
    loop {
        let mut state = trace.lock();
        if state.recording.nodes.len() >= MAX_NODES {
            return Err(too_large(state.recording.nodes.len()));
        }
        let other_gang = |g: &Arc<dyn Gang>| gang.is_some_and(|new| !Arc::ptr_eq(g, new));
        if state.recording.gang.as_ref().is_some_and(other_gang) {
            drop(state);
            sync::flush(&trace)?;
            continue;
        }
        match state.append(&trace, entry, operands, location) {
            Ok(index) => {
                if let Some(gang) = gang {
                    state.recording.nodes[index as usize].flags |= flag::COLLECTIVE;
                    state.recording.gang = Some(Arc::clone(gang));
                }
                return Ok(Tensor::of(state.storage_for(&trace, index)));
            }
            Err(Blocked::Failed(error)) => return Err(error),
            Err(Blocked::Starting) => {
                drop(state);
                drop(trace.syncing.lock());
            }
            Err(Blocked::Foreign(other)) => {
                drop(state);
                // Only pending operands of the other trace: the operator goes there instead.
                if !any_pending_in(operands, &trace) {
                    trace = other;
                } else {
                    flush_foreign(entry.name, &other, location)?;
                }
            }
        }
    }
}

fn any_pending_in(operands: &[Operand<'_>], trace: &Arc<Trace>) -> bool {
    operands.iter().any(|operand| match operand {
        Operand::Tensor(t) => t
            .storage
            .pending_in()
            .is_some_and(|p| Arc::ptr_eq(&p, trace)),
        Operand::Number(_) => false,
    })
}

/// Runs another trace's program because a value of it is needed here.
fn flush_foreign(
    op: &'static str,
    other: &Arc<Trace>,
    location: &'static Location<'static>,
) -> Result<()> {
    if other.owner() != thread_token() && other.lock().recording.gang.is_some() {
        return Err(Error::ForeignTrace {
            op,
            at: location.into(),
        });
    }
    sync::flush(other)
}

/// Makes `target`'s storage the value of `value`, which has the same type.
pub(crate) fn rebind(
    op: &'static str,
    target: &Arc<Storage>,
    value: &Tensor,
    location: &'static Location<'static>,
) -> Result<()> {
    loop {
        let trace = match value.storage.pending_in() {
            Some(trace) => trace,
            None => Trace::of_thread(target.device),
        };
        if let Some(other) = target.pending_in()
            && !Arc::ptr_eq(&other, &trace)
        {
            flush_foreign(op, &other, location)?;
        }
        let mut state = trace.lock();
        let index = match state.append(
            &trace,
            &crate::ops::COPY,
            &[Operand::Tensor(value)],
            location,
        ) {
            Ok(index) => index,
            Err(Blocked::Failed(error)) => return Err(error),
            Err(Blocked::Starting) => {
                drop(state);
                drop(trace.syncing.lock());
                continue;
            }
            Err(Blocked::Foreign(other)) => {
                drop(state);
                flush_foreign(op, &other, location)?;
                continue;
            }
        };
        let recording = &mut state.recording;
        let mut contents = target.lock();
        if let Some(old) = target.slot().in_epoch(recording.epoch) {
            recording.rebind_param(old, index);
            if let Some(held) = &recording.storages[old as usize]
                && Arc::ptr_eq(held, target)
            {
                recording.storages[old as usize] = None;
            }
        }
        recording.storages[index as usize] = Some(Arc::clone(target));
        contents.value = Value::Pending(Arc::clone(&trace));
        contents.version += 1;
        contents.range = None;
        contents.history = None;
        target.set_slot(Slot::new(recording.epoch, index));
        target.set_owner(trace.owner());
        if let Some(leaf) = &contents.leaf {
            // A leaf written without recording stays a leaf.
            let leaf = Arc::clone(leaf);
            recording.note_autograd(index, Some(&leaf), None);
        }
        return Ok(());
    }
}

/// Calls `f` with the trace's state and the node of a tensor's value.
pub(crate) fn with_node<T>(
    op: &'static str,
    tensor: &Tensor,
    location: &'static Location<'static>,
    f: impl FnOnce(&Arc<Trace>, &mut State, u32) -> T,
) -> Result<T> {
    loop {
        let trace = match tensor.storage.pending_in() {
            Some(trace) => trace,
            None => Trace::of_thread(tensor.storage.device),
        };
        let mut state = trace.lock();
        match state.node_of_tensor(&trace, tensor, location) {
            Ok(index) => return Ok(f(&trace, &mut state, index)),
            Err(Blocked::Failed(error)) => return Err(error),
            Err(Blocked::Starting) => {
                drop(state);
                drop(trace.syncing.lock());
            }
            Err(Blocked::Foreign(other)) => {
                drop(state);
                flush_foreign(op, &other, location)?;
            }
        }
    }
}

/// The type of the scalar that a number of this class arrives as.
pub(crate) fn number_type(class: NumberClass) -> Ty {
    let dtype = match class {
        NumberClass::F32 => DType::F32,
        NumberClass::F64 => DType::F64,
        NumberClass::I64 => DType::I64,
    };
    ty(dtype, &Shape::scalar())
}
