//! An execution with its arguments and results on the host, for whoever asks.

mod wish;

pub use wish::capsule;
pub(super) use wish::is_wanted;

use super::{Pending, Placement, placement};
use crate::cache;
use crate::gang::Gang;
use crate::lower::{self, Argument, Extent, Lowered};
use crate::sync::{Cause, DeviceValue};
use crate::trace::{NumberClass, Recording};
use std::any::Any;
use std::sync::Arc;
use xla_core::{Device, Error, Literal, Result};
use xla_runtime::{Capsule, Client, Versions};

/// What is about to be executed, with its arguments, which an execution may overwrite. `None` where
/// nobody asks, or where they cannot be had: then the execution will say why.
pub(super) fn begin(
    device: Device,
    pending: &Pending,
    extent: &Extent,
    gang: Option<&Arc<dyn Gang>>,
    cause: Cause,
) -> Option<Box<Capsule>> {
    if !is_wanted() || (extent.live.is_empty() && gang.is_none()) {
        return None;
    }
    match capture(device, pending, extent, gang, cause) {
        Ok(capsule) => Some(Box::new(capsule)),
        Err(error) => {
            wish::refuse(error);
            None
        }
    }
}

fn capture(
    device: Device,
    pending: &Pending,
    extent: &Extent,
    gang: Option<&Arc<dyn Gang>>,
    cause: Cause,
) -> Result<Capsule> {
    if extent.ordered {
        return Err(Error::argument(
            "debug::capsule",
            "f",
            "a function whose collectives stay in one process, since nobody answers others later",
            "one whose program has collectives of several processes",
        ));
    }
    let recording = &pending.recording;
    let function = recording.function.as_deref();
    // A partitioned program is kept whole, as one for a single device that computes the same.
    let placement = match device.is_virtual() {
        true => Placement::Portable,
        false => placement(device, recording, extent, gang)?,
    };
    let lowered = lower::lower(recording, extent, &placement, cache::name_of(function))?;
    let (signature, options) = cache::given(&lowered, &placement, function)?;
    let (replica, peers) = match (&placement, gang) {
        (Placement::Replicas(_), Some(gang)) => others(&**gang, pending, &lowered, extent)?,
        _ => (0, Vec::new()),
    };
    let inputs = arguments(&lowered, recording, extent)?;
    Ok(Capsule {
        replica,
        peers,
        program: lowered.text,
        options,
        inputs,
        output_types: signature.outputs,
        outputs: None,
        cause: cause.to_string(),
        error: None,
        versions: Versions::of(&Client::global()?),
    })
}

/// Which of the replicas this is, and the arguments of the others, who wait for it at the vote.
fn others(
    gang: &dyn Gang,
    own: &Pending,
    lowered: &Lowered,
    extent: &Extent,
) -> Result<(usize, Vec<Vec<Literal>>)> {
    let mut replica = 0;
    let mut peers = Vec::new();
    for (at, proposal) in gang.proposals().iter().enumerate() {
        let proposal: &dyn Any = &**proposal;
        match proposal.downcast_ref::<Pending>() {
            Some(pending) if std::ptr::eq(pending, own) => replica = at,
            Some(pending) => peers.push(arguments(lowered, &pending.recording, extent)?),
            None => {
                return Err(Error::Internal {
                    what: "debug::capsule",
                    expected: "recordings as proposals".into(),
                });
            }
        }
    }
    Ok((replica, peers))
}

/// What one replica gives the program.
fn arguments(lowered: &Lowered, recording: &Recording, extent: &Extent) -> Result<Vec<Literal>> {
    let arguments = lowered.arguments.iter();
    arguments
        .map(|(argument, _)| match argument {
            Argument::Param(p) => recording.params[*p as usize].value.to_literal(),
            Argument::Numbers(class) => numbers(recording, extent, *class),
            Argument::Order => Ok(Literal::scalar(0_i32)),
        })
        .collect()
}

fn numbers(recording: &Recording, extent: &Extent, class: NumberClass) -> Result<Literal> {
    let numbers = &recording.numbers;
    let len = extent.numbers(recording)[class.index()];
    match class {
        NumberClass::F32 => Literal::from_slice(&numbers.f32[..len], [len]),
        NumberClass::F64 => Literal::from_slice(&numbers.f64[..len], [len]),
        NumberClass::I64 => Literal::from_slice(&numbers.i64[..len], [len]),
    }
}

/// Adds what came of the execution, for which it waits.
pub(super) fn end(capsule: Option<Box<Capsule>>, ran: Result<&[DeviceValue], &Error>) {
    let Some(mut capsule) = capsule else { return };
    let outputs = ran
        .map_err(Clone::clone)
        .and_then(|values| values.iter().map(DeviceValue::to_literal).collect());
    match outputs {
        // An ordered program returns one value more, which is of no use to anyone else.
        Ok(outputs) => {
            let all: Vec<Literal> = outputs;
            capsule.outputs = Some(all).filter(|all| all.len() == capsule.output_types.len());
        }
        Err(error) => capsule.error = Some(error.to_string()),
    }
    wish::take(capsule);
}
