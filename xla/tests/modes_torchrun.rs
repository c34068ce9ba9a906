//! The digits example, unchanged, under PyTorch's own launcher.
#![cfg(feature = "gloo")]

mod digits;

use digits::{ARGUMENTS, Running, assert_same_as_one_device, example, installed};
use std::process::Command;

#[test]
fn torchrun_starts_two_processes() {
    let mut command = Command::new(installed("XLA_TEST_TORCHRUN"));
    // `--standalone` finds a free port, so that tests may run at the same time.
    command.args(["--standalone", "--no-python", "--nproc-per-node", "2"]);
    command.arg(example()).args(ARGUMENTS);
    let printed = Running::start(&mut command).printed();
    assert_same_as_one_device(&printed, 2);
}
