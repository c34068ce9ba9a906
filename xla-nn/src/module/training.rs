//! The flag that says whether a module is being trained.

use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a module is being trained: a field of modules that compute something else in evaluation.
///
/// The mode is part of the recorded program: each of the two compiles once.
#[derive(Debug)]
pub struct Training(AtomicBool);

impl Training {
    /// In training mode.
    pub const fn new() -> Self {
        Training(AtomicBool::new(true))
    }

    /// Whether the module is being trained.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, training: bool) {
        self.0.store(training, Ordering::Relaxed);
    }
}

impl Default for Training {
    fn default() -> Self {
        Training::new()
    }
}

impl Clone for Training {
    /// A flag of its own, in the same mode.
    fn clone(&self) -> Self {
        Training(AtomicBool::new(self.get()))
    }
}
