//! Replicas in processes of their own: values, failures, and that nobody is left.

mod common;

use common::{assert_gone, finished, is_alive, noted, output, text, worker};
use rustix::process::{Pid, Signal, kill_process};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};
use tempfile::TempDir;
use xla_core::Error;
use xla_launch::Launcher;

/// What the worker printed, if it ended well.
fn printed(scenario: &str) -> String {
    let output = output(&mut worker(&[scenario]));
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).trim().to_owned()
}

/// The error that the worker ended with.
fn failed(scenario: &str) -> String {
    let output = output(&mut worker(&[scenario]));
    assert_eq!(output.status.code(), Some(1));
    let errors = text(&output.stderr);
    let own: Vec<&str> = errors
        .lines()
        .filter(|line| line.starts_with("Error: "))
        .collect();
    own.join("\n")
}

#[test]
fn values_come_by_rank_from_two_processes_of_two_replicas() {
    // Rank, world size, device, and RANK, which counts processes.
    let expected = r#"[(0, 4, 0, "0"), (1, 4, 1, "0"), (2, 4, 0, "1"), (3, 4, 1, "1")]"#;
    assert_eq!(printed("values"), expected);
}

#[test]
fn forks_return_values_too() {
    assert_eq!(printed("fork"), r#"[(0, 2, 0, "0"), (1, 2, 0, "1")]"#);
}

#[test]
fn earlier_launches_return_what_they_returned() {
    let lines = printed("twice");
    assert_eq!(lines, "[true, true]\nErr(\"rank 1 failed: disk full\")");
}

#[test]
fn a_program_that_a_rank_starts_is_no_part_of_the_launch() {
    let own = r#"[(0, 2, 0, \"0\"), (1, 2, 0, \"1\")]"#;
    assert_eq!(printed("grandchild"), format!(r#"["{own}", "{own}"]"#));
}

#[test]
fn failures_come_back_whole_and_end_the_others() {
    for (scenario, expected) in [
        ("error", r#"rank: 2, message: "disk full""#),
        (
            "panic",
            r#"rank: 2, message: "panicked: out of ideas (at xla-launch/tests/common/worker.rs:"#,
        ),
        (
            "exit",
            r#"rank: 2, message: "its process, of ranks 2 to 3, ended with exit code 3 before its function had returned; its last words were:\nfamous last words""#,
        ),
        (
            "exit-0",
            r#"rank: 2, message: "its process, of ranks 2 to 3, ended with exit code 0 before its function had returned""#,
        ),
        (
            "abort",
            "was killed by SIGABRT before its function had returned",
        ),
        (
            "kill",
            "was killed by SIGKILL before its function had returned",
        ),
        // The other process, which is stopped, is ended all the same.
        (
            "stopped-other",
            r#"rank: 2, message: "the other one is stopped""#,
        ),
        ("values-of-any-type", "use run_serialized"),
    ] {
        let error = failed(scenario);
        assert!(error.contains(expected), "{scenario}: {error}");
    }
}

#[test]
fn output_is_prefixed_and_none_is_lost() {
    let output = output(&mut worker(&["output"]));
    assert!(output.status.success());
    let lines = text(&output.stdout);
    for rank in 0..2 {
        let prefix = format!("[{rank}] ");
        let got: Vec<&str> = lines
            .lines()
            .filter_map(|line| line.strip_prefix(&prefix))
            .collect();
        let mut expected: Vec<String> = (0..20_000)
            .map(|line| format!("line {line} of rank {rank}"))
            .collect();
        expected.push("the end".into());
        assert_eq!(got.len(), expected.len());
        assert!(got == expected, "rank {rank}");
    }
    assert_eq!(lines.lines().count(), 40_002);
    let mut errors: Vec<String> = text(&output.stderr).lines().map(str::to_owned).collect();
    errors.sort_unstable();
    assert_eq!(errors, ["[0] an error", "[1] an error"]);
}

#[test]
fn without_prefixes_output_is_as_it_was() {
    let output = output(worker(&["output"]).env("XLA_LAUNCH_LOG_PREFIX", "0"));
    assert!(output.status.success());
    assert!(text(&output.stdout).starts_with("line 0 of rank"));
    assert_eq!(text(&output.stderr), "an error".repeat(2));
}

/// A launch of four replicas that sleep, and the processes of each: its own, and one that it has
/// started.
fn sleeping(folder: &TempDir) -> (Child, Vec<u32>) {
    let path = folder.path().to_string_lossy().into_owned();
    let child = worker(&["sleep", &path])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pids = noted(folder.path(), 4);
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    (child, pids)
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn no_process_outlives_a_parent_that_is_killed() {
    let folder = TempDir::new().unwrap();
    let (child, pids) = sleeping(&folder);
    signal(&child, Signal::KILL);
    assert_eq!(finished(child).status.signal(), Some(9));
    assert_gone(&pids);
}

#[test]
fn signals_to_the_parent_reach_all() {
    for (number, kind) in [(15, Signal::TERM), (2, Signal::INT), (1, Signal::HUP)] {
        let folder = TempDir::new().unwrap();
        let (child, pids) = sleeping(&folder);
        signal(&child, kind);
        assert_eq!(finished(child).status.code(), Some(128 + number));
        assert_gone(&pids);
    }
}

#[test]
fn a_test_can_launch_processes_by_naming_itself() {
    let name = "a_test_can_launch_processes_by_naming_itself";
    let launcher = Launcher::new().processes(2);
    let refused = launcher.clone().run_serialized(Ok::<usize, Error>);
    assert!(matches!(refused, Err(Error::Launch { .. })), "{refused:?}");
    let values = launcher
        .worker_args([name, "--exact", "--nocapture"])
        .run_serialized(|rank| Ok::<_, Error>(10 * rank));
    assert_eq!(values.unwrap(), [0, 10]);
}
