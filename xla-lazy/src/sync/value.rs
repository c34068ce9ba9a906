//! A computed value: a device buffer that knows the step it comes from.

use super::memory;
use crate::gang::Outcome;
use smallvec::SmallVec;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use xla_core::{Config, Device, Error, Literal, Result, config};
use xla_runtime::{Buffer, Client};

/// The execution that a value comes from, for the errors of asynchronous steps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepInfo {
    pub(crate) step: u64,
    pub(crate) op: &'static str,
    pub(crate) location: &'static Location<'static>,
}

impl StepInfo {
    /// What the plugin says went wrong, with the step. Other errors say themselves what to do.
    pub(crate) fn explain(self, error: Error) -> Error {
        match error {
            error @ Error::Pjrt { .. } => Error::Step {
                step: self.step,
                op: self.op,
                at: self.location.into(),
                source: Arc::new(error),
            },
            other => other,
        }
    }
}

/// The executions beyond this process that a value depends on and that were not settled when it was
/// made; shared by all results of a program.
#[derive(Clone, Default)]
pub(crate) struct Outcomes(Option<Arc<[Arc<dyn Outcome>]>>);

impl Outcomes {
    /// Those of a program that reads `values`, started with an outcome of its own or none.
    ///
    /// # Errors
    /// That of an execution that has failed: its values are made up.
    pub(crate) fn of_program<'a>(
        values: impl Iterator<Item = &'a DeviceValue>,
    ) -> Result<SmallVec<[Arc<dyn Outcome>; 2]>> {
        let mut all: SmallVec<[Arc<dyn Outcome>; 2]> = SmallVec::new();
        let mut last: Option<&Arc<[Arc<dyn Outcome>]>> = None;
        for value in values {
            let Some(outcomes) = &value.0.outcomes.0 else {
                continue;
            };
            // The values of one program mostly come together.
            if last.is_some_and(|seen| Arc::ptr_eq(seen, outcomes)) {
                continue;
            }
            last = Some(outcomes);
            for outcome in outcomes.iter() {
                match outcome.poll() {
                    Some(settled) => settled?,
                    None if all.iter().any(|known| Arc::ptr_eq(known, outcome)) => {}
                    None => all.push(Arc::clone(outcome)),
                }
            }
        }
        Ok(all)
    }

    pub(crate) fn new(outcomes: &[Arc<dyn Outcome>]) -> Self {
        Outcomes((!outcomes.is_empty()).then(|| outcomes.into()))
    }

    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Whether all went well, as far as is known.
    ///
    /// # Errors
    /// That of an execution that has failed.
    pub(crate) fn check(&self) -> Result<()> {
        let failed = self.0.iter().flat_map(|all| all.iter());
        failed
            .filter_map(|outcome| outcome.poll())
            .find(Result::is_err)
            .unwrap_or(Ok(()))
    }

    /// How long the end of what they belong to is waited for. Whoever waits for another process
    /// inside a program gives up at the deadline, and only then can the program end.
    fn patience(&self) -> Duration {
        deadline()
            + if self.is_empty() {
                Duration::ZERO
            } else {
                GRACE
            }
    }

    /// Waits with `wait`, and lets nothing through that a failed execution has made up.
    ///
    /// # Errors
    /// The failed execution's, or else what `wait` returns.
    pub(crate) fn guard<T>(&self, wait: impl FnOnce(Duration) -> Result<T>) -> Result<T> {
        let waited = wait(self.patience());
        self.check()?;
        waited
    }
}

/// What a program needs, once it does not wait for another process any more, to run to its end.
const GRACE: Duration = Duration::from_secs(10);

struct Inner {
    // Shared with the literals that show it.
    buffer: Arc<Buffer>,
    id: u64,
    step: Option<StepInfo>,
    outcomes: Outcomes,
}

/// A buffer shared by the storages, parameters and readers that need it. Its memory may be
/// donated only while there is one holder.
#[derive(Clone)]
pub(crate) struct DeviceValue(Arc<Inner>);

/// A value that its other holders may drop meanwhile.
pub(crate) struct Watched(Weak<Inner>);

impl Watched {
    /// The value, if somebody still holds it.
    pub(crate) fn get(&self) -> Option<DeviceValue> {
        self.0.upgrade().map(DeviceValue)
    }

    pub(crate) fn is_alive(&self) -> bool {
        self.0.strong_count() > 0
    }
}

/// How long a value is waited for: as long as the calling thread's launch waits for anything.
pub(crate) fn deadline() -> Duration {
    match xla_runtime::context::current("deadline") {
        Ok(context) => context.launch().deadline(),
        Err(_) => Config::global().map_or(config::DEFAULT_DEADLINE, |c| c.deadline),
    }
}

impl DeviceValue {
    pub(crate) fn new(buffer: Buffer, step: Option<StepInfo>, outcomes: Outcomes) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        DeviceValue(Arc::new(Inner {
            buffer: Arc::new(buffer),
            id,
            step,
            outcomes,
        }))
    }

    /// A number that no other value of the process has.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    /// The value, for as long as somebody else keeps it.
    pub(crate) fn watch(&self) -> Watched {
        Watched(Arc::downgrade(&self.0))
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.0.buffer
    }

    /// Whether nothing but the caller holds the value.
    pub(crate) fn is_exclusive(&self) -> bool {
        self.holders() == 1
    }

    /// How many hold the value, the caller among them.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// Whether a program has taken the memory.
    pub(crate) fn is_gone(&self) -> bool {
        self.0.buffer.is_deleted()
    }

    /// Sends a literal to a device.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn upload(literal: Literal, device: Device) -> Result<Self> {
        let buffer =
            Client::global()?.upload_owned(literal, device.ordinal().unwrap_or_default())?;
        Ok(DeviceValue::new(buffer, None, Outcomes::default()))
    }

    /// Waits for the value and shows it to the host; a large one on the CPU without a copy, so that it
    /// cannot be overwritten for as long as the literal lives.
    ///
    /// # Errors
    /// The error of the step that should have computed it, or a deadline.
    pub(crate) fn to_literal(&self) -> Result<Literal> {
        self.0
            .outcomes
            .guard(|patience| self.0.buffer.lend(patience))
            .map_err(|e| self.explain(e))
    }

    /// The value on another device.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn copy_to(&self, device: Device) -> Result<Self> {
        let buffer = self
            .0
            .buffer
            .copy_to_device(device.ordinal().unwrap_or_default())
            .map_err(|e| self.explain(e))?;
        Ok(DeviceValue::new(
            buffer,
            self.0.step,
            self.0.outcomes.clone(),
        ))
    }

    fn explain(&self, error: Error) -> Error {
        let error = match self.0.step {
            Some(step) => step.explain(error),
            None => error,
        };
        memory::typed(error, Device::new(self.0.buffer.device()))
    }
}
