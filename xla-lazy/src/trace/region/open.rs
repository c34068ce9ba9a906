//! Opening and closing a region of a trace.

use super::Recorded;
use super::copy::Copied;
use crate::op::{Derivative, InputType, OpEntry, Operator};
use crate::spmd;
use crate::stablehlo::{Func, Value as Lowered};
use crate::storage::{History, Storage, Value};
use crate::sync::{self, Cause};
use crate::tensor::Tensor;
use crate::trace::recording::{Node, Recording, Slot, flag, next_epoch};
use crate::trace::scope::recorder;
use crate::trace::{Blocked, State, Trace, with_node};
use crate::ty::Ty;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use xla_core::{Device, Error, Result};
use xla_runtime::owner_lock::thread_token;

/// An argument of a region to be recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Argument {
    pub(crate) ty: Ty,
    /// Whether operators on it record gradients.
    pub(crate) grad: bool,
}

/// A tensor from outside that was changed in place, and what it was.
pub(in crate::trace) struct Changed {
    pub(in crate::trace) storage: Arc<Storage>,
    pub(in crate::trace) slot: Slot,
    pub(in crate::trace) value: Value,
    pub(in crate::trace) history: Option<History>,
    /// The capture that is its value before.
    pub(in crate::trace) capture: u32,
}

impl Changed {
    fn restore(self) {
        let mut contents = self.storage.lock();
        let new = std::mem::replace(&mut contents.value, self.value);
        self.storage.set_slot(self.slot);
        contents.history = self.history;
        drop(contents);
        drop(new);
    }
}

/// What an open region's recording knows of the one that it interrupts.
pub(crate) struct Enclosing {
    pub(in crate::trace) outer: Recording,
    pub(in crate::trace) op: &'static str,
    pub(in crate::trace) location: &'static Location<'static>,
    thread: u64,
    /// Captures: nodes of the outer recording with theirs here.
    captured: Vec<(u32, u32)>,
    by_outer: HashMap<u32, u32>,
    pub(in crate::trace) changed: Vec<Changed>,
}

/// The node of an argument or a capture.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Given;

static GIVEN: OpEntry = OpEntry::of(&Given);

impl Given {
    fn unexpected() -> Error {
        Error::Internal {
            what: "region",
            expected: "arguments and captures to be given from outside".into(),
        }
    }
}

impl Operator for Given {
    const NAME: &'static str = "argument";
    const DERIVATIVE: Derivative<Self> = Derivative::Zero;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Err(Given::unexpected())
    }

    fn lower(&self, _: &mut Func, _: &[Lowered], _: Ty) -> Result<Lowered> {
        Err(Given::unexpected())
    }
}

impl State {
    /// The capture of a value from outside of the open region.
    pub(in crate::trace) fn capture(
        &mut self,
        trace: &Arc<Trace>,
        mut enclosing: Box<Enclosing>,
        storage: &Arc<Storage>,
        location: &'static Location<'static>,
    ) -> Result<u32, Blocked> {
        if enclosing.thread != thread_token() {
            self.recording.enclosing = Some(enclosing);
            return Err(Blocked::Starting);
        }
        let outer = std::mem::take(&mut enclosing.outer);
        let inner = std::mem::replace(&mut self.recording, outer);
        let found = self.node_of(trace, storage, location);
        enclosing.outer = std::mem::replace(&mut self.recording, inner);
        let found = found.map(|node| self.recording.capture(&mut enclosing, node, location));
        self.recording.enclosing = Some(enclosing);
        found
    }

    /// Before a storage becomes the value of another node: where it is from outside of the open
    /// region, the capture that it is now.
    pub(in crate::trace) fn before_change(
        &mut self,
        trace: &Arc<Trace>,
        target: &Arc<Storage>,
        location: &'static Location<'static>,
    ) -> Result<Option<u32>, Blocked> {
        let inside = target.slot().in_epoch(self.recording.epoch).is_some();
        if inside || self.recording.enclosing.is_none() {
            return Ok(None);
        }
        self.node_of(trace, target, location).map(Some)
    }

