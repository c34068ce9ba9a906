//! What integration tests share.
//!
//! The plugin, its devices and the environment belong to the process and are fixed at their first
//! use, so a test runs in a process of its own, with the environment it asks for.
#![forbid(unsafe_code)]

pub mod check;
pub mod collectives;
pub mod conformance;
pub mod differences;
pub mod fuzz;
pub mod training;

use serde::Serialize;
use serde::de::DeserializeOwned;
use std::process::{Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use xla::{Launcher, Tensor, dist};

/// How long a test's process may take.
const DEADLINE: Duration = Duration::from_secs(240);

/// Tells a test's process that it is one.
const CHILD: &str = "XLA_TEST_PROCESS";

/// Runs a test in a process of its own with this many CPU devices.
///
/// # Panics
/// When the test panics, or does not end.
pub fn with_devices(n: usize, test: impl FnOnce()) {
    with_env(&[("CPU_NUM_DEVICES", &n.to_string())], test);
}

/// Runs a test that draws from the default generator in a process of its own: threads outside a launch
/// share it, so that one runs what another has recorded of it.
///
/// # Panics
/// As [`with_devices`], and when the test fails.
pub fn alone(test: impl FnOnce() -> xla::Result<()>) {
    with_devices(1, || test().unwrap());
}

/// Runs a test in a process of its own with these environment variables.
///
/// # Panics
/// As [`with_devices`].
pub fn with_env(variables: &[(&str, &str)], test: impl FnOnce()) {
    if let Some(status) = in_child(variables, test) {
        assert!(status.success(), "the test's process ended with {status}");
    }
}

/// The same for a test that ends its process itself: returns the exit status in the test's own
/// process only.
///
/// # Panics
/// When the process does not end.
pub fn exit_status(variables: &[(&str, &str)], test: impl FnOnce()) -> Option<ExitStatus> {
    in_child(variables, test)
}

/// Runs `f` on so many replicas with a process group and returns what each returned.
///
/// # Panics
/// When a replica fails.
pub fn replicas<T: Send>(n: usize, f: impl Fn(usize) -> xla::Result<T> + Send + Sync) -> Vec<T> {
    Launcher::new()
        .devices(n)
        .deadline(Duration::from_secs(60))
        .run(|rank| {
            dist::init_process_group("xla", "xla://")?;
            f(rank)
        })
        .unwrap()
}

/// A launch of so many processes of so many devices, each of which runs the calling test again, up to
/// this launch.
pub fn processes(processes: usize, devices: usize) -> Launcher {
    Launcher::new()
        .processes(processes)
        .devices(devices)
        .deadline(Duration::from_secs(60))
        .worker_args([test_name().as_str(), "--exact", "--nocapture"])
}

/// [`replicas`] in so many processes of so many devices: what each rank returned.
///
/// # Panics
/// When a replica fails.
pub fn spawned<T: Serialize + DeserializeOwned + Send>(
    processes: usize,
    devices: usize,
    f: impl Fn(usize) -> xla::Result<T> + Send + Sync,
) -> Vec<T> {
    self::processes(processes, devices)
        .run_serialized(|rank| {
            dist::init_process_group("xla", "xla://")?;
            f(rank)
        })
        .unwrap()
}

/// `[r + 1, 2 (r + 1)]` on rank `r`.
///
/// # Errors
/// Whatever keeps the tensor from being made.
pub fn multiples(rank: usize) -> xla::Result<Tensor> {
    let first = rank as f32 + 1.0;
    Tensor::from_slice(&[first, 2.0 * first], [2], ())
}

/// Runs `test` and returns `None` in the child; starts the child and waits for it otherwise.
fn in_child(variables: &[(&str, &str)], test: impl FnOnce()) -> Option<ExitStatus> {
    if std::env::var_os(CHILD).is_some() {
        test();
        return None;
    }
    let name = test_name();
    let mut child = Command::new(std::env::current_exe().expect("a running test has a path"))
        .args([name.as_str(), "--exact", "--nocapture"])
        .env(CHILD, "1")
        // What a test sees must not depend on what ran before it.
        .env("XLA_PERSISTENT_CACHE_PATH", "0")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .spawn()
        .expect("a test can start itself again");
    let end = Instant::now() + DEADLINE;
    loop {
        if let Some(status) = child.try_wait().expect("the child was started here") {
            return Some(status);
        }
        if Instant::now() > end {
            let _ = child.kill();
            panic!("{name} did not end within {DEADLINE:?}");
        }
        thread::sleep(Duration::from_millis(10));
    }
}

/// The running test's name: its thread's, or, where tests run on the main thread, what the process
/// was asked to run.
fn test_name() -> String {
    match thread::current().name() {
        Some(name) if name != "main" => name.to_owned(),
        _ => std::env::args()
            .skip(1)
            .find(|argument| !argument.starts_with('-'))
            .expect("one test is named where tests run on the main thread"),
    }
}
