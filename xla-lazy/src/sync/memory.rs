//! Out of memory: who holds it, and waiting for what is about to give it back.

use super::{DeviceValue, drain};
use crate::trace::Trace;
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};
use xla_core::{Device, Error, LiveTensor, Result};
use xla_runtime::Executable;

/// Values of at least this many bytes are known by name.
const LARGE: usize = 64 << 10;

/// How many an error names.
const NAMED: usize = 5;

/// PJRT's code for memory that is exhausted, as in `absl::StatusCode`.
const RESOURCE_EXHAUSTED: i32 = 8;

struct Known {
    value: super::value::Watched,
    op: &'static str,
    location: &'static Location<'static>,
}

/// Large values, with some that are gone.
static LARGEST: Mutex<Vec<Known>> = Mutex::new(Vec::new());

/// Remembers which line made a value, if it is a large one.
pub(crate) fn note(value: &DeviceValue, op: &'static str, location: &'static Location<'static>) {
    let buffer = value.buffer();
    let bytes = buffer.shape().numel() * buffer.dtype().size();
    if bytes < LARGE {
        return;
    }
    let mut known = LARGEST.lock().unwrap_or_else(PoisonError::into_inner);
    // Only when the list would grow: then at least as many are noted before it is gone through again.
    if known.len() == known.capacity() {
        known.retain(|k| k.value.is_alive());
        let room = known.len().max(NAMED);
        known.reserve(room);
    }
    known.push(Known {
        value: value.watch(),
        op,
        location,
    });
}

/// Makes sure that the device has the memory that a program needs, if need be by waiting for the
/// steps in flight, whose intermediate values go then.
///
/// # Errors
/// [`Error::OutOfMemory`], naming the largest tensors; that of a step in flight which failed.
pub(super) fn make_room(trace: &Arc<Trace>, program: &Executable) -> Result<()> {
    let check = || match trace.device.ordinal() {
        Some(ordinal) => program.check_memory(ordinal),
        None => {
            let mut devices = program.devices().iter();
            devices.try_for_each(|&ordinal| program.check_memory(ordinal))
        }
    };
    match check() {
        Err(Error::OutOfMemory { .. }) => {
            drain(trace, 0)?;
            check().map_err(explain)
        }
        other => other,
    }
}

/// The plugin's refusal for want of memory as what it is, also where it is the reason why a step failed.
pub(super) fn typed(error: Error, device: Device) -> Error {
    match error {
        Error::Step {
            step,
            op,
            at,
            source,
        } => Error::Step {
            step,
            op,
            at,
            source: refused(&source, device).map_or(source, Arc::new),
        },
        other => refused(&other, device).unwrap_or_else(|| explain(other)),
    }
}

/// What a plugin says that has no memory.
fn refused(error: &Error, device: Device) -> Option<Error> {
    match error {
        Error::Pjrt {
            code: RESOURCE_EXHAUSTED,
            message,
            ..
        } => Some(explain(Error::OutOfMemory {
            device,
            needed: 0,
            available: None,
            message: message.clone(),
            largest: Vec::new(),
        })),
        _ => None,
    }
}

/// Adds the tensors that hold most of the device's memory.
fn explain(mut error: Error) -> Error {
    if let Error::OutOfMemory {
        device, largest, ..
    } = &mut error
        && largest.is_empty()
    {
        *largest = largest_on(*device);
    }
    error
}

fn largest_on(device: Device) -> Vec<LiveTensor> {
    let known = LARGEST.lock().unwrap_or_else(PoisonError::into_inner);
    let mut all: Vec<LiveTensor> = Vec::new();
    // Held until the lock is released: a value that is the last of its kind calls the plugin.
    let mut values = Vec::new();
    for k in known.iter() {
        let Some(value) = k.value.get() else { continue };
        let buffer = value.buffer();
        let there = match device.ordinal() {
            Some(ordinal) => value.is_on(ordinal),
            None => value.spread().is_some(),
        };
        if there && !value.is_gone() {
            all.push(LiveTensor {
                dtype: buffer.dtype(),
                shape: buffer.shape().dims().to_vec(),
                bytes: (buffer.shape().numel() * buffer.dtype().size()) as u64,
                op: k.op,
                at: k.location.into(),
            });
        }
        values.push(value);
    }
    drop(known);
    drop(values);
    // Stable: of equal ones the oldest first.
    all.sort_by_key(|tensor| std::cmp::Reverse(tensor.bytes));
    all.truncate(NAMED);
    all
}