    /// The node that a slot names in the current recording or, while a region is open, in those that
    /// it interrupts.
    pub(crate) fn node_at(&self, slot: Slot) -> Option<Node> {
        let mut recording = &self.recording;
        loop {
            if let Some(index) = slot.in_epoch(recording.epoch) {
                return recording.nodes.get(index as usize).copied();
            }
            recording = &recording.enclosing.as_ref()?.outer;
        }
    }
}

impl Recording {
    fn capture(
        &mut self,
        enclosing: &mut Enclosing,
        outer: u32,
        location: &'static Location<'static>,
    ) -> u32 {
        if let Some(&known) = enclosing.by_outer.get(&outer) {
            return known;
        }
        let node = enclosing.outer.nodes[outer as usize];
        let flags = flag::PARAM | node.flags & flag::GRAD;
        let index = self.push(&GIVEN, node.ty, &[], flags, location);
        if let Some(leaf) = enclosing.outer.leaves.get(&outer) {
            self.note_autograd(index, Some(leaf), None);
        }
        enclosing.captured.push((outer, index));
        enclosing.by_outer.insert(outer, index);
        index
    }
}

/// Records `body`, called with tensors that stand for its arguments, as a region. Tensors from outside
/// that it changes in place become arguments and results of the region, inserted at `insert`.
///
/// # Errors
/// Those of `body`; [`Error::DeviceMismatch`] for a result on another device.
pub(crate) fn record_region(
    op: &'static str,
    device: Device,
    arguments: &[Argument],
    insert: usize,
    location: &'static Location<'static>,
    body: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Recorded> {
    let trace = Trace::of_thread(device);
    let mut open = Open::new(&trace, op, recorder(location), arguments)?;
    let given: Vec<Tensor> = {
        let mut state = trace.lock();
        (0..arguments.len() as u32)
            .map(|i| state.handle(&trace, i))
            .collect()
    };
    let returned = body(&given)?;
    let results = returned
        .iter()
        .map(|result| open.node_of(result))
        .collect::<Result<Vec<u32>>>()?;
    drop((given, returned));
    Ok(open.close(arguments.len(), &results, insert))
}

/// An open region.
struct Open<'a> {
    trace: &'a Arc<Trace>,
    op: &'static str,
    location: &'static Location<'static>,
    closed: bool,
    /// Nothing of the trace is cut meanwhile.
    _serial: Option<MutexGuard<'a, ()>>,
}

impl<'a> Open<'a> {
    fn new(
        trace: &'a Arc<Trace>,
        op: &'static str,
        location: &'static Location<'static>,
        arguments: &[Argument],
    ) -> Result<Self> {
        let thread = thread_token();
        let serial = match trace.region.load(Ordering::Acquire) == thread {
            true => None,
            false => Some(trace.serial()?),
        };
        let mut state = trace.lock();
        let mut inner = state.spare.take().unwrap_or_default();
        inner.epoch = next_epoch();
        let outer = std::mem::replace(&mut state.recording, inner);
        state.recording.enclosing = Some(Box::new(Enclosing {
            outer,
            op,
            location,
            thread,
            captured: Vec::new(),
            by_outer: HashMap::new(),
            changed: Vec::new(),
        }));
        for argument in arguments {
            let flags = match argument.grad && argument.ty.dtype().is_float() {
                true => flag::PARAM | flag::GRAD,
                false => flag::PARAM,
            };
            let index = state
                .recording
                .push(&GIVEN, argument.ty, &[], flags, location);
            state.storage_for(trace, index);
        }
        trace.region.store(thread, Ordering::Release);
        Ok(Open {
            trace,
            op,
            location,
            closed: false,
            _serial: serial,
        })
    }

