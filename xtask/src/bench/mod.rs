//! `cargo xtask bench`: measures this project, alone or beside its peers.

mod against;
mod machine;
mod peer;
mod table;
mod work;

use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::Args;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::{process, programs, setup, workspace};
use peer::Peer;
use work::Work;

/// What to measure, and for how long.
#[derive(Args)]
pub(crate) struct Bench {
    /// chain-N, such as chain-2000, mlp, cnn, gpt, gpt-spmd, ddp, first or all_reduce
    #[arg(required_unless_present = "against", conflicts_with = "against")]
    work: Option<String>,
    #[command(flatten)]
    options: Options,
    /// Measure these too, in turn with this project, and print a table: jax, torch_xla, torch
    ///
    /// Each is installed with pip into a folder of the user's cache the first time (JAX 0.4 GB,
    /// PyTorch 6 GB on disk). With XLA_BENCH_PYTHON set, that interpreter runs them and nothing is
    /// installed.
    #[arg(long, value_delimiter = ',')]
    against: Vec<Peer>,
    /// Measure these works only, such as `--works "gpt,chain-2000 --grad"` [default: all]
    #[arg(long, value_delimiter = ',', requires = "against")]
    works: Vec<Work>,
    /// How often each is measured, each time in a new process; the table has the medians
    #[arg(long, requires = "against", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Keep table and measurements in benches/results, with date, machine and versions
    #[arg(long, requires = "against")]
    save: bool,
}

/// What one measurement is told.
#[derive(Args, Clone, Copy, Default)]
struct Options {
    /// Timed steps
    #[arg(long)]
    steps: Option<u32>,
    /// Steps before timing starts
    #[arg(long)]
    warmup: Option<u32>,
    /// Record gradients (chains only)
    #[arg(long, conflicts_with = "against")]
    grad: bool,
}

/// Where a program keeps what it has compiled.
const CACHE: &str = "XLA_PERSISTENT_CACHE_PATH";

/// How many devices a process has.
const CPU_DEVICES: &str = "CPU_NUM_DEVICES";

/// Measures one work, or compares. Standard output carries the JSON line or the table only.
///
/// # Errors
/// If something cannot be built, installed or saved. A work that fails is an exit code.
pub(crate) fn run(bench: &Bench) -> Result<ExitCode> {
    let program = build()?;
    let Some(work) = &bench.work else {
        return against::run(bench, &program);
    };
    let mut command = Command::new(program);
    command.arg(work).args(arguments(bench.options));
    if let Ok(work) = work.parse::<Work>()
        && let Some(devices) = work.devices()
    {
        command.env(CPU_DEVICES, devices);
    }
    // What an earlier run has compiled would shorten the compilation.
    let cache =
        tempfile::tempdir().map_err(Error::file("create a folder in", &std::env::temp_dir()))?;
    if std::env::var_os(CACHE).is_none() {
        command.env(CACHE, cache.path());
    }
    programs::run(&mut command)
}

fn arguments(options: Options) -> Vec<String> {
    let mut arguments = Vec::new();
    for (flag, value) in [("--steps", options.steps), ("--warmup", options.warmup)] {
        if let Some(value) = value {
            arguments.extend([flag.to_owned(), value.to_string()]);
        }
    }
    if options.grad {
        arguments.push("--grad".to_owned());
    }
    arguments
}

/// From nothing, on two cores.
const BUILD_DEADLINE: Duration = Duration::from_secs(30 * 60);

/// Builds this project's side and returns its path, so that no cargo runs while it measures.
fn build() -> Result<PathBuf> {
    let mut command = workspace::cargo();
    command.args(["build", "--release", "--quiet", "--bin", "bench"]);
    command.arg("--message-format=json-render-diagnostics");
    command.args(workspace::selection(&["benches".to_owned()], setup::gloo()));
    let messages = process::stdout_of(&mut command, BUILD_DEADLINE)?;
    executable(&messages).ok_or_else(|| Error::Output {
        command: process::typed(&command),
        reason: "no program was named".to_owned(),
    })
}

/// The program in cargo's messages.
fn executable(messages: &str) -> Option<PathBuf> {
    #[derive(Deserialize)]
    struct Message {
        executable: Option<PathBuf>,
    }
    let messages = messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok());
    messages
        .filter_map(|message| message.executable)
        .next_back()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measurement_is_told_what_was_given_and_nothing_else() {
        assert_eq!(arguments(Options::default()), [""; 0]);
        let options = Options {
            steps: Some(7),
            warmup: Some(2),
            grad: true,
        };
        let expected = ["--steps", "7", "--warmup", "2", "--grad"];
        assert_eq!(arguments(options), expected);
    }

    #[test]
    fn the_program_is_what_cargo_says() {
        let messages = "{\"reason\":\"compiler-artifact\",\"executable\":null}\n\
                        {\"reason\":\"compiler-artifact\",\"executable\":\"/t/release/bench\"}\n\
                        {\"reason\":\"build-finished\",\"success\":true}\n";
        assert_eq!(
            executable(messages),
            Some(PathBuf::from("/t/release/bench"))
        );
        assert_eq!(executable("{\"reason\":\"build-finished\"}"), None);
    }
}
