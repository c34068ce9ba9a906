//! A save that goes on beside the training.

use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use xla_core::{Error, Result};

/// A thread that saves, and what comes of it.
#[derive(Debug)]
pub(super) struct Pending {
    step: u64,
    outcome: Receiver<Result<()>>,
}

impl Pending {
    /// Starts the thread.
    pub(super) fn start(
        step: u64,
        save: impl FnOnce() -> Result<()> + Send + 'static,
    ) -> Result<Self> {
        let (sender, outcome) = channel();
        thread::Builder::new()
            .name("xla-checkpoint".into())
            .spawn(move || {
                // A manager that is gone asks no more.
                let _ = sender.send(save());
            })
            .map_err(|error| Error::system("the thread that saves a checkpoint", error))?;
        Ok(Pending { step, outcome })
    }

    /// How the save has ended; `Ok(None)` while it has not.
    ///
    /// # Errors
    /// The thread's end without a word.
    pub(super) fn outcome(&self, patience: Duration) -> Result<Option<Result<()>>> {
        match self.outcome.recv_timeout(patience) {
            Ok(outcome) => Ok(Some(outcome)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Internal {
                what: "CheckpointManager::save_async",
                expected: "a thread that says how its save ended".into(),
            }),
        }
    }

    /// The step that is being saved.
    pub(super) fn step(&self) -> u64 {
        self.step
    }
}
