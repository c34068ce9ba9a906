//! A program that is known already, run again on other values.

use super::{
    Cause, DeviceValue, Launch, Outcomes, Pending, Program, STEPS_IN_FLIGHT, Started, capsule,
    donation, drain, memory, results,
};
use crate::debug::{MissedDonation, NotDonated};
use crate::gang::Start;
use crate::lower::Argument;
use crate::trace::{Numbers, Recording, Template, Trace};
use smallvec::SmallVec;
use std::sync::Arc;
use xla_core::{Error, Result};
use xla_runtime::{Capsule, metrics};

/// The program of a recording without collectives, and numbers for it.
pub(crate) struct Again<'a> {
    pub(crate) program: &'a Program,
    /// The recording.
    pub(crate) template: &'a Template,
    pub(crate) numbers: &'a Numbers,
    pub(crate) cause: Cause,
}

impl Again<'_> {
    /// What is about to run, for whoever asks. The recording that it is written from holds the values
    /// only here, so that they can be overwritten afterwards.
    fn capsule(&self, trace: &Trace, values: &[DeviceValue]) -> Option<Box<Capsule>> {
        if !capsule::is_wanted() {
            return None;
        }
        let mut recording = Recording::default();
        recording.load(self.template, values.to_vec(), self.numbers.clone());
        let pending = Pending::new(recording, self.template.live().to_vec(), Vec::new());
        let extent = pending.extent(pending.len());
        capsule::begin(trace.device, &pending, &extent, None, self.cause)
    }
}

/// Starts a program on these values of the recording's parameters, as [`super::flush`] would, for a
/// caller that holds [`Trace::syncing`]. The outputs are those of the live nodes.
///
/// # Errors
/// The error of an earlier step that failed meanwhile, or of a value; the runtime's.
pub(crate) fn run_again(
    trace: &Arc<Trace>,
    again: &Again<'_>,
    values: &[DeviceValue],
) -> Result<Vec<DeviceValue>> {
    let capsule = again.capsule(trace, values);
    let ran = start(trace, again, values);
    capsule::end(capsule, ran.as_deref());
    ran
}

fn start(
    trace: &Arc<Trace>,
    again: &Again<'_>,
    values: &[DeviceValue],
) -> Result<Vec<DeviceValue>> {
    let Some(last) = again.template.nodes().last() else {
        return Ok(Vec::new());
    };
    let cause = again.cause;
    let _attributed = metrics::attribute(cause.what(), cause.location());
    drain(trace, STEPS_IN_FLIGHT - 1)?;
    let compiled = again.program.compiled()?;
    memory::make_room(trace, &compiled.executable)?;
    let mut own: SmallVec<[(Argument, DeviceValue); 3]> = SmallVec::new();
    for argument in &compiled.arguments {
        if let Argument::Numbers(class) = argument {
            let len = again.numbers.len(*class);
            let value = compiled
                .numbers
                .upload(again.numbers, len, *class, trace.device)?;
            own.push((*argument, value));
        }
    }
    let value = |argument: &Argument| match argument {
        Argument::Param(position) => values.get(*position as usize),
        own_argument => own.iter().find(|(a, _)| a == own_argument).map(|(_, v)| v),
    };
    let arguments: SmallVec<[&DeviceValue; 16]> = compiled
        .arguments
        .iter()
        .map(value)
        .collect::<Option<_>>()
        .ok_or_else(|| Error::Internal {
            what: "run_again",
            expected: "a value for each argument".into(),
        })?;
    let outcomes = Outcomes::of_program(values.iter())?;
    let withheld = donation::withheld(compiled, |position| &values[position as usize]);
    let launch = Launch {
        compiled,
        arguments: &arguments,
        withheld: &withheld,
        last,
        outcomes: &outcomes,
        gang: None,
        ordered: false,
    };
    let start = Start {
        launch_id: 0,
        outcome: None,
    };
    let (info, outputs) = launch.start(trace, start)?;
    let template = again.template;
    let shared = withheld
        .iter()
        .filter_map(|&at| match compiled.arguments[at] {
            Argument::Param(position) => template.param(position),
            Argument::Numbers(_) | Argument::Order => None,
        });
    let missed = shared
        .map(|node| MissedDonation::new(node.ty, node.location, None, NotDonated::Shared))
        .collect::<SmallVec<[_; 2]>>();
    let started = Started {
        compiled,
        withheld: &withheld,
        info,
        device: trace.device,
        cause,
    };
    started.report(&missed, Vec::new, |position| {
        template.param(position).map(|node| node.ty)
    });
    for (&node, value) in template.live().iter().zip(&outputs) {
        let node = &template.nodes()[node as usize];
        memory::note(value, node.entry.name, node.location);
    }
    results::remember(&mut trace.lock(), template.nodes().len(), template.chain());
    Ok(outputs)
}
