//! Child processes: every one has null standard input and a deadline, and none outlives its task.
//!
//! A child leads a process group of its own, so that what it started can be ended with it. Output
//! is captured in an unnamed file, not a pipe: a descendant that keeps the descriptor open can
//! then never make the reader wait.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use crate::error::{Error, Result};

/// The exit code after an interrupt, as shells report it (128 + SIGINT).
const INTERRUPTED: i32 = 130;

/// Process groups now running, to be ended when this process is told to end.
static RUNNING: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());

/// How a child ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// By itself or by a signal.
    Exited(ExitStatus),
    /// Killed at its deadline.
    TimedOut,
}

/// A finished child whose standard output and error were captured together.
#[derive(Debug)]
pub(crate) struct Captured {
    pub(crate) end: End,
    /// Both streams, interleaved as written; only the end of what was too long.
    pub(crate) output: String,
    pub(crate) elapsed: Duration,
}

impl Captured {
    pub(crate) fn success(&self) -> bool {
        matches!(self.end, End::Exited(status) if status.success())
    }
}

/// Ends the children when this process is interrupted or told to terminate.
///
/// They lead their own process groups, so a terminal's interrupt does not reach them.
pub(crate) fn end_children_on_signals() -> std::result::Result<(), ctrlc::Error> {
    ctrlc::set_handler(|| {
        for &group in running().iter() {
            kill_group(Pid::from_raw(group));
        }
        std::process::exit(INTERRUPTED);
    })
}

/// Runs `command` with its output captured, killing its process group after `deadline`.
///
/// # Errors
/// Only if it cannot be started or waited for; how it ended is part of the result.
pub(crate) fn capture(command: &mut Command, deadline: Duration, limit: u64) -> Result<Captured> {
    let failed = start_error(command);
    let (mut file, second) = tempfile::tempfile()
        .and_then(|file| file.try_clone().map(|second| (file, second)))
        .map_err(&failed)?;
    let shared = file.try_clone().map_err(&failed)?;
    command.stdout(shared).stderr(second);
    let started = Instant::now();
    let end = run(command, deadline)?;
    let elapsed = started.elapsed();
    let output = read_end(&mut file, limit).map_err(&failed)?;
    Ok(Captured {
        end,
        output,
        elapsed,
    })
}

/// Runs `command` and returns its standard output; standard error goes where ours goes.
///
/// # Errors
/// [`Error::Failed`] or [`Error::TimedOut`] unless it ended with success.
pub(crate) fn stdout_of(command: &mut Command, deadline: Duration) -> Result<String> {
    let failed = start_error(command);
    let mut file = tempfile::tempfile().map_err(&failed)?;
    command.stdout(file.try_clone().map_err(&failed)?);
    let end = run(command, deadline)?;
    expect_success(command, end, deadline, "")?;
    read_end(&mut file, u64::MAX).map_err(&failed)
}

/// Runs `command` quietly; its output is part of the error.
///
/// # Errors
/// [`Error::Failed`] or [`Error::TimedOut`] unless it ended with success.
pub(crate) fn quiet(command: &mut Command, deadline: Duration) -> Result<String> {
    /// Bytes of output that an error shows.
    const SHOWN: u64 = 16 << 10;
    let captured = capture(command, deadline, SHOWN)?;
    expect_success(command, captured.end, deadline, &captured.output)?;
    Ok(captured.output)
}

/// Runs `command` to its end or its deadline, with the output streams it was given.
///
/// # Errors
/// Only if it cannot be started or waited for.
pub(crate) fn run(command: &mut Command, deadline: Duration) -> Result<End> {
    let failed = start_error(command);
    let mut child = command
        .stdin(Stdio::null())
        .process_group(0)
        .spawn()
        .map_err(&failed)?;
    let group = Pid::from_child(&child);
    running().insert(group.as_raw_pid());
    let end = supervise(&mut child, group, deadline);
    running().remove(&group.as_raw_pid());
    end.map_err(failed)
}

/// Runs `command` in the foreground, without a deadline: how long the user's program takes is the
/// user's choice, and the terminal's interrupt reaches it.
///
/// # Errors
/// Only if it cannot be started or waited for.
pub(crate) fn foreground(command: &mut Command) -> Result<ExitStatus> {
    let failed = start_error(command);
    command.stdin(Stdio::null()).status().map_err(failed)
}

