//! Sync: from what was recorded to buffers in the tensors that wait for them.
//!
//! One direction, stage by stage: cut the trace, settle with the other replicas what to run, find
//! or compile the program, upload its numbers, vote, execute, fill. Everything that can fail comes
//! before the vote.

mod again;
mod capsule;
mod cause;
mod donation;
mod memory;
mod numbers;
mod pending;
mod report;
mod timeline;
mod value;

pub(crate) use crate::cache::Program;
pub(crate) use again::{Again, run_again};
pub use capsule::capsule;
pub(crate) use cause::Cause;
pub(crate) use memory::note;
pub(crate) use numbers::LastNumbers;
pub(crate) use pending::{Pending, live_nodes};
use report::Started;
use value::Outcomes;
pub(crate) use value::{DeviceValue, deadline};

pub(crate) use crate::cache::Placement;
use crate::cache::{self, Compiled};
use crate::compiled;
use crate::gang::{Gang, Outcome, Settlement, Start};
use crate::grad;
use crate::hash::Hash128;
use crate::lower::{Argument, Extent};
use crate::step_closure;
use crate::storage::{History, Storage, Value};
use crate::tensor::Tensor;
use crate::trace::{self, Input, Node, Recording, Slot, State, Trace, flag, next_epoch};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Arc;
use timeline::Running;
use value::StepInfo;
use xla_core::{Error, Literal, Result};
use xla_runtime::metrics::{self, Counter, Metric};
use xla_runtime::{Buffer, Client, Event, ExecuteOptions};

/// Steps of one replica that may be executing while it records the next.
const STEPS_IN_FLIGHT: usize = 2;

/// Programs run alone that a replica remembers for the gang.
const REMEMBERED: usize = 64;

/// A started execution.
pub(crate) struct InFlight {
    done: Event,
    info: StepInfo,
    gang: Option<Arc<dyn Gang>>,
    /// That of this execution, among `outcomes`.
    own_outcome: Option<Arc<dyn Outcome>>,
    outcomes: Outcomes,
}

impl InFlight {
    fn wait(&self) -> Result<()> {
        let waited = self.outcomes.guard(|patience| {
            let ended = self.done.wait(patience);
            if !matches!(ended, Err(Error::Deadline { .. })) {
                self.over();
            }
            ended
        });
        match waited {
            Ok(()) => Ok(()),
            Err(Error::Deadline { what, .. }) if let Some(gang) = &self.gang => {
                // Collectives that were started can be neither completed nor cancelled.
                gang.overdue(&format!("step {} ({what})", self.info.step))
            }
            Err(error) => Err(self.info.explain(error)),
        }
    }

    /// The execution has ended.
    fn over(&self) {
        if let Some(outcome) = &self.own_outcome {
            outcome.over();
        }
    }
}

/// The executions that a [`sync`] started. Dropping it does not wait.
pub struct SyncHandle {
    traces: Vec<Arc<Trace>>,
}

impl SyncHandle {
    /// Waits until everything this thread has synced so far is computed, and for its asynchronous step
    /// closures.
    ///
    /// # Errors
    /// [`Error::Step`] with the step that failed and the line of its last operator, or
    /// [`Error::Deadline`]; the first error of a closure.
    pub fn wait(self) -> Result<()> {
        self.traces.iter().try_for_each(|trace| drain(trace, 0))?;
        step_closure::wait()
    }
}

/// Compiles and runs what the calling thread has recorded, and returns without waiting for it.
///
/// At most two steps are in flight on a device; a third waits for the first.
///
/// # Errors
/// The compiler's, the error of an earlier step that failed meanwhile, or, with collectives, that
/// of another replica.
#[track_caller]
pub fn sync() -> Result<SyncHandle> {
    metrics::add(Counter::MarkStep, 1);
    let synced = sync_at(Cause::Sync {
        at: trace::recorder(Location::caller()),
    })?;
    step_closure::run()?;
    Ok(synced)
}

