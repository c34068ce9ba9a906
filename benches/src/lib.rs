//! This project's side of the benchmarks: work that is timed, and how it is reported.
//!
//! Every work has the shapes, the optimizer and the output of the same work in `peers.py`, so that
//! `cargo xtask bench --against` can run both in turn. A line of JSON says how long it took:
//!
//! | field | meaning |
//! | --- | --- |
//! | `step_s` | median seconds of a step that is waited for |
//! | `pipelined_s` | seconds a step where only the last of many is waited for |
//! | `compile_s` | how much longer the first step took than the median |
//! | `peak_rss_mb` | the most memory that the process has had resident, in MiB |
//! | `allocations` | heap allocations of the Rust side a step, in all threads |
//! | `operator_ns` | `pipelined_s` for each operator of a chain, in nanoseconds |
//! | `launch_s` | of `first`: seconds from the process's start to the launched function's first line |
//! | `ready_s` | of `first`: and to the model's initialised parameters |
//!
//! `all_reduce` prints a line for each way to reduce and each size.
#![forbid(unsafe_code)]

mod allocations;
mod memory;
mod timing;
mod works;

pub use works::run;

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Instant, SystemTime};
use std::{env, io};

/// How often a step is timed, and how it records.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct Options {
    /// Steps that are timed, each way
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub steps: u32,
    /// Steps before the first that is timed
    #[arg(long, default_value_t = 5)]
    pub warmup: u32,
    /// Record gradients too (the tensor that a chain begins with requires one)
    #[arg(long)]
    pub grad: bool,
}

/// Says when the process was started, in seconds since the Unix epoch, so that what comes before
/// `main` counts.
pub const STARTED: &str = "XLA_BENCH_STARTED";

/// When the process was started: as [`STARTED`] says, else `main`.
pub fn started(main: Instant) -> Instant {
    let told = env::var(STARTED).ok();
    let epoch = told.and_then(|seconds| seconds.parse::<f64>().ok());
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let (Some(epoch), Ok(now)) = (epoch, now) else {
        return main;
    };
    let ago = std::time::Duration::try_from_secs_f64(now.as_secs_f64() - epoch);
    ago.ok()
        .and_then(|ago| Instant::now().checked_sub(ago))
        .unwrap_or(main)
}

/// Starts this program anew with so many CPU devices where the environment does not say how many:
/// they are counted once, and what is in a process's environment only its start can say.
///
/// # Errors
/// What kept it from being started.
pub fn with_devices(count: usize) -> io::Result<()> {
    const COUNT: &str = "CPU_NUM_DEVICES";
    if env::var_os(COUNT).is_some() {
        return Ok(());
    }
    let mut again = Command::new(env::current_exe()?);
    again.args(env::args_os().skip(1));
    Err(again.env(COUNT, count.to_string()).exec())
}
