//! Replicas in forks of this process.

use crate::supervise::{Pump, Sink, Workers, after_fork};
use rustix::process::{Pid, Signal, set_parent_process_death_signal, setpgid};
use rustix::stdio::{dup2_stderr, dup2_stdin, dup2_stdout};
use std::fs::File;
use std::io::{self, PipeWriter, Write};
use xla_core::{Error, Result};
use xla_runtime::process::{Forked, fork};

/// Forks a worker that finds these variables set and ends with `child`.
///
/// # Errors
/// [`Error::Launch`] when the process uses a device already, [`Error::System`] when there can be no
/// further process, pipe or thread.
pub(super) fn start<E: Send + 'static>(
    workers: &mut Workers<E>,
    variables: &[(&'static str, String)],
    prefix: Option<&str>,
    child: &dyn Fn(),
) -> Result<()> {
    let pipe = || io::pipe().map_err(|error| Error::system("pipe", error));
    let pipes = match prefix {
        Some(prefix) => Some((prefix, pipe()?, pipe()?)),
        None => None,
    };
    // What is buffered here would come out twice.
    let _ = io::stdout().flush();
    match fork(variables)? {
        Forked::Child => {
            after_fork();
            let outputs = pipes.map(|(_, (_, output), (_, errors))| (output, errors));
            if let Err(error) = settle(outputs).and_then(|()| workers.watch_this_process()) {
                eprintln!("a forked replica cannot start: {error}");
                std::process::exit(1);
            }
            child();
            std::process::exit(0)
        }
        Forked::Parent(pid) => {
            let Some(pid) = Pid::from_raw(pid) else {
                return Err(Error::Internal {
                    what: "fork",
                    expected: "a process id".into(),
                });
            };
            // Both sides do this, so that it is done whoever comes first.
            let _ = setpgid(Some(pid), Some(pid));
            let worker = workers.adopt(pid)?;
            if let Some((prefix, (output, _), (errors, _))) = pipes {
                workers.pump(worker, Pump::start(errors, Sink::Stderr, prefix)?);
                workers.pump(worker, Pump::start(output, Sink::Stdout, prefix)?);
            }
            Ok(())
        }
    }
}

/// Makes the child a worker like those that are spawned: in a group of its own, without input, its
/// output in the pipes, and not to outlive its parent.
fn settle(outputs: Option<(PipeWriter, PipeWriter)>) -> Result<()> {
    let failed = |error: rustix::io::Errno| Error::system("set up a fork", error.into());
    setpgid(None, None).map_err(failed)?;
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    let null = File::open("/dev/null").map_err(|error| Error::io("/dev/null", error))?;
    dup2_stdin(&null).map_err(failed)?;
    if let Some((output, errors)) = outputs {
        dup2_stdout(&output).map_err(failed)?;
        dup2_stderr(&errors).map_err(failed)?;
    }
    Ok(())
}