/// [`sync`] on behalf of something else.
pub(crate) fn sync_at(cause: Cause) -> Result<SyncHandle> {
    let traces = Trace::all_of_thread();
    for trace in &traces {
        flush(trace, cause)?;
    }
    Ok(SyncHandle { traces })
}

/// Waits for everything that the calling thread has synced.
pub(crate) fn await_all() -> Result<()> {
    Trace::all_of_thread()
        .iter()
        .try_for_each(|trace| drain(trace, 0))?;
    step_closure::wait()
}

/// Lets the process's client be released: what is kept of it only to be faster goes then.
pub(crate) fn prepare_release() {
    Client::on_release(|| {
        crate::ops::take_generators_off_devices();
        Trace::forget_idle();
        cache::clear();
    });
}

/// The value of a tensor for the method `what`, executing its trace if it is pending.
pub(crate) fn materialise(
    tensor: &Tensor,
    what: &'static str,
    location: &'static Location<'static>,
) -> Result<DeviceValue> {
    compiled::interrupted(Cause::Read { what, at: location })?;
    if tensor.view.as_deref().is_some_and(|view| !view.shows_all()) {
        let whole =
            trace::no_grad(|| trace::record_at(&crate::ops::COPY, &[tensor.into()], location))?;
        return materialise(&whole, what, location);
    }
    let at = trace::recorder(location);
    loop {
        let trace = match &tensor.storage.lock().value {
            Value::Ready(value) => return Ok(value.clone()),
            Value::Failed(error) => return Err(Error::clone(error)),
            Value::Pending(trace) => Arc::clone(trace),
        };
        flush(&trace, Cause::Read { what, at })?;
    }
}

/// Waits until at most `left` executions of a trace are in flight.
fn drain(trace: &Arc<Trace>, left: usize) -> Result<()> {
    loop {
        let oldest = {
            let mut state = trace.lock();
            if state.in_flight.len() <= left {
                return Ok(());
            }
            state.in_flight.pop_front()
        };
        if let Some(oldest) = oldest
            && let Err(error) = oldest.wait()
        {
            // What failed leaves nothing behind that a later program could come after.
            trace.lock().order = None;
            return Err(memory::typed(error, trace.device));
        }
    }
}

/// Executes everything a trace holds.
pub(crate) fn flush(trace: &Arc<Trace>, cause: Cause) -> Result<()> {
    flush_whole(trace, cause).map(drop)
}

/// [`flush`]; returns the program where one ran all that the trace held.
pub(crate) fn flush_whole(trace: &Arc<Trace>, cause: Cause) -> Result<Option<Arc<Program>>> {
    compiled::interrupted(cause)?;
    let _attributed = metrics::attribute(cause.what(), cause.location());
    let mut whole = None;
    let mut programs = 0;
    let _serial = trace.serial()?;
    while let Some(pending) = cut(trace) {
        Metric::TensorsGraphSize.record(pending.len() as f64);
        let _running = Running::begin(cause, pending.len());
        let pending = Arc::new(pending);
        // Lowering calls operators from outside. Were a panic there to leave values pending that
        // nothing computes, who reads one would wait for ever.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let (extent, gang) = settle(&pending)?;
            let capsule = capsule::begin(&pending, &extent, gang.as_ref(), cause);
            let ran = run(trace, &pending, &extent, gang.as_ref(), cause);
            let told = ran.as_ref().and_then(|ran| {
                let verdict = ran.verdict.as_ref();
                verdict.map(|()| ran.outputs.as_slice())
            });
            capsule::end(capsule, told);
            Ok((extent, gang.is_some(), ran?))
        }));
        match ran {
            Ok(Ok((extent, met_gang, ran))) => {
                programs += 1;
                let all = programs == 1 && extent.len == pending.len();
                whole = ran.program.filter(|_| all);
                fill(trace, pending, &extent, met_gang, ran.outputs);
                ran.verdict?;
            }
            Ok(Err(error)) => return Err(fail(trace, pending, error)),
            Err(panic) => {
                let error = Error::Internal {
                    what: "sync",
                    expected: "no panic while a program is lowered or started".into(),
                };
                fail(trace, pending, error);
                resume_unwind(panic);
            }
        }
    }
    Ok(whole)
}