/// The command as one would type it.
pub(crate) fn typed(command: &Command) -> String {
    let mut text = command.get_program().to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&argument.to_string_lossy());
    }
    text
}

fn supervise(child: &mut Child, group: Pid, deadline: Duration) -> std::io::Result<End> {
    const LONGEST_PAUSE: Duration = Duration::from_millis(20);
    let started = Instant::now();
    let mut pause = Duration::from_millis(1);
    // NOWAIT leaves the ended child as a zombie: its id, and so the group's, cannot be given to
    // another process before the group has been killed.
    let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let timed_out = loop {
        match waitid(WaitId::Pid(group), peek) {
            Ok(Some(_)) => break false,
            Ok(None) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        if started.elapsed() >= deadline {
            break true;
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(LONGEST_PAUSE);
    };
    let killed = kill_group(Some(group));
    if timed_out {
        // A child that runs as another user cannot be killed from here; waiting for it would have
        // no deadline.
        if killed {
            child.wait()?;
        }
        return Ok(End::TimedOut);
    }
    child.wait().map(End::Exited)
}

/// Whether the signal was sent. A group that has already gone is no error.
fn kill_group(group: Option<Pid>) -> bool {
    group.is_some_and(|group| kill_process_group(group, Signal::KILL).is_ok())
}

fn running() -> MutexGuard<'static, BTreeSet<i32>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn start_error(command: &Command) -> impl Fn(std::io::Error) -> Error + use<> {
    let program = command.get_program().to_string_lossy().into_owned();
    move |source| Error::Start {
        program: program.clone(),
        source,
    }
}

fn expect_success(command: &Command, end: End, after: Duration, output: &str) -> Result<()> {
    match end {
        End::Exited(status) if status.success() => Ok(()),
        End::Exited(status) => Err(Error::Failed {
            command: typed(command),
            status: status.to_string(),
            output: output.to_owned(),
        }),
        End::TimedOut => Err(Error::TimedOut {
            command: typed(command),
            after,
            output: output.to_owned(),
        }),
    }
}

/// The last `limit` bytes of a file that others may still have open.
fn read_end(file: &mut File, limit: u64) -> std::io::Result<String> {
    let length = file.metadata()?.len();
    let skipped = length.saturating_sub(limit);
    file.seek(SeekFrom::Start(skipped))?;
    let mut bytes = Vec::new();
    file.take(length - skipped).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes);
    Ok(if skipped > 0 {
        format!("[{skipped} bytes left out]\n{text}")
    } else {
        text.into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: Duration = Duration::from_secs(20);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn both_streams_are_captured_in_order() {
        let captured = capture(
            &mut shell("echo a; echo b >&2; echo c; exit 3"),
            SECONDS,
            1 << 10,
        );
        let captured = captured.unwrap();
        assert_eq!(captured.output, "a\nb\nc\n");
        assert!(matches!(captured.end, End::Exited(status) if status.code() == Some(3)));
        assert!(!captured.success());
    }

    #[test]
    fn a_deadline_ends_the_child_and_what_it_started() {
        // The grandchild would write the file after a second; killed with its group, it cannot.
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("late");
        let script = format!("(sleep 1; touch '{}') & echo started; wait", file.display());
        let captured = capture(&mut shell(&script), Duration::from_millis(300), 1 << 10).unwrap();
        assert_eq!(captured.end, End::TimedOut);
        assert_eq!(captured.output, "started\n");
        std::thread::sleep(Duration::from_millis(1200));
        assert!(!file.exists());
    }

    #[test]
    fn a_descendant_left_behind_does_not_delay_the_result() {
        let captured = capture(&mut shell("sleep 30 & echo done"), SECONDS, 1 << 10).unwrap();
        assert!(captured.success());
        assert_eq!(captured.output, "done\n");
        assert!(captured.elapsed < Duration::from_secs(10));
    }

    #[test]
    fn only_the_end_of_a_long_output_is_kept() {
        let captured = capture(&mut shell("printf 0123456789"), SECONDS, 4).unwrap();
        assert_eq!(captured.output, "[6 bytes left out]\n6789");
    }

    #[test]
    fn a_failure_carries_command_status_and_output() {
        let error = quiet(&mut shell("echo why >&2; exit 4"), SECONDS).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("exit status: 4") && text.contains("\n    why"),
            "{text}"
        );
    }
}
