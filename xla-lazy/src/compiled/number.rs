//! Numbers that the host keeps and changes from call to call.

use super::tracing;
use crate::trace::{self, Input};
use crate::{Tensor, TensorOptions};
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use xla_core::Result;

/// A number that the host keeps, such as a learning rate, for code that is recorded in compiled
/// functions: there the program reads it at each call, not once. Clones are handles on one number.
///
/// ```
/// let rate = xla_lazy::HostNumber::new(0.1);
/// rate.set(0.05);
/// assert_eq!(rate.get(), 0.05);
/// ```
#[derive(Debug, Clone)]
pub struct HostNumber(Arc<AtomicU64>);

impl HostNumber {
    /// A number.
    pub fn new(value: f64) -> Self {
        HostNumber(Arc::new(AtomicU64::new(value.to_bits())))
    }

    /// The number now.
    pub fn get(&self) -> f64 {
        f64::from_bits(self.0.load(Ordering::Relaxed))
    }

    /// Changes it, for the calls that follow.
    pub fn set(&self, value: f64) {
        self.0.store(value.to_bits(), Ordering::Relaxed);
    }

    /// The number as a scalar tensor. In a compiled function it is at each call what the number then
    /// is; elsewhere it is what the number is now.
    ///
    /// # Errors
    /// Those of [`Tensor::scalar`].
    #[track_caller]
    pub fn tensor(&self, options: impl Into<TensorOptions>) -> Result<Tensor> {
        let tensor = Tensor::scalar(self.get(), options)?;
        if tracing::is_active() {
            let slot = slot_of(&tensor, Location::caller())?;
            match slot {
                Some(slot) => tracing::with(|noted| noted.numbers.push((slot, self.clone()))),
                None => tracing::stop(
                    "a number of its state is read in the body of a loop".into(),
                    Location::caller(),
                )?,
            }
        }
        Ok(tensor)
    }
}

/// Where the number of a scalar just recorded is among its program's numbers; `None` in the body of a
/// loop, which has its own.
pub(super) fn slot_of(
    tensor: &Tensor,
    at: &'static Location<'static>,
) -> Result<Option<(trace::NumberClass, u32)>> {
    trace::with_node("scalar", tensor, at, |_, state, index| {
        if state.recording.enclosing.is_some() {
            return None;
        }
        let node = state.recording.nodes[index as usize];
        let first = state.recording.inputs(&node).next();
        match first {
            Some(Input::Number(class, slot)) => Some((class, slot)),
            _ => None,
        }
    })
}