/// What would run of a recording if all replicas had recorded it alike.
pub(crate) fn whole(pending: &Pending) -> Extent {
    let gang = pending.recording.gang.as_ref();
    Extent {
        ordered: gang.is_some_and(|gang| gang.spans_processes()),
        ..pending.extent(pending.len())
    }
}

/// Takes the recording out of the trace, which begins a new epoch. `None` when it is empty.
fn cut(trace: &Arc<Trace>) -> Option<Pending> {
    let mut state = trace.lock();
    if state.recording.nodes.is_empty() {
        return None;
    }
    let mut live = live_nodes(&state.recording);
    if live
        .iter()
        .any(|&i| state.recording.nodes[i as usize].has(flag::GRAD))
    {
        grad::freeze(trace, &mut state, &live);
        live = live_nodes(&state.recording);
    }
    let mut fresh = state.spare.take().unwrap_or_default();
    fresh.epoch = next_epoch();
    let recording = std::mem::replace(&mut state.recording, fresh);
    let flushed = if recording.gang.is_some() {
        state.flushed.clone()
    } else {
        Vec::new()
    };
    drop(state);
    // Handles that other threads dropped counted as live above, whenever they were dropped.
    drop(trace.exhume());
    Some(Pending::new(recording, live, flushed))
}

/// First phase: what all replicas that have to run this program will run of it.
fn settle(pending: &Arc<Pending>) -> Result<(Extent, Option<Arc<dyn Gang>>)> {
    let Some(gang) = pending.recording.gang.clone() else {
        return Ok((pending.extent(pending.len()), None));
    };
    let waiting = Metric::GangWaitTime.start();
    let settled = gang.settle(Arc::clone(pending) as Arc<dyn crate::gang::Proposal>)?;
    waiting.stop();
    match settled {
        Settlement::Run { len, live, donors } => {
            let extent = Extent {
                len,
                live,
                donors,
                ordered: gang.spans_processes(),
            };
            Ok((extent, Some(gang)))
        }
        Settlement::FlushFirst { len } => Ok((pending.extent(len), None)),
    }
}

/// Compiles if needed, uploads, votes, and starts the execution. The outputs are those of
/// `extent.live`.
fn run(
    trace: &Arc<Trace>,
    pending: &Pending,
    extent: &Extent,
    gang: Option<&Arc<dyn Gang>>,
    cause: Cause,
) -> Result<Ran> {
    let ready = prepare(trace, pending, extent, gang, cause);
    let start = match gang {
        Some(gang) => {
            let waiting = Metric::GangWaitTime.start();
            let start = gang.vote(ready.as_ref().map(drop).map_err(Clone::clone))?;
            waiting.stop();
            start
        }
        None => Start {
            launch_id: 0,
            outcome: None,
        },
    };
    let Some(Prepared {
        program,
        own_arguments,
        mut outcomes,
    }) = ready?
    else {
        return Ok(Ran {
            program: None,
            outputs: Vec::new(),
            verdict: Ok(()),
        });
    };
    outcomes.extend(start.outcome.clone());
    let compiled = program.compiled()?;
    let recording = &pending.recording;
    let mut own_arguments = own_arguments.iter();
    let arguments: SmallVec<[&Buffer; 16]> = compiled
        .arguments
        .iter()
        .filter_map(|argument| match argument {
            Argument::Param(position) => Some(&recording.params[*position as usize].value),
            Argument::Numbers(_) | Argument::Order => own_arguments.next(),
        })
        .map(DeviceValue::buffer)
        .collect();
    let value = |position: u32| &recording.params[position as usize].value;
    let withheld = donation::withheld(compiled, value);
    let launch = Launch {
        compiled,
        arguments: &arguments,
        withheld: &withheld,
        last: &recording.nodes[extent.len - 1],
        outcomes: &outcomes,
        gang,
        ordered: extent.ordered,
    };
    let (info, mut outputs) = launch.start(trace, start)?;
    let started = Started {
        compiled,
        withheld: &withheld,
        info,
        device: trace.device,
        cause,
    };
    started.report(
        &donation::missed(recording, extent, compiled, &withheld),
        || donation::replaced(recording, extent, compiled),
        |position| Some(recording.nodes[recording.params[position as usize].node as usize].ty),
    );
    let checks = &compiled.checks;
    let told = outputs.split_off(outputs.len() - checks.results());
    // The results are there whatever is found in them: they can be looked at.
    let verdict = told
        .iter()
        .map(DeviceValue::to_literal)
        .collect::<Result<Vec<_>>>()
        .and_then(|told| checks.verdict(recording, &extent.live, &told));
    let unwatched = checks.results() == 0;
    Ok(Ran {
        program: Some(program).filter(|_| unwatched),
        outputs,
        verdict,
    })
}

