//! The programs that a user runs through `cargo xtask`: the demo, the conformance cases and random
//! arguments.

use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus};

use clap::Args;

use crate::error::Result;
use crate::{process, setup, workspace};

/// How many CPU devices the demo trains on unless `CPU_NUM_DEVICES` is set.
const DEMO_DEVICES: &str = "4";

/// Trains the digits example, passing `arguments` on to it.
pub(crate) fn demo(arguments: &[String]) -> Result<ExitCode> {
    let mut command = workspace::cargo();
    command.args(["run", "--release", "--example", "digits"]);
    command.args(workspace::selection(&["xla".to_owned()], setup::gloo()));
    command.arg("--").args(arguments);
    if std::env::var_os("CPU_NUM_DEVICES").is_none() {
        command.env("CPU_NUM_DEVICES", DEMO_DEVICES);
    }
    run(&mut command)
}

/// What to compare.
#[derive(Args)]
pub(crate) struct Conformance {
    /// A folder of cases, one that holds such folders, or a file; `tests/data` has those committed
    path: PathBuf,
    /// Only cases whose id contains this
    #[arg(long)]
    filter: Option<String>,
}

/// Compares operators, training runs and random bits with what others computed.
pub(crate) fn conformance(options: &Conformance) -> Result<ExitCode> {
    let mut command = workspace::cargo();
    command.args(["run", "-p", "tests", "--bin", "conformance", "--"]);
    command.arg(std::path::absolute(&options.path).unwrap_or_else(|_| options.path.clone()));
    if let Some(filter) = &options.filter {
        command.args(["--filter", filter]);
    }
    run(&mut command)
}

/// What to throw random arguments at, and for how long.
#[derive(Args)]
pub(crate) struct Fuzz {
    /// How long to go on
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Only operators whose name contains this
    #[arg(long)]
    filter: Option<String>,
    /// Begin with these cases; another number, other cases [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// Only record: shapes, dtypes and checks, without compiling
    #[arg(long)]
    record: bool,
}

/// Throws random arguments at operators until the time is up.
pub(crate) fn fuzz(options: &Fuzz) -> Result<ExitCode> {
    let mut command = workspace::cargo();
    command.args(["run", "-p", "tests", "--bin", "fuzz", "--"]);
    command.args(["--minutes", &options.minutes.to_string()]);
    if let Some(filter) = &options.filter {
        command.args(["--filter", filter]);
    }
    if let Some(seed) = options.seed {
        command.args(["--seed", &seed.to_string()]);
    }
    if options.record {
        command.arg("--record");
    }
    run(&mut command)
}

/// Runs a program in the foreground and passes its exit code on.
pub(crate) fn run(command: &mut Command) -> Result<ExitCode> {
    process::foreground(command).map(exit_code_of)
}

/// The child's exit code; failure if a signal ended it.
fn exit_code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}
