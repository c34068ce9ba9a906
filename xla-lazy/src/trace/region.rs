//! Regions: functions of tensors that are recorded by themselves, to be the bodies of operators.
//!
//! While a region is open its recording takes the place of the trace's. A value from outside enters it
//! as a capture, which the outer recording computes once; a tensor from outside that is changed in
//! place becomes an argument and a result, so that the change can be carried on. When the region is
//! closed what its results need is copied out, and the outer recording goes on as if nothing had
//! been recorded.

use super::recording::{Input, Node, NumberClass, Recording, Slot, flag, next_epoch};
use super::scope::recorder;
use super::{Blocked, State, Trace};
use crate::grad::Function;
use crate::op::{Derivative, InputType, Number, OpEntry, Operator};
use crate::stablehlo::{Func, Value as Lowered};
use crate::storage::{History, Storage, Value, thread_token};
use crate::sync::{self, Cause};
use crate::tensor::Tensor;
use crate::ty::Ty;
use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::panic::Location;
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xla_core::{Device, Error, Result};

/// What a node of a region is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// An argument of the region.
    Argument(u32),
    /// A value from outside.
    Capture(u32),
    /// An operator. Numbers are counted over all of the region's classes.
    Apply(&'static OpEntry, Box<[Input]>),
}

/// One node of a region.
#[derive(Debug, Clone)]
pub(crate) struct RegionNode {
    pub(crate) step: Step,
    pub(crate) ty: Ty,
    /// Not part of what makes two regions one.
    pub(crate) location: &'static Location<'static>,
}

impl PartialEq for RegionNode {
    fn eq(&self, other: &Self) -> bool {
        self.step == other.step && self.ty == other.ty
    }
}

impl Eq for RegionNode {}

impl Hash for RegionNode {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.step.hash(state);
        self.ty.hash().hash(state);
    }
}

/// A function of tensors: what its results need, in the order recorded.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Region {
    pub(crate) nodes: Vec<RegionNode>,
    pub(crate) captures: u32,
    /// The classes of its numbers, which are operands of the operator it belongs to.
    pub(crate) numbers: Vec<NumberClass>,
    /// The nodes returned.
    pub(crate) results: Vec<u32>,
}

impl Region {
    /// The type of a result.
    pub(crate) fn result(&self, index: usize) -> Ty {
        self.nodes[self.results[index] as usize].ty
    }

    /// Takes a capture for an argument.
    pub(crate) fn promote(&mut self, capture: u32, argument: u32) {
        for node in &mut self.nodes {
            match &mut node.step {
                Step::Capture(k) if *k == capture => node.step = Step::Argument(argument),
                Step::Capture(k) if *k > capture => *k -= 1,
                _ => {}
            }
        }
        self.captures -= 1;
    }

    /// The results as values of a function under construction.
    ///
    /// # Errors
    /// What an operator's lowering returns, with its line.
    pub(crate) fn lower(
        &self,
        f: &mut Func,
        arguments: &[Lowered],
        captures: &[Lowered],
        numbers: &[Lowered],
    ) -> Result<Vec<Lowered>> {
        let mut values: Vec<Lowered> = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let value = match &node.step {
                Step::Argument(i) => arguments[*i as usize],
                Step::Capture(k) => captures[*k as usize],
                Step::Apply(entry, inputs) => {
                    let inputs: Vec<Lowered> = inputs
                        .iter()
                        .map(|input| match input {
                            Input::Node(j) => values[*j as usize],
                            Input::Number(_, k) => numbers[*k as usize],
                        })
                        .collect();
                    let lowered = entry.op.lower(f, &inputs, node.ty);
                    lowered.map_err(|e| e.at(node.location))?
                }
            };
            if value.ty() != node.ty {
                return Err(Error::Internal {
                    what: "region",
                    expected: format!("a value of {}, not {}", node.ty, value.ty()),
                });
            }
            values.push(value);
        }
        Ok(self.results.iter().map(|&r| values[r as usize]).collect())
    }
}

/// What autograd knows of a region's nodes. It belongs to one recording of the region, not to the
/// program.
#[derive(Default)]
pub(crate) struct Tape {
    /// Whether a gradient flows to the node.
    pub(crate) flows: Vec<bool>,
    /// Nodes with a derivative of their own.
    pub(crate) functions: HashMap<u32, Arc<dyn Function>>,
}

/// A recorded region and what it was recorded with.
pub(crate) struct Recorded {
    pub(crate) region: Region,
    pub(crate) tape: Tape,
    pub(crate) captures: Vec<Tensor>,
    pub(crate) numbers: Vec<Number>,
    /// Tensors from outside that the region changes in place, with the values they have before.
    pub(crate) changed: Vec<(Arc<Storage>, Tensor)>,
}

impl Recorded {
    /// Whether a gradient flows to a result.
    pub(crate) fn flows(&self, result: usize) -> bool {
        self.tape.flows[self.region.results[result] as usize]
    }
}

/// An argument of a region to be recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Argument {
    pub(crate) ty: Ty,
    /// Whether operators on it record gradients.
    pub(crate) grad: bool,
}