/// A program that is about to be executed, with all that it needs.
struct Launch<'a> {
    compiled: &'a Compiled,
    arguments: &'a [&'a Buffer],
    withheld: &'a [usize],
    /// The last operator, which errors name.
    last: &'a Node,
    outcomes: &'a [Arc<dyn Outcome>],
    gang: Option<&'a Arc<dyn Gang>>,
    ordered: bool,
}

impl Launch<'_> {
    fn start(self, trace: &Trace, start: Start) -> Result<(StepInfo, Vec<DeviceValue>)> {
        let options = ExecuteOptions {
            device: trace.device.ordinal().unwrap_or_default(),
            launch_id: start.launch_id,
            non_donatable: self.withheld,
        };
        let outcomes = Outcomes::new(self.outcomes);
        let info = StepInfo {
            step: trace.lock().begin_step(),
            op: self.last.entry.name,
            location: self.last.location,
        };
        let mut execution = self
            .compiled
            .executable
            .execute(self.arguments, &options)
            .map_err(|e| memory::typed(info.explain(e), trace.device))?;
        let value = |buffer| DeviceValue::new(buffer, Some(info), outcomes.clone());
        let mut state = trace.lock();
        if self.ordered {
            state.order = execution.outputs.pop().map(value);
        }
        // An inline program is done already. One that failed is kept, so that the next sync says so.
        let done = matches!(execution.done.poll(), Some(Ok(()))) && outcomes.check().is_ok();
        let started = InFlight {
            done: execution.done,
            info,
            gang: self.gang.cloned(),
            own_outcome: start.outcome,
            outcomes: outcomes.clone(),
        };
        if done {
            started.over();
        } else {
            state.in_flight.push_back(started);
        }
        drop(state);
        Ok((info, execution.outputs.into_iter().map(value).collect()))
    }
}

/// What an execution gave.
struct Ran {
    /// The program, where it can run again without its recording.
    program: Option<Arc<Program>>,
    /// The values of the extent's live nodes.
    outputs: Vec<DeviceValue>,
    /// What was found where values or indices are watched.
    verdict: Result<()>,
}

/// What a program is started with, besides the recording's buffers.
struct Prepared {
    program: Arc<Program>,
    /// Those that are not parameters of the recording, in their order among the arguments.
    own_arguments: SmallVec<[DeviceValue; 3]>,
    /// Those that its arguments depend on.
    outcomes: SmallVec<[Arc<dyn Outcome>; 2]>,
}

/// Everything that can fail: room among the steps in flight, the program, the numbers' upload.
/// `None` where nothing is needed of the recording.
fn prepare(
    trace: &Arc<Trace>,
    pending: &Pending,
    extent: &Extent,
    gang: Option<&Arc<dyn Gang>>,
    cause: Cause,
) -> Result<Option<Prepared>> {
    let recording = &pending.recording;
    if extent.live.is_empty() && gang.is_none() {
        return Ok(None);
    }
    drain(trace, STEPS_IN_FLIGHT - 1)?;
    let program = cache::program(recording, extent, placement(gang, extent), cause)?;
    memory::make_room(trace, &program.compiled()?.executable)?;
    let mut own_arguments = SmallVec::new();
    let Compiled {
        arguments, numbers, ..
    } = program.compiled()?;
    for argument in arguments {
        let value = match argument {
            Argument::Param(_) => continue,
            Argument::Numbers(class) => {
                let len = extent.numbers(recording)[class.index()];
                numbers.upload(&recording.numbers, len, *class, trace.device)?
            }
            Argument::Order => order_before(trace)?,
        };
        own_arguments.push(value);
    }
    let outcomes = Outcomes::of_program(arguments.iter().filter_map(|argument| match argument {
        Argument::Param(position) => Some(&recording.params[*position as usize].value),
        Argument::Numbers(_) | Argument::Order => None,
    }))?;
    Ok(Some(Prepared {
        program,
        own_arguments,
        outcomes,
    }))
}

