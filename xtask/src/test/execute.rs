//! Lists the tests of each program and runs each in a process of its own.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use super::Summary;
use super::build::{Build, Program};
use crate::error::Result;
use crate::process::{self, Captured, End};
use crate::{note, workspace};

/// Listing does nothing but print.
const LIST_DEADLINE: Duration = Duration::from_secs(60);
/// Bytes of a failed test's output that are shown.
const SHOWN: u64 = 64 << 10;
/// How often progress is reported while nothing else is.
const HEARTBEAT: Duration = Duration::from_secs(30);

/// One test function.
#[derive(Debug)]
pub(super) struct Test<'a> {
    program: &'a Program,
    name: String,
    ignored: bool,
}

impl Test<'_> {
    /// Whether it belongs to the program of this name.
    pub(super) fn is_of(&self, program: &str) -> bool {
        self.program.name == program
    }
}

/// Every test of every program whose name contains `filter`.
///
/// # Errors
/// If a program cannot be started or does not list its tests.
pub(super) fn list<'a>(build: &'a Build, filter: Option<&str>) -> Result<Vec<Test<'a>>> {
    let mut tests = Vec::new();
    for program in &build.programs {
        let ignored = names(program, &["--ignored"])?;
        for name in names(program, &[])? {
            if filter.is_none_or(|text| name.contains(text) || program.name.contains(text)) {
                tests.push(Test {
                    program,
                    ignored: ignored.contains(&name),
                    name,
                });
            }
        }
    }
    Ok(tests)
}

/// Runs the tests, `jobs` at a time, printing each that fails.
pub(super) fn all(tests: &[Test], jobs: usize, deadline: Duration) -> Summary {
    note(format_args!(
        "running {} tests, each in a process, {jobs} at a time",
        tests.len()
    ));
    let next = AtomicUsize::new(0);
    let (sender, results) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(test) = tests.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // The receiver is gone only if this process is ending.
                    let _ = sender.send((test, outcome(test, deadline)));
                }
            });
        }
        drop(sender);
        collect(tests.len(), &results)
    })
}

/// Why a test failed, with what it printed; nothing if it passed.
type Outcome<'a> = (&'a Test<'a>, (Duration, Option<Failure>));

struct Failure {
    reason: String,
    output: String,
}

fn collect(total: usize, results: &mpsc::Receiver<Outcome>) -> Summary {
    let mut summary = Summary::default();
    let mut times = Vec::new();
    let mut reported = Instant::now();
    loop {
        match results.recv_timeout(HEARTBEAT) {
            Ok((test, (elapsed, failure))) => {
                times.push((elapsed, test));
                match failure {
                    None => summary.passed += 1,
                    Some(failure) => {
                        summary.failed += 1;
                        println!(
                            "FAILED {} {}: {}",
                            test.program.name, test.name, failure.reason
                        );
                        for line in failure.output.lines() {
                            println!("    {line}");
                        }
                    }
                }
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => break,
        }
        if reported.elapsed() >= HEARTBEAT {
            reported = Instant::now();
            note(format_args!("{} of {total} tests done", times.len()));
        }
    }
    report_slowest(times);
    summary
}

fn report_slowest(mut times: Vec<(Duration, &Test)>) {
    const MANY: usize = 5;
    const SLOW: Duration = Duration::from_secs(5);
    times.sort_by_key(|(elapsed, _)| std::cmp::Reverse(*elapsed));
    for (elapsed, test) in times
        .iter()
        .take(MANY)
        .filter(|(elapsed, _)| *elapsed >= SLOW)
    {
        let seconds = elapsed.as_secs_f64();
        note(format_args!(
            "slow: {} {} took {seconds:.1} s",
            test.program.name, test.name
        ));
    }
}

fn outcome(test: &Test, deadline: Duration) -> (Duration, Option<Failure>) {
    let failed = |reason: String, output: String| Some(Failure { reason, output });
    if test.ignored {
        return (Duration::ZERO, failed("ignored".to_owned(), String::new()));
    }
    let mut command = command(test.program);
    command.args([test.name.as_str(), "--exact", "--nocapture"]);
    match process::capture(&mut command, deadline, SHOWN) {
        Err(error) => (Duration::ZERO, failed(error.to_string(), String::new())),
        Ok(captured) => {
            let reason = failure(&captured, deadline);
            let elapsed = captured.elapsed;
            (
                elapsed,
                reason.and_then(|reason| failed(reason, captured.output)),
            )
        }
    }
}

/// Why the test did not pass, if it did not.
fn failure(captured: &Captured, deadline: Duration) -> Option<String> {
    match captured.end {
        End::TimedOut => Some(format!("not done after {} s", deadline.as_secs())),
        End::Exited(status) if !status.success() => Some(status.to_string()),
        // A test that ends its process early leaves no result behind.
        End::Exited(_)
            if !captured
                .output
                .contains("test result: ok. 1 passed; 0 failed;") =>
        {
            Some("the process ended before the test did".to_owned())
        }
        End::Exited(_) => None,
    }
}

fn names(program: &Program, arguments: &[&str]) -> Result<Vec<String>> {
    let mut command = command(program);
    command
        .args(["--list", "--format", "terse"])
        .args(arguments);
    let output = process::stdout_of(&mut command, LIST_DEADLINE)?;
    Ok(output
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .map(str::to_owned)
        .collect())
}

/// The program as cargo would start it.
fn command(program: &Program) -> Command {
    let mut command = Command::new(&program.executable);
    workspace::without_own_variables(&mut command);
    command.current_dir(&program.folder);
    super::without_persistent_cache(&mut command);
    command.envs(
        program
            .environment
            .iter()
            .map(|(name, value)| (name, value)),
    );
    command
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};

    use super::*;

    /// A shell script that stands for a test program: lists five tests and acts each out.
    const SCRIPT: &str = r#"#!/bin/sh
case "$*" in
  "--list --format terse") printf 'passes: test\nfails: test\nhangs: test\nskipped: test\nexits: test\n' ;;
  "--list --format terse --ignored") echo 'skipped: test' ;;
  "passes --exact --nocapture") echo "in $(basename "$PWD") with $NAME"
     echo 'test result: ok. 1 passed; 0 failed; 0 ignored' ;;
  "fails --exact --nocapture") echo 'left: 1'; exit 101 ;;
  "hangs --exact --nocapture") sleep 60 ;;
  "exits --exact --nocapture") exit 0 ;;
  *) exit 7 ;;