/// A tensor from outside that was changed in place, and what it was.
pub(super) struct Changed {
    pub(super) storage: Arc<Storage>,
    pub(super) slot: Slot,
    pub(super) value: Value,
    pub(super) history: Option<History>,
    /// The capture that is its value before.
    pub(super) capture: u32,
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
    pub(super) outer: Recording,
    op: &'static str,
    location: &'static Location<'static>,
    thread: u64,
    /// Captures: nodes of the outer recording with theirs here.
    captured: Vec<(u32, u32)>,
    by_outer: HashMap<u32, u32>,
    pub(super) changed: Vec<Changed>,
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
    pub(super) fn capture(
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
    pub(super) fn before_change(
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

impl Trace {
    /// The lock under which programs are cut and started.
    ///
    /// # Errors
    /// [`Error::InBody`] while the calling thread records a region, [`Error::Deadline`] when another
    /// one does for too long.
    pub(crate) fn serial(&self) -> Result<MutexGuard<'_, ()>> {
        if self.region.load(Ordering::Acquire) != 0 {
            self.await_region()?;
        }
        Ok(self.syncing.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[cold]
    fn await_region(&self) -> Result<()> {
        let patience = sync::deadline();
        let end = Instant::now() + patience;
        loop {
            match self.region.load(Ordering::Acquire) {
                0 => return Ok(()),
                thread if thread == thread_token() => return Err(self.in_body()),
                _ if Instant::now() > end => {
                    return Err(Error::Deadline {
                        what: "recording a loop's body on another thread".into(),
                        after: patience,
                        advice: ": do not wait in the body for a thread that reads tensors",
                    });
                }
                _ => std::thread::sleep(Duration::from_micros(100)),
            }
        }
    }

    fn in_body(&self) -> Error {
        let state = self.lock();
        let enclosing = state.recording.enclosing.as_ref();
        Error::InBody {
            op: enclosing.map_or("a loop", |e| e.op),
            what: "nothing can be synced or read in it",
            advice: "return what is needed of it",
            at: enclosing.map(|e| e.location.into()).unwrap_or_default(),
        }
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
            return Err(Error::DeviceMismatch {
                op: self.op,
                left: self.trace.device,
                right: result.device(),
                at: self.location.into(),
            });
        }
        loop {
            let found = super::with_node(self.op, result, self.location, |trace, _, index| {
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
        let error = Arc::new(Error::InBody {
            op: self.op,
            what: "a tensor of it has no value outside",
            advice: "return it from the body",
            at: self.location.into(),
        });
        for storage in inner.storages.drain(..).flatten() {
            if Arc::strong_count(&storage) == 1 {
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

/// The part of a recording that the results need.
struct Copied {
    region: Region,
    tape: Tape,
    /// Nodes of the recording.
    captures: Vec<u32>,
    numbers: Vec<Number>,
    /// Where the recording's nodes are in the region.
    places: Vec<Option<u32>>,
}

impl Copied {
    fn of(
        inner: &Recording,
        arguments: usize,
        results: &[u32],
        insert: usize,
        changed: &[(Arc<Storage>, u32, u32)],
    ) -> Copied {
        let mut all: Vec<u32> = results.to_vec();
        let at = insert.min(all.len());
        all.splice(at..at, changed.iter().map(|(_, _, last)| *last));
        let needed = needed(inner, &all);
        let mut copied = Copied {
            region: Region {
                nodes: Vec::new(),
                captures: 0,
                numbers: Vec::new(),
                results: Vec::new(),
            },
            tape: Tape::default(),
            captures: Vec::new(),
            numbers: Vec::new(),
            places: vec![None; inner.nodes.len()],
        };
        for (index, node) in (0u32..).zip(&inner.nodes) {
            if !needed[index as usize] {
                continue;
            }
            let step = copied.step(inner, arguments, insert, changed, index, node);
            copied.places[index as usize] = Some(copied.region.nodes.len() as u32);
            copied.tape.flows.push(node.has(flag::GRAD));
            copied.region.nodes.push(RegionNode {
                step,
                ty: node.ty,
                location: node.location,
            });
        }
        copied.region.captures = copied.captures.len() as u32;
        let places = &copied.places;
        let place = |node: u32| places[node as usize].unwrap_or_default();
        copied.region.results = all.into_iter().map(place).collect();
        copied
    }

    fn step(
        &mut self,
        inner: &Recording,
        arguments: usize,
        insert: usize,
        changed: &[(Arc<Storage>, u32, u32)],
        index: u32,
        node: &Node,
    ) -> Step {
        if node.has(flag::PARAM) {
            let carried = changed.iter().position(|(_, capture, _)| *capture == index);
            return match carried {
                Some(at) => Step::Argument((insert + at) as u32),
                None if (index as usize) < insert => Step::Argument(index),
                None if (index as usize) < arguments => {
                    Step::Argument(index + changed.len() as u32)
                }
                None => {
                    self.captures.push(index);
                    Step::Capture(self.captures.len() as u32 - 1)
                }
            };
        }
        let inputs = inner.inputs(node).map(|input| match input {
            Input::Node(j) => Input::Node(self.places[j as usize].unwrap_or_default()),
            Input::Number(class, slot) => {
                self.region.numbers.push(class);
                self.numbers.push(inner.numbers.get(class, slot));
                Input::Number(class, self.numbers.len() as u32 - 1)
            }
        });
        let inputs: Vec<Input> = inputs.collect();
        Step::Apply(node.entry, inputs.into())
    }
}

fn needed(recording: &Recording, results: &[u32]) -> Vec<bool> {
    let mut needed = vec![false; recording.nodes.len()];
    for &result in results {
        needed[result as usize] = true;
    }
    for index in (0..needed.len()).rev() {
        if needed[index] {
            for input in recording.inputs(&recording.nodes[index]) {
                if let Input::Node(j) = input {
                    needed[j as usize] = true;
                }
            }
        }
    }
    needed
}