/// Where a program runs.
pub(crate) fn placement(gang: Option<&Arc<dyn Gang>>, extent: &Extent) -> Placement {
    match gang {
        // XLA orders the programs of several replicas over all devices. Those of two gangs that wait
        // for other processes would then wait for each other.
        Some(gang) if gang.devices().len() > 1 && !extent.ordered => {
            Placement::Replicas(gang.devices().to_vec())
        }
        _ => Placement::Portable,
    }
}

/// What the effects of the next program come after. Before those of the first one there is nothing.
fn order_before(trace: &Trace) -> Result<DeviceValue> {
    let known = trace.lock().order.clone();
    match known {
        Some(order) => Ok(order),
        None => DeviceValue::upload(Literal::scalar(0_i32), trace.device),
    }
}

/// Puts the outputs into the storages that wait for them, carries what was not run over into the
/// current recording, and keeps the memory for the next epoch.
fn fill(
    trace: &Arc<Trace>,
    pending: Arc<Pending>,
    extent: &Extent,
    met_gang: bool,
    outputs: Vec<DeviceValue>,
) {
    let recording = &pending.recording;
    for (&index, value) in extent.live.iter().zip(&outputs) {
        let node = &recording.nodes[index as usize];
        memory::note(value, node.entry.name, node.location);
        if let Some(storage) = &recording.storages[index as usize] {
            let mut contents = storage.lock();
            // Its owner may have rebound it while another thread ran this.
            if storage.slot() == Slot::new(recording.epoch, index) {
                contents.value = Value::Ready(value.clone());
                storage.set_slot(Slot::NONE);
            }
            let shared = match &contents.history {
                Some(History::Node(node)) => node.separate_output(storage, value),
                _ => None,
            };
            // A handle is dropped only while its storage is not locked.
            drop(contents);
            drop(shared);
        }
    }
    let mut state = trace.lock();
    if met_gang {
        state.flushed.clear();
    } else {
        remember(&mut state, extent.len, recording.chain[extent.len - 1]);
    }
    if extent.len < recording.nodes.len() {
        carry_over(trace, &mut state, recording, extent, &outputs);
    }
    drop(outputs);
    recycle(&mut state, pending, &extent.live);
}

/// Notes a program that was run alone, for the gang.
fn remember(state: &mut State, len: usize, hash: Hash128) {
    if xla_runtime::context::in_launch() {
        if state.flushed.len() == REMEMBERED {
            state.flushed.remove(0);
        }
        state.flushed.push((len, hash));
    }
}

/// Keeps the storages of dead nodes and the recording's memory for the next epoch.
fn recycle(state: &mut State, pending: Arc<Pending>, filled: &[u32]) {
    // Another replica may still look at the proposal; then its memory goes with it.
    let Ok(pending) = Arc::try_unwrap(pending) else {
        return;
    };
    let mut recording = pending.recording;
    // A filled storage holds a buffer, also when its last handle is gone by now: what is used again
    // must be pending.
    for &index in filled {
        recording.storages[index as usize] = None;
    }
    let nodes = recording.nodes.iter();
    for (storage, node) in recording.storages.drain(..).zip(nodes) {
        if let Some(storage) = storage
            && Storage::is_unused(&storage)
            && !node.has(flag::PARAM)
        {
            state.free.push(storage);
        }
    }
    recording.clear();
    state.spare = Some(recording);
}

