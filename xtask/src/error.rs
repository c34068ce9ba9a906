//! What can go wrong in a task, with what to do about it.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The result of a step of a task.
pub(crate) type Result<T> = std::result::Result<T, Error>;

/// Why a task could not be carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A file operation failed.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A program could not be started or waited for.
    #[error("cannot run `{program}`: {source}")]
    Start { program: String, source: io::Error },
    /// A program ended with a failure.
    #[error("`{command}` failed ({status}){}", indented(output))]
    Failed {
        command: String,
        status: String,
        output: String,
    },
    /// A program did not end in time and was killed.
    #[error("`{command}` did not end within {} s and was killed{}", after.as_secs(), indented(output))]
    TimedOut {
        command: String,
        after: Duration,
        output: String,
    },
    /// A program printed something other than what was expected.
    #[error("`{command}` printed what could not be understood: {reason}")]
    Output { command: String, reason: String },
    /// Programs needed for the build are missing and may not be installed from here.
    #[error(
        "missing: {}\ninstall with:\n    {command}{}",
        list(missing),
        note(hint)
    )]
    Missing {
        missing: Vec<String>,
        command: String,
        hint: String,
    },
    /// The system's package manager has nothing that could be installed.
    #[error(
        "missing: {}\n{manager} has no package of it; install it from its source",
        list(missing)
    )]
    NoPackage {
        missing: Vec<String>,
        manager: &'static str,
    },
    /// The package manager ran, and something is still missing.
    #[error(
        "`{command}` succeeded, but this is still missing:{}\n{hint}",
        list(missing)
    )]
    StillMissing {
        command: String,
        missing: Vec<String>,
        hint: String,
    },
    /// No plugin is known for this machine, or not the one asked for.
    #[error(
        "{wanted} is not available for {machine}; set PJRT_LIBRARY_PATH to a PJRT plugin of your own"
    )]
    NoPlugin { wanted: String, machine: String },
    /// `PJRT_LIBRARY_PATH` names no file.
    #[error("PJRT_LIBRARY_PATH is {}, which is not a file; correct it, or unset it to use the cached CPU plugin", path.display())]
    NoSuchPlugin { path: PathBuf },
    /// No folder for the cache can be derived from the environment.
    #[error("neither XDG_CACHE_HOME nor HOME is an absolute path; set one of them")]
    NoCacheFolder,
    /// Another run has been installing into the same folder for too long.
    #[error("another run has been installing {} for {} s; end it, or wait for it, and try again", folder.display(), after.as_secs())]
    Busy { folder: PathBuf, after: Duration },
    /// A download or an unpacked file is not the one that was expected.
    #[error("{what} has SHA-256 {got}, expected {expected}; nothing was installed")]
    Digest {
        what: String,
        expected: String,
        got: String,
    },
    /// A wheel could not be unpacked.
    #[error("cannot unpack {member} from {}: {source}", wheel.display())]
    Wheel {
        wheel: PathBuf,
        member: String,
        source: zip::result::ZipError,
    },
    /// pip ended well without leaving a wheel.
    #[error("pip left no wheel of {package} in its download folder")]
    NoWheel { package: String },
}

impl Error {
    /// For `map_err`: names the file and the action that failed on it.
    pub(crate) fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
        let path = path.to_path_buf();
        move |source| Error::File {
            action,
            path,
            source,
        }
    }
}

fn indented(output: &str) -> String {
    if output.trim().is_empty() {
        return String::new();
    }
    let mut text = String::from(":");
    for line in output.trim_end().lines() {
        text.push_str("\n    ");
        text.push_str(line);
    }
    text
}

fn list(items: &[String]) -> String {
    items.iter().map(|item| format!("\n  - {item}")).collect()
}

fn note(hint: &str) -> String {
    if hint.is_empty() {
        String::new()
    } else {
        format!("\n{hint}")
    }
}
