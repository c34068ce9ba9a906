//! What each of several processes on a machine is given.

use std::thread;
use xla_core::{Error, Result};
use xla_runtime::CpuThreads;

/// The variable that says how many threads a CPU client starts, with a fair share of the cores for
/// each of so many processes on this machine; nothing where it is set already.
pub(crate) fn cpu_share(
    lookup: impl Fn(&str) -> Option<String>,
    processes: usize,
    devices: usize,
) -> Option<(&'static str, String)> {
    let set = ["PJRT_NPROC", "NPROC"]
        .iter()
        .any(|name| lookup(name).is_some());
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = CpuThreads {
        processes,
        blocking_calls: true,
    };
    let share = threads.count(cores, devices);
    (!set).then(|| ("PJRT_NPROC", share.to_string()))
}

/// A secret for the processes of one run.
///
/// # Errors
/// [`Error::System`] when the system gives no random numbers.
pub(crate) fn token() -> Result<String> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::system(
            "draw random numbers",
            std::io::Error::other(error.to_string()),
        )
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_leaves_room_for_calls_that_wait() {
        let nothing = |_: &str| None;
        let (name, share) = cpu_share(nothing, 10_000, 3).unwrap();
        assert_eq!((name, share.as_str()), ("PJRT_NPROC", "8"));
        let set = |name: &str| (name == "PJRT_NPROC").then(|| "3".to_owned());
        assert_eq!(cpu_share(set, 2, 1), None);
    }

    #[test]
    fn tokens_differ() {
        let (one, other) = (token().unwrap(), token().unwrap());
        assert!(one.len() == 32 && one != other);
    }
}