    /// The region's node of a tensor that the body returned.
    fn node_of(&self, result: &Tensor) -> Result<u32> {
        if result.device() != self.trace.device {
            let (left, right) = (self.trace.device, result.device());
            return Err(spmd::apart(self.op, left, right, self.location));
        }
        loop {
            let found = with_node(self.op, result, self.location, |trace, _, index| {
                (Arc::clone(trace), index)
            })?;
            match found {
                (trace, index) if Arc::ptr_eq(&trace, self.trace) => return Ok(index),
                (other, _) => {
                    let (op, at) = (self.op, self.location);
                    sync::flush(&other, Cause::Operand { op, at })?;
                }
            }
        }
    }

    /// Ends the region and copies out what its results need.
    fn close(&mut self, arguments: usize, results: &[u32], insert: usize) -> Recorded {
        self.closed = true;
        let mut state = self.trace.lock();
        let (mut inner, mut enclosing) = take(&mut state);
        let mut changed = Vec::new();
        for one in std::mem::take(&mut enclosing.changed) {
            let (storage, capture) = (Arc::clone(&one.storage), one.capture);
            if let Some(last) = storage.slot().in_epoch(inner.epoch) {
                inner.storages[last as usize] = None;
                changed.push((storage, capture, last));
            }
            one.restore();
        }
        let mut recorded = Copied::of(&inner, arguments, results, insert, &changed);
        let mut outer = |capture: u32| {
            let at = enclosing.captured.iter().find(|(_, here)| *here == capture);
            at.map(|(outer, _)| state.handle(self.trace, *outer))
        };
        let captures = recorded.captures.iter().filter_map(|&c| outer(c)).collect();
        let changed = changed
            .into_iter()
            .filter_map(|(storage, capture, _)| Some((storage, outer(capture)?)))
            .collect();
        let functions = std::mem::take(&mut inner.functions);
        recorded.tape.functions = functions
            .into_iter()
            .filter_map(|(node, function)| Some((recorded.places[node as usize]?, function)))
            .collect();
        self.dispose(&mut state, inner);
        Recorded {
            region: recorded.region,
            tape: recorded.tape,
            captures,
            numbers: recorded.numbers,
            changed,
        }
    }

    /// Keeps what can be used again. A tensor of the region that somebody still holds has no value.
    fn dispose(&self, state: &mut State, mut inner: Recording) {
        self.trace.release_spent();
        let error = Arc::new(Error::InBody {
            op: self.op,
            what: "a tensor of it has no value outside",
            advice: "return it from the body",
            at: self.location.into(),
        });
        for storage in inner.storages.drain(..).flatten() {
            if Storage::is_unused(&storage) {
                state.free.push(storage);
                continue;
            }
            let mut contents = storage.lock();
            let here = storage.slot().in_epoch(inner.epoch).is_some();
            if here {
                contents.value = Value::Failed(Arc::clone(&error));
                storage.set_slot(Slot::NONE);
            }
        }
        inner.clear();
        state.spare = Some(inner);
        if state.recording.enclosing.is_none() {
            self.trace.region.store(0, Ordering::Release);
        }
    }
}

impl Drop for Open<'_> {
    /// After an error or a panic of the body.
    fn drop(&mut self) {
        if self.closed {
            return;
        }
        let mut state = self.trace.lock();
        let (mut inner, mut enclosing) = take(&mut state);
        for one in std::mem::take(&mut enclosing.changed) {
            if let Some(last) = one.storage.slot().in_epoch(inner.epoch) {
                inner.storages[last as usize] = None;
            }
            one.restore();
        }
        self.dispose(&mut state, inner);
    }
}

/// Ends the recording of a region: its recording, and what was known of the outer one.
fn take(state: &mut State) -> (Recording, Enclosing) {
    // Whoever opened a region closes it, so there is one.
    let mut enclosing = match state.recording.enclosing.take() {
        Some(enclosing) => *enclosing,
        None => unreachable!("a region is closed once"),
    };
    let outer = std::mem::take(&mut enclosing.outer);
    (std::mem::replace(&mut state.recording, outer), enclosing)
}
