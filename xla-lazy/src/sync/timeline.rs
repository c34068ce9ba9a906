//! What a profile shows of a replica's thread: when it recorded and when it ran what it had recorded.

use super::Cause;
use std::cell::Cell;
use std::time::Instant;
use xla_runtime::profiler;

thread_local! {
    /// When the thread's last program was started, while a profile is running.
    static RECORDING_SINCE: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// The running of one program, from its cut until it is started.
pub(super) struct Running(Option<(Cause, Instant)>);

impl Running {
    /// A program of so many operators has been cut.
    pub(super) fn begin(cause: Cause, operators: usize) -> Running {
        if !profiler::is_running() {
            return Running(None);
        }
        if let Some(since) = RECORDING_SINCE.take() {
            profiler::record_recording(since, operators);
        }
        Running(Some((cause, Instant::now())))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some((cause, began)) = self.0.take() {
            profiler::record("Run", "run", began, Some(("cause", cause.to_string())));
            RECORDING_SINCE.set(Some(Instant::now()));
        }
    }
}
