//! The digits example, unchanged, in every mode of a launch that needs no program of others: it
//! learns the same in each.

mod digits;

use digits::{assert_same_as_one_device, run};

#[test]
fn a_thread_for_each_device() {
    let printed = run(&[("CPU_NUM_DEVICES", "4")]);
    assert_same_as_one_device(&printed, 4);
}

#[test]
fn debug_mode_is_one_device_of_four() {
    let printed = run(&[("CPU_NUM_DEVICES", "4"), ("XLA_LAUNCH_MODE", "debug")]);
    assert_same_as_one_device(&printed, 1);
}

/// One program over all four devices, so there is one rank.
#[test]
fn one_partitioned_program() {
    let printed = run(&[("CPU_NUM_DEVICES", "4"), ("XLA_USE_SPMD", "1")]);
    assert_same_as_one_device(&printed, 1);
}

#[cfg(feature = "gloo")]
#[test]
fn two_processes() {
    let printed = run(&[("CPU_NUM_DEVICES", "1"), ("XLA_LAUNCH_PROCESSES", "2")]);
    assert_same_as_one_device(&printed, 2);
}

#[cfg(feature = "gloo")]
#[test]
fn two_processes_of_two_threads() {
    let printed = run(&[("CPU_NUM_DEVICES", "2"), ("XLA_LAUNCH_PROCESSES", "2")]);
    assert_same_as_one_device(&printed, 4);
}
