//! Sync: from what was recorded to buffers in the tensors that wait for them.
//!
//! One direction, stage by stage: cut the trace, settle with the other replicas what to run, find
//! or compile the program, upload its numbers, vote, execute, fill. Everything that can fail comes
//! before the vote.

mod again;
mod capsule;
mod cause;
mod donation;
mod launch;
mod memory;
mod numbers;
mod pending;
mod report;
mod results;
mod timeline;
mod value;

pub(crate) use crate::cache::Program;
pub(crate) use again::{Again, run_again};
pub use capsule::capsule;
pub(crate) use cause::Cause;
use launch::Launch;
pub(crate) use launch::{InFlight, placement};
pub(crate) use memory::note;
pub(crate) use numbers::LastNumbers;
pub(crate) use pending::{Pending, live_nodes};
use report::Started;
use results::{fail, fill};
use value::Outcomes;
pub(crate) use value::{DeviceValue, Spread, deadline};

pub(crate) use crate::cache::Placement;
use crate::cache::{self, Compiled};
use crate::compiled;
use crate::gang::{Gang, Outcome, Settlement, Start};
use crate::grad;
use crate::lower::{Argument, Extent};
use crate::step_closure;
use crate::storage::Value;
use crate::tensor::Tensor;
use crate::trace::{self, Trace, flag, next_epoch};
use smallvec::SmallVec;
use std::panic::{AssertUnwindSafe, Location, catch_unwind, resume_unwind};
use std::sync::Arc;
use timeline::Running;
use value::StepInfo;
use xla_core::{Error, Literal, Result};
use xla_runtime::Client;
use xla_runtime::metrics::{self, Counter, Metric};

/// Steps of one replica that may be executing while it records the next.
const STEPS_IN_FLIGHT: usize = 2;

/// The executions that a [`sync`] started. Dropping it does not wait.
pub struct SyncHandle {
    traces: SmallVec<[Arc<Trace>; 1]>,
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
            let capsule = capsule::begin(trace.device, &pending, &extent, gang.as_ref(), cause);
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
    trace.release_spent();
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
    let arguments: SmallVec<[&DeviceValue; 16]> = compiled
        .arguments
        .iter()
        .filter_map(|argument| match argument {
            Argument::Param(position) => Some(&recording.params[*position as usize].value),
            Argument::Numbers(_) | Argument::Order => own_arguments.next(),
        })
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
        &donation::missed(pending, extent, compiled, &withheld),
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
    let placement = placement(trace.device, recording, extent, gang)?;
    let program = cache::program(recording, extent, placement, cause)?;
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

/// What the effects of the next program come after. Before those of the first one there is nothing.
fn order_before(trace: &Trace) -> Result<DeviceValue> {
    let known = trace.lock().order.clone();
    match known {
        Some(order) => Ok(order),
        None => DeviceValue::upload(Literal::scalar(0_i32), trace.device),
    }
}
