//! Recording: from an operator called on tensors to a node of the right trace.

use super::recording::{MAX_NODES, NumberClass, Overwrite, Slot, flag};
use super::region::Changed;
use super::scope::{enable_grad, is_grad_enabled, no_grad, recorder};
use super::{Blocked, State, Trace};
use crate::gang::Gang;
use crate::op::{Number, OpEntry, Operand, Operator};
use crate::spmd;
use crate::storage::{History, Storage, Value};
use crate::sync::{self, Cause};
use crate::tensor::Tensor;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{Device, Error, Result};
use xla_runtime::owner_lock::thread_token;

/// The calling thread's trace for the operands' device.
fn choose(
    entry: &'static OpEntry,
    operands: &[Operand<'_>],
    at: &'static Location<'static>,
) -> Result<Arc<Trace>> {
    Ok(Trace::of_thread(device_of(entry, operands, at)?))
}

/// The device that all operands are on; without any, the calling replica's.
#[inline]
fn device_of(
    entry: &'static OpEntry,
    operands: &[Operand<'_>],
    at: &'static Location<'static>,
) -> Result<Device> {
    let mut device: Option<Device> = None;
    for operand in operands {
        if let Operand::Tensor(tensor) = operand {
            let this = tensor.storage.device();
            match device {
                Some(left) if left != this => return settled_on(entry, operands, (left, this), at),
                _ => device = Some(this),
            }
        }
    }
    match device {
        Some(device) if spmd::is_enabled() && !device.is_virtual() => {
            settled_on(entry, operands, (device, device), at)
        }
        Some(device) => Ok(device),
        None => spmd::default_device(entry.name),
    }
}

/// The process's mesh, once all operands are on it.
///
/// # Errors
/// [`Error::DeviceMismatch`] without such a mesh; those of moving them.
#[cold]
fn settled_on(
    entry: &'static OpEntry,
    operands: &[Operand<'_>],
    (left, right): (Device, Device),
    at: &'static Location<'static>,
) -> Result<Device> {
    let device = spmd::used_on(left);
    if spmd::used_on(right) != device {
        return Err(spmd::apart(entry.name, left, right, at));
    }
    for operand in operands {
        if let Operand::Tensor(tensor) = operand {
            spmd::adopt(&tensor.storage, entry.name, at)?;
        }
    }
    Ok(device)
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
    let device = device_of(entry, operands, location)?;
    record_on(device, entry, operands, location)
}

/// Records an operator on the device that its operands, if there are any, are on.
pub(crate) fn record_on(
    device: Device,
    entry: &'static OpEntry,
    operands: &[Operand<'_>],
    location: &'static Location<'static>,
) -> Result<Tensor> {
    match record_unhindered(device, entry, operands, location) {
        Some(storage) => Ok(Tensor::of(storage)),
        None => record_in(Trace::of_thread(device), entry, operands, location, None),
    }
}

/// Records an operator where nothing is in the way, which is the common case and costs no share of
/// the trace. `None` where [`record_in`] has something to wait for or to say; nothing was recorded.
#[inline]
fn record_unhindered(
    device: Device,
    entry: &'static OpEntry,
    operands: &[Operand<'_>],
    location: &'static Location<'static>,
) -> Option<Arc<Storage>> {
    let location = recorder(location);
    Trace::with_known(device, |mine| {
        let trace = &mine.trace;
        let mut state = trace.lock();
        if state.recording.nodes.len() >= MAX_NODES {
            return None;
        }
        let index = state.append(trace, entry, operands, location).ok()?;
        Some(state.storage_for(trace, index))
    })?
}

/// Records a collective: an operator that the members of `gang` execute together. The trace that
/// holds it is executed only when all of them have come.
///
/// A program has one gang. Where another gang's collectives are pending they are executed first, so
/// each replica executes its collectives in the order in which it recorded them. That is sound
/// whichever gangs a replica belongs to, as long as the replicas' orders agree, which MPI asks too:
/// of the collectives not yet executed, take the first in the common order. Each of its members has
/// executed all its earlier ones, so it is recording, or it waits in the settling of just this
/// collective's gang. So they meet, and settle at least up to this collective, since every proposal
/// holds it. That some members cut right after it and others later makes no difference: the
/// shortest proposal is run.
///
/// # Errors
/// As [`record`]; those of executing what another gang has pending.
#[track_caller]
pub fn record_collective<O: Operator>(
    gang: &Arc<dyn Gang>,
    op: O,
    operands: &[Operand<'_>],
) -> Result<Tensor> {
    let location = Location::caller();
    let entry = crate::op::entry(op);
    let trace = choose(entry, operands, location)?;
    record_in(trace, entry, operands, location, Some(gang))
}

/// Records operators that all have the same operands: these tensors and, after them, numbers that keep
/// their classes.
pub(crate) fn record_classed(
    entries: &[&'static OpEntry],
    tensors: &[&Tensor],
    numbers: &[(NumberClass, Number)],
    location: &'static Location<'static>,
) -> Result<Vec<Tensor>> {
    let Some(&entry) = entries.first() else {
        return Ok(Vec::new());
    };
    let operands: Vec<Operand<'_>> = tensors.iter().map(|&t| Operand::Tensor(t)).collect();
    let trace = choose(entry, &operands, location)?;
    let location = recorder(location);
    loop {
        let mut state = trace.lock();
        match state.append_classed(&trace, entries, tensors, numbers, location) {
            Ok(all) => {
                let results = all.into_iter();
                let made = results.map(|index| Tensor::of(state.storage_for(&trace, index)));
                return Ok(made.collect());
            }
            Err(Blocked::Failed(error)) => return Err(error),
            Err(Blocked::Starting) => {
                drop(state);
                drop(trace.serial()?);
            }
            Err(Blocked::Foreign(other)) => {
                drop(state);
                flush_foreign(entry.name, &other, location)?;
            }
        }
    }
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
        if gang.is_some() && state.recording.enclosing.is_some() {
            return Err(Error::InBody {
                op: entry.name,
                what: "no collective can be in it",
                advice: "call it before or after the loop",
                at: location.into(),
            });
        }
        let other_gang = |g: &Arc<dyn Gang>| gang.is_some_and(|new| !Arc::ptr_eq(g, new));
        if state.recording.gang.as_ref().is_some_and(other_gang) {
            drop(state);
            let op = entry.name;
            sync::flush(&trace, Cause::OtherGang { op, at: location })?;
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
                drop(trace.serial()?);
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

/// The trace of another thread that a tensor is pending in.
fn others_trace(tensor: &Tensor) -> Option<Arc<Trace>> {
    let pending = tensor.storage.pending_in();
    pending.filter(|trace| trace.owner() != thread_token())
}

/// Whether a tensor is pending in another thread's trace.
pub(crate) fn is_others(tensor: &Tensor) -> bool {
    others_trace(tensor).is_some()
}

/// Runs what another thread has recorded of a tensor, so that what this one makes of it is its own.
pub(crate) fn claim(
    op: &'static str,
    tensor: &Tensor,
    location: &'static Location<'static>,
) -> Result<()> {
    while let Some(trace) = others_trace(tensor) {
        flush_foreign(op, &trace, recorder(location))?;
    }
    Ok(())
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
    sync::flush(other, Cause::Operand { op, at: location })
}

/// Makes `target`'s storage the value of `value`, which has the same type.
///
/// A value with a history keeps one: without recording gradients the change leaves it as it is, and
/// a new value that no gradient flows to ends it with zeros.
pub(crate) fn rebind(
    op: &'static str,
    target: &Arc<Storage>,
    value: &Tensor,
    location: &'static Location<'static>,
) -> Result<()> {
    let location = recorder(location);
    let old = Tensor::of(Arc::clone(target));
    let by = Some(Overwrite { op, location });
    if old.leaf().is_some() || !old.requires_grad() {
        return bind(op, target, &crate::ops::COPY, &[value.into()], by, location);
    }
    let operands = [value.into(), Operand::Tensor(&old)];
    if !is_grad_enabled() {
        let entry = &crate::ops::CHANGED_UNRECORDED;
        enable_grad(|| bind(op, target, entry, &operands, by, location))
    } else if value.requires_grad() {
        bind(op, target, &crate::ops::COPY, &operands[..1], by, location)
    } else {
        bind(
            op,
            target,
            &crate::ops::OVERWRITTEN,
            &operands,
            by,
            location,
        )
    }
}

/// Makes `target`'s storage the value of an operator on it that changes no element.
pub(crate) fn rearrange(
    op: &'static str,
    target: &Arc<Storage>,
    entry: &'static OpEntry,
    location: &'static Location<'static>,
) -> Result<()> {
    let location = recorder(location);
    let old = Tensor::of(Arc::clone(target));
    let rearranged = || bind(op, target, entry, &[(&old).into()], None, location);
    // A leaf stays one: its gradient must not go through the operator to what it was before.
    match old.leaf() {
        Some(_) => no_grad(rearranged),
        None => rearranged(),
    }
}

/// Ends the history of a storage's value.
pub(crate) fn detach(
    op: &'static str,
    target: &Arc<Storage>,
    location: &'static Location<'static>,
) -> Result<()> {
    let old = Tensor::of(Arc::clone(target));
    let location = recorder(location);
    no_grad(|| {
        bind(
            op,
            target,
            &crate::ops::COPY,
            &[(&old).into()],
            None,
            location,
        )
    })
}

/// Makes `target`'s storage the value of an operator, whose result has its type. `by` says how the
/// elements change, if they do.
fn bind(
    op: &'static str,
    target: &Arc<Storage>,
    entry: &'static OpEntry,
    operands: &[Operand<'_>],
    by: Option<Overwrite>,
    location: &'static Location<'static>,
) -> Result<()> {
    spmd::adopt(target, op, location)?;
    loop {
        let trace = match operands.first() {
            Some(Operand::Tensor(value)) => value.storage.pending_in(),
            _ => None,
        };
        let trace = match trace {
            Some(trace) if !trace.has_ended() => trace,
            _ => Trace::of_thread(target.device()),
        };
        if let Some(other) = target.pending_in()
            && !Arc::ptr_eq(&other, &trace)
        {
            flush_foreign(op, &other, location)?;
        }
        // Dropped after both locks are released: it holds handles.
        let history: Option<History>;
        let mut state = trace.lock();
        let appended = state
            .before_change(&trace, target, location)
            .and_then(|capture| Ok((state.append(&trace, entry, operands, location)?, capture)));
        let (index, capture) = match appended {
            Ok(appended) => appended,
            Err(Blocked::Failed(error)) => return Err(error),
            Err(Blocked::Starting) => {
                drop(state);
                drop(trace.serial()?);
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
        let old = target.slot().in_epoch(recording.epoch).or(capture);
        if let Some(old) = old {
            recording.rebind_param(old, index);
            if let Some(held) = &recording.storages[old as usize]
                && Arc::ptr_eq(held, target)
            {
                recording.storages[old as usize] = None;
            }
            if let Some(by) = by {
                recording.note_overwrite(old, by);
            }
            if let Some(hooks) = recording.hooks.get(&old) {
                hooks.retain(None);
            }
        }
        recording.storages[index as usize] = Some(Arc::clone(target));
        let pending = Value::Pending(Arc::clone(&trace));
        let before = std::mem::replace(&mut contents.value, pending);
        if by.is_some() {
            contents.version += 1;
            contents.changed = by;
        }
        contents.range = None;
        let taken = contents.history.take();
        history = match (capture, &mut recording.enclosing) {
            (Some(capture), Some(enclosing)) => {
                enclosing.changed.push(Changed {
                    storage: Arc::clone(target),
                    slot: target.slot(),
                    value: before,
                    history: taken,
                    capture,
                });
                None
            }
            _ => taken,
        };
        target.set_slot(Slot::new(recording.epoch, index));
        target.set_owner(trace.owner());
        if let Some(leaf) = &contents.leaf {
            // A leaf written without recording stays a leaf.
            let leaf = Arc::clone(leaf);
            recording.note_autograd(index, Some(&leaf), None);
        }
        if let Some(retained) = &contents.retained {
            // A gradient is kept of what the tensor is now.
            if let Some(History::Node(node)) = &history {
                node.hooks().retain(None);
            }
            let hooks = recording.hooks.entry(index).or_default();
            hooks.retain(Some(Arc::clone(retained)));
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
            None => Trace::of_thread(tensor.storage.device()),
        };
        let mut state = trace.lock();
        match state.node_of_tensor(&trace, tensor, location) {
            Ok(index) => return Ok(f(&trace, &mut state, index)),
            Err(Blocked::Failed(error)) => return Err(error),
            Err(Blocked::Starting) => {
                drop(state);
                drop(trace.serial()?);
            }
            Err(Blocked::Foreign(other)) => {
                drop(state);
                flush_foreign(op, &other, location)?;
            }
        }
    }
}