esac
"#;

    fn program(folder: &Path) -> Build {
        let executable: PathBuf = folder.join("program");
        std::fs::write(&executable, SCRIPT).unwrap();
        std::fs::set_permissions(&executable, std::fs::Permissions::from_mode(0o755)).unwrap();
        Build {
            programs: vec![Program {
                executable,
                name: "package lib".to_owned(),
                folder: folder.to_path_buf(),
                environment: vec![("NAME".to_owned(), "value".to_owned())],
            }],
            has_library: false,
        }
    }

    #[test]
    fn every_test_runs_and_only_the_one_that_finished_passes() {
        let folder = tempfile::tempdir().unwrap();
        let build = program(folder.path());
        let tests = list(&build, None).unwrap();
        let names: Vec<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names, ["passes", "fails", "hangs", "skipped", "exits"]);

        let reasons: Vec<Option<String>> = tests
            .iter()
            .map(|test| {
                outcome(test, Duration::from_secs(2))
                    .1
                    .map(|failure| failure.reason)
            })
            .collect();
        let expected = [
            None,
            Some("exit status: 101"),
            Some("not done after 2 s"),
            Some("ignored"),
            Some("the process ended before the test did"),
        ];
        assert_eq!(reasons, expected.map(|reason| reason.map(str::to_owned)));

        let summary = all(&tests, 2, Duration::from_secs(2));
        assert_eq!(
            summary,
            Summary {
                passed: 1,
                failed: 4
            }
        );
    }

    #[test]
    fn a_filter_looks_at_test_and_program() {
        let folder = tempfile::tempdir().unwrap();
        let build = program(folder.path());
        let count = |text| list(&build, Some(text)).unwrap().len();
        assert_eq!(count("pass"), 1);
        assert_eq!(count("package lib"), 5);
        assert_eq!(count("nothing"), 0);
    }

    #[test]
    fn a_test_runs_in_its_folder_with_its_environment() {
        let folder = tempfile::tempdir().unwrap();
        let build = program(folder.path());
        let mut command = command(&build.programs[0]);
        command.args(["passes", "--exact", "--nocapture"]);
        let captured = process::capture(&mut command, Duration::from_secs(20), SHOWN).unwrap();
        let name = folder
            .path()
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned();
        assert!(
            captured
                .output
                .starts_with(&format!("in {name} with value\n"))
        );
    }
}