/// Records the nodes from `extent.len` on once more, now on top of the outputs just computed.
fn carry_over(
    trace: &Arc<Trace>,
    state: &mut State,
    old: &Recording,
    extent: &Extent,
    outputs: &[DeviceValue],
) {
    let mut moved: HashMap<u32, u32> = HashMap::new();
    let computed = |index: u32| -> Option<DeviceValue> {
        match old.param_of(index) {
            Some(param) => Some(param.value.clone()),
            None => extent
                .live
                .binary_search(&index)
                .ok()
                .and_then(|at| outputs.get(at).cloned()),
        }
    };
    for index in extent.len as u32..old.nodes.len() as u32 {
        let node = old.nodes[index as usize];
        if let Some(param) = old.param_of(index) {
            let storage = old.storages[index as usize].clone();
            let new = state.enter_value(trace, node.ty, storage, &param.value, node.location);
            moved.insert(index, new);
            continue;
        }
        let inputs: SmallVec<[Input; 8]> = old
            .inputs(&node)
            .map(|input| match input {
                Input::Number(class, slot) => state.recording.renumber(class, old, slot),
                Input::Node(j) => Input::Node(match (moved.get(&j), computed(j)) {
                    (Some(&new), _) => new,
                    (None, Some(value)) => {
                        let storage = old.storages[j as usize].clone();
                        let ty = old.nodes[j as usize].ty;
                        let new = state.enter_value(trace, ty, storage, &value, node.location);
                        moved.insert(j, new);
                        new
                    }
                    // Cannot be: `live` holds whatever the tail reads.
                    (None, None) => 0,
                }),
            })
            .collect();
        let flags = node.flags & flag::COLLECTIVE;
        let new = state
            .recording
            .push(node.entry, node.ty, &inputs, flags, node.location);
        moved.insert(index, new);
        if let Some(storage) = &old.storages[index as usize]
            && Arc::strong_count(storage) > 1
        {
            storage.set_slot(Slot::new(state.recording.epoch, new));
            state.recording.storages[new as usize] = Some(Arc::clone(storage));
            let contents = storage.lock();
            let (leaf, history) = (contents.leaf.clone(), contents.history.clone());
            drop(contents);
            state
                .recording
                .note_autograd(new, leaf.as_ref(), history.as_ref());
        }
        if node.has(flag::COLLECTIVE) {
            state.recording.gang = old.gang.clone();
        }
    }
    for param in &old.params {
        if let Some(to) = param.rebound.and_then(|to| moved.get(&to))
            && let Some(from) = moved.get(&param.node)
        {
            state.recording.rebind_param(*from, *to);
        }
    }
}

/// Gives every tensor that waited for a program that did not run its error. A tensor that the
/// program would have changed in place keeps the value it had: nothing was executed.
fn fail(trace: &Arc<Trace>, pending: Arc<Pending>, error: Error) -> Error {
    let recording = &pending.recording;
    let shared = Arc::new(error.clone());
    let before: HashMap<u32, &DeviceValue> = recording
        .params
        .iter()
        .filter(|p| !p.value.buffer().is_deleted())
        .filter_map(|p| p.rebound.map(|to| (to, &p.value)))
        .collect();
    let mut written = Vec::new();
    for (index, storage) in (0u32..).zip(&recording.storages) {
        let Some(storage) = storage else { continue };
        if recording.nodes[index as usize].has(flag::PARAM) || Arc::strong_count(storage) == 1 {
            continue;
        }
        restore(storage, before.get(&index).copied(), &shared);
        written.push(index);
    }
    recycle(&mut trace.lock(), pending, &written);
    error
}

fn restore(storage: &Arc<Storage>, before: Option<&DeviceValue>, error: &Arc<Error>) {
    let mut contents = storage.lock();
    contents.value = match before {
        Some(value) => Value::Ready(value.clone()),
        None => Value::Failed(Arc::clone(error)),
    };
    storage.set_slot(Slot::NONE);
    // It may hold the last handle on this very storage.
    let history = contents.history.take();
    drop(contents);
    drop(history);
}
