//! Starts programs of this crate and looks at what becomes of their processes.
#![allow(dead_code)] // each test uses some of it

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Longer than anything here takes on a busy machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// The worker program, without what a launcher may have left in this process's environment.
pub(crate) fn worker(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xla-launch-worker"));
    command
        .args(arguments)
        .env_remove("RUST_BACKTRACE")
        .stdin(Stdio::null());
    command
}

/// Runs a program to its end and returns what it wrote.
pub(crate) fn output(command: &mut Command) -> Output {
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    finished(child)
}

/// Waits for a program's end.
pub(crate) fn finished(child: Child) -> Output {
    let pid = child.id();
    let waiting = thread::spawn(move || child.wait_with_output().unwrap());
    let end = Instant::now() + PATIENCE;
    while !waiting.is_finished() {
        assert!(Instant::now() < end, "process {pid} does not end");
        thread::sleep(Duration::from_millis(20));
    }
    waiting.join().unwrap()
}

/// Whether the process exists and is no zombie.
pub(crate) fn is_alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(") ").next().unwrap_or("Z").starts_with('Z'))
}

/// Waits until none of the processes is left.
pub(crate) fn assert_gone(pids: &[u32]) {
    let end = Instant::now() + Duration::from_secs(10);
    while pids.iter().any(|pid| is_alive(*pid)) {
        // As the system has them: name, state, parent, group, session.
        let left: Vec<String> = pids
            .iter()
            .filter_map(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok())
            .map(|stat| stat.chars().take(60).collect())
            .collect();
        assert!(Instant::now() < end, "of {pids:?} are left: {left:#?}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until so many replicas have noted their processes in a folder, and returns those.
pub(crate) fn noted(folder: &Path, replicas: usize) -> Vec<u32> {
    let end = Instant::now() + PATIENCE;
    let file = |rank: usize| folder.join(rank.to_string());
    while (0..replicas).any(|rank| !file(rank).exists()) {
        assert!(Instant::now() < end, "not all replicas run");
        thread::sleep(Duration::from_millis(20));
    }
    (0..replicas)
        .flat_map(|rank| {
            let text = std::fs::read_to_string(file(rank)).unwrap();
            let pids: Vec<u32> = text.split(' ').map(|pid| pid.parse().unwrap()).collect();
            pids
        })
        .collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
