//! Recording: from an operator called on tensors to a node of the right trace.

use super::recording::{MAX_NODES, Slot, flag};
use super::scope::recorder;
use super::{Blocked, State, Trace};
use crate::gang::Gang;
use crate::op::{OpEntry, Operand, Operator};
use crate::storage::{Storage, Value, thread_token};
use crate::sync;
use crate::tensor::Tensor;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{Device, Error, Result, Site};

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
    let location = recorder(location);
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
                // Only pending operands of the other trace: the operator goes there instead, unless
                // nobody would sync it there.
                if !any_pending_in(operands, &trace) && !other.has_ended() {
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
            Some(trace) if !trace.has_ended() => trace,
            _ => Trace::of_thread(target.device),
        };
        if let Some(other) = target.pending_in()
            && !Arc::ptr_eq(&other, &trace)
        {
            flush_foreign(op, &other, location)?;
        }
        // Dropped after both locks are released: it holds handles.
        let _history;
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
        _history = contents.history.take();
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
