//! What is different where another launcher has started the process.

use serde_json::json;
use std::time::{SystemTime, UNIX_EPOCH};
use xla_core::{Error, Result};
use xla_runtime::CpuThreads;
use xla_store::environment;

/// Where torchrun's agent looks for a failed worker's error.
const ERROR_FILE: &str = "TORCHELASTIC_ERROR_FILE";

/// Leaves the other processes of this machine their share of its cores, if the client is yet to come.
pub(crate) fn share_cores() {
    let Ok(Some(external)) = environment::external(&environment::variable) else {
        return;
    };
    let threads = CpuThreads {
        processes: external.local_world_size,
        blocking_calls: external.world_size > 1,
    };
    // Too late for a client that is there already; a group that needs the threads will say so.
    if let Err(error) = xla_runtime::set_cpu_threads(threads) {
        tracing::debug!(%error, "the client keeps its threads");
    }
}

/// Writes the launch's error where torchrun's agent looks for it, which then names it as the root
/// cause. Without that agent this does nothing.
pub(crate) fn report(error: &Error) {
    let Ok(path) = std::env::var(ERROR_FILE) else {
        return;
    };
    if path.is_empty() {
        return;
    }
    if let Err(problem) = write(&path, error) {
        tracing::warn!(%problem, "the launcher is not told of the error");
    }
}

fn write(path: &str, error: &Error) -> Result<()> {
    let text = document(&error.to_string(), SystemTime::now());
    std::fs::write(path, text).map_err(|problem| Error::io(path, problem))
}

/// The error in the form that torchrun reads: the words, and under `py_callstack` what it prints as
/// the traceback.
fn document(error: &str, now: SystemTime) -> String {
    let seconds = now
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs());
    // A backtrace follows the message on lines of its own.
    let message = error.lines().next().unwrap_or_default();
    json!({
        "message": {
            "message": message,
            "extraInfo": {
                "py_callstack": error,
                "timestamp": seconds.to_string(),
            },
        },
    })
    .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_document_is_torchruns() {
        let now = UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let text = document("rank 1 failed: disk full\n   0: main", now);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        let message = &value["message"];
        assert_eq!(message["message"], "rank 1 failed: disk full");
        // The agent reads the time as int(timestamp).
        assert_eq!(message["extraInfo"]["timestamp"], "1700000000");
        assert!(message["extraInfo"]["py_callstack"].is_string());
    }
}
