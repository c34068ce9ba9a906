//! A computed value: a device buffer that knows the step it comes from.

use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
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

struct Inner {
    buffer: Buffer,
    id: u64,
    step: Option<StepInfo>,
}

/// A buffer shared by the storages, parameters and readers that need it. Its memory may be
/// donated only while there is one holder.
#[derive(Clone)]
pub(crate) struct DeviceValue(Arc<Inner>);

/// How long a value is waited for: as long as the calling thread's launch waits for anything.
pub(crate) fn deadline() -> Duration {
    match xla_runtime::context::current("deadline") {
        Ok(context) => context.launch().deadline(),
        Err(_) => Config::global().map_or(config::DEFAULT_DEADLINE, |c| c.deadline),
    }
}

impl DeviceValue {
    pub(crate) fn new(buffer: Buffer, step: Option<StepInfo>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        DeviceValue(Arc::new(Inner { buffer, id, step }))
    }

    /// A number that no other value of the process has.
    pub(crate) fn id(&self) -> u64 {
        self.0.id
    }

    pub(crate) fn buffer(&self) -> &Buffer {
        &self.0.buffer
    }

    /// Whether nothing but the caller holds the value.
    pub(crate) fn is_exclusive(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }

    /// Sends a literal to a device.
    ///
    /// # Errors
    /// The runtime's.
    pub(crate) fn upload(literal: Literal, device: Device) -> Result<Self> {
        let buffer = Client::global()?.upload_owned(literal, device.ordinal())?;
        Ok(DeviceValue::new(buffer, None))
    }

    /// Waits for the value and copies it to the host.
    ///
    /// # Errors
    /// The error of the step that should have computed it, or a deadline.
    pub(crate) fn to_literal(&self) -> Result<Literal> {
        self.0
            .buffer
            .to_literal(deadline())
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
            .copy_to_device(device.ordinal())
            .map_err(|e| self.explain(e))?;
        Ok(DeviceValue::new(buffer, self.0.step))
    }

    fn explain(&self, error: Error) -> Error {
        match self.0.step {
            Some(step) => step.explain(error),
            None => error,
        }
    }
}
