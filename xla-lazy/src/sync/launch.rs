//! Where a program runs, and its start.

use super::value::{Outcomes, StepInfo};
use super::{DeviceValue, memory};
use crate::cache::{Compiled, Placement};
use crate::gang::{Gang, Outcome, Start};
use crate::lower::Extent;
use crate::spmd::Partitioned;
use crate::trace::{Node, Recording, Trace};
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;
use xla_core::{Device, Error, Result};
use xla_runtime::{Buffer, Event, ExecuteOptions, fresh_launch_id};

/// Where the part of a recording that `extent` says runs, for a trace of this device.
pub(crate) fn placement(
    device: Device,
    recording: &Recording,
    extent: &Extent,
    gang: Option<&Arc<dyn Gang>>,
) -> Result<Placement> {
    Ok(match gang {
        _ if device.is_virtual() => {
            Placement::Partitioned(Box::new(Partitioned::of(device, recording, extent)?))
        }
        // XLA orders the programs of several replicas over all devices. Those of two gangs that wait
        // for other processes would then wait for each other.
        Some(gang) if gang.devices().len() > 1 && !extent.ordered => {
            Placement::Replicas(gang.devices().to_vec())
        }
        _ => Placement::Portable,
    })
}

/// A started execution.
pub(crate) struct InFlight {
    /// Of each device.
    done: SmallVec<[Event; 1]>,
    info: StepInfo,
    gang: Option<Arc<dyn Gang>>,
    /// That of this execution, among `outcomes`.
    own_outcome: Option<Arc<dyn Outcome>>,
    outcomes: Outcomes,
}

impl InFlight {
    pub(super) fn wait(&self) -> Result<()> {
        let waited = self.outcomes.guard(|patience| {
            let ended = self.done.iter().try_for_each(|done| done.wait(patience));
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

/// A program that is about to be executed, with all that it needs.
pub(super) struct Launch<'a> {
    pub(super) compiled: &'a Compiled,
    pub(super) arguments: &'a [&'a DeviceValue],
    pub(super) withheld: &'a [usize],
    /// The last operator, which errors name.
    pub(super) last: &'a Node,
    pub(super) outcomes: &'a [Arc<dyn Outcome>],
    pub(super) gang: Option<&'a Arc<dyn Gang>>,
    pub(super) ordered: bool,
}

/// What was started on one device or on several.
struct Begun {
    /// Of each device.
    done: SmallVec<[Event; 1]>,
    outputs: Vec<DeviceValue>,
}

impl Launch<'_> {
    pub(super) fn start(self, trace: &Trace, start: Start) -> Result<(StepInfo, Vec<DeviceValue>)> {
        let outcomes = Outcomes::new(self.outcomes);
        let info = StepInfo {
            step: trace.lock().begin_step(),
            op: self.last.entry.name,
            location: self.last.location,
        };
        let begun = match trace.device.ordinal() {
            Some(device) => self.on_device(device, start.launch_id, info, &outcomes),
            None => self.on_mesh(info, &outcomes),
        };
        let mut begun = begun.map_err(|e| memory::typed(info.explain(e), trace.device))?;
        let mut state = trace.lock();
        if self.ordered {
            state.order = begun.outputs.pop();
        }
        // An inline program is done already. One that failed is kept, so that the next sync says so.
        let mut ended = begun.done.iter().map(Event::poll);
        let done = ended.all(|ended| matches!(ended, Some(Ok(())))) && outcomes.check().is_ok();
        let started = InFlight {
            done: begun.done,
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
        Ok((info, begun.outputs))
    }

    fn on_device(
        &self,
        device: usize,
        launch_id: i32,
        info: StepInfo,
        outcomes: &Outcomes,
    ) -> Result<Begun> {
        let options = ExecuteOptions {
            device,
            launch_id,
            non_donatable: self.withheld,
        };
        let arguments: SmallVec<[&Buffer; 16]> =
            self.arguments.iter().map(|value| value.buffer()).collect();
        let execution = self.compiled.executable.execute(&arguments, &options)?;
        let value = |buffer| DeviceValue::new(buffer, Some(info), outcomes.clone());
        Ok(Begun {
            done: smallvec![execution.done],
            outputs: execution.outputs.into_iter().map(value).collect(),
        })
    }

    /// Starts the program on all devices of a mesh at once.
    fn on_mesh(&self, info: StepInfo, outcomes: &Outcomes) -> Result<Begun> {
        let options = ExecuteOptions {
            device: 0,
            launch_id: fresh_launch_id(),
            non_donatable: self.withheld,
        };
        let executable = &self.compiled.executable;
        let rows: Vec<Vec<&Buffer>> = (0..executable.devices().len())
            .map(|at| self.arguments.iter().map(|value| value.part(at)).collect())
            .collect::<Option<_>>()
            .ok_or_else(|| Error::Internal {
                what: "sync",
                expected: "arguments with a part on each device of the mesh".into(),
            })?;
        let executions = executable.execute_sharded(&rows, &options)?;
        let mut done = SmallVec::new();
        let mut parts: Vec<SmallVec<[Arc<Buffer>; 1]>> = Vec::new();
        for execution in executions {
            done.push(execution.done);
            parts.resize_with(execution.outputs.len(), SmallVec::new);
            for (parts, part) in parts.iter_mut().zip(execution.outputs) {
                parts.push(Arc::new(part));
            }
        }
        let spreads = self.compiled.results.iter().cloned();
        let outputs = parts.into_iter().zip(spreads);
        Ok(Begun {
            done,
            outputs: outputs
                .map(|(parts, spread)| {
                    DeviceValue::of_parts(parts, spread, Some(info), outcomes.clone())
                })
                .collect(),
        })
    }
}
