//! The digits example, run as a program: on four devices, on one, and in debug mode.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(180);

/// Cargo builds a package's examples next to its tests.
fn example() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    let profile = test
        .ancestors()
        .nth(2)
        .expect("tests lie in the deps folder of a profile");
    profile.join("examples").join("digits")
}

/// The test accuracy in per cent that the example prints. Its exit status says whether it stayed
/// within the numbers of compiles that it states.
fn accuracy(variables: &[(&str, &str)], devices: &str) -> f64 {
    let mut child = Command::new(example())
        .args(["--epochs", "5"])
        .env_remove("XLA_LAUNCH_MODE")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("cargo test -p xla builds the example before it runs this test");
    let end = Instant::now() + DEADLINE;
    while child
        .try_wait()
        .expect("the child was started here")
        .is_none()
    {
        if Instant::now() > end {
            let _ = child.kill();
            panic!("the example did not end within {DEADLINE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = child.wait_with_output().expect("its output is piped");
    let text = String::from_utf8(output.stdout).expect("the example prints text");
    assert!(output.status.success(), "{}\n{text}", output.status);
    let value = |label: &str| -> String {
        text.lines()
            .find_map(|line| line.strip_prefix(label))
            .unwrap_or_else(|| panic!("no {label:?} in {text}"))
            .trim_matches([' ', '%'])
            .to_owned()
    };
    assert_eq!(value("devices"), devices);
    value("test accuracy").parse().expect("a number")
}

#[test]
fn four_devices_one_device_and_debug_mode_learn_the_same() {
    let four = accuracy(&[("CPU_NUM_DEVICES", "4")], "4");
    let one = accuracy(&[("CPU_NUM_DEVICES", "1")], "1");
    let debug = accuracy(
        &[("CPU_NUM_DEVICES", "4"), ("XLA_LAUNCH_MODE", "debug")],
        "1",
    );
    for accuracy in [four, one, debug] {
        assert!(accuracy >= 94.0, "{four} {one} {debug}");
        assert!((accuracy - one).abs() <= 1.0, "{four} {one} {debug}");
    }
}
