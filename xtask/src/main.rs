//! `cargo xtask …`: set-up, checks, tests, demo and benchmark of the workspace.
//!
//! This crate depends on no other crate of the workspace and on nothing that needs libclang or
//! protoc to build, because it is what installs them: `cargo xtask` has to start on a machine that
//! has Rust and nothing else.

#![forbid(unsafe_code)]

mod bench;
mod check;
mod error;
mod layering;
mod process;
mod programs;
mod setup;
mod test;
mod workspace;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::error::Result;

/// Tasks of the XLA for Rust workspace.
#[derive(Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    arg_required_else_help = true,
    disable_help_subcommand = true
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Make sure of libclang, protoc, Gloo and the XLA CPU plugin
    ///
    /// Installs libclang with its headers, protoc and Gloo with the system's package manager where
    /// that is allowed, and otherwise prints the command to run. Without Gloo everything works but
    /// process groups that span processes on the CPU. The plugin is downloaded once with pip,
    /// checked against its SHA-256 and kept in the user's cache folder; with PJRT_LIBRARY_PATH set,
    /// that plugin is used and nothing is downloaded.
    Setup(SetupArgs),
    /// Check formatting, lints, documentation and the layering of the crates
    Check,
    /// Set up, check, then run every test and doctest, each test in a process of its own
    ///
    /// Before the tests that run torchrun and evcxr, these are installed into the user's cache
    /// folder. The last line is `N passed, N failed`; a failed check counts as a failure, and so
    /// does an ignored test.
    Test(test::Options),
    /// Set up, then train the digits example in release mode
    ///
    /// CPU_NUM_DEVICES is 4 unless set. Arguments go to the example: `cargo xtask demo -- --help`.
    Demo {
        /// Arguments of the example
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Set up, then measure one workload in release mode and print its JSON line
    Bench(bench::Bench),
    /// Set up, then compare with values that others computed
    ///
    /// One line for each case that differs; the last line is `N passed, N failed`.
    Conformance(programs::Conformance),
    /// Set up, then throw random arguments at every operator until the time is up
    Fuzz(programs::Fuzz),
    /// Report whether libclang can parse the standard C headers
    ///
    /// A process of its own: a broken library may crash it, and each attempt searches anew.
    #[command(hide = true)]
    ProbeLibclang,
}

#[derive(Args)]
struct SetupArgs {
    /// Which CPU plugin to install: `a` is the default of x86-64, `c` that of aarch64, `b` a
    /// second one to test against
    #[arg(long, value_enum)]
    plugin: Option<setup::PluginId>,
    /// Hash the installed plugin again even when it looks unchanged
    #[arg(long)]
    verify: bool,
    /// Install PyTorch's torchrun too, for its test (about 2 GB to download, 4 GB on disk)
    #[arg(long)]
    torchrun: bool,
    /// Install evcxr too, for the notebook's test (compiled from source)
    #[arg(long)]
    evcxr: bool,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    if let Err(error) = process::end_children_on_signals() {
        eprintln!("xtask: {error}");
    }
    match run(cli.task) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(task: Task) -> Result<ExitCode> {
    match task {
        Task::Setup(arguments) => {
            setup::run(arguments.plugin, arguments.verify)?;
            setup::gloo();
            let tools = [
                (arguments.torchrun, setup::Tool::Torchrun),
                (arguments.evcxr, setup::Tool::Evcxr),
            ];
            for (_, tool) in tools.iter().filter(|(wanted, _)| *wanted) {
                tool.ensure()?;
            }
            Ok(ExitCode::SUCCESS)
        }
        Task::Check => {
            setup::prerequisites()?;
            let failed = check::run(setup::gloo())?;
            Ok(exit_code(failed.is_empty()))
        }
        Task::Test(options) => {
            setup::run(None, false)?;
            let summary = test::run(&options)?;
            Ok(exit_code(summary.succeeded()))
        }
        Task::Demo { arguments } => {
            setup::run(None, false)?;
            programs::demo(&arguments)
        }
        Task::Bench(options) => {
            setup::run(None, false)?;
            bench::run(&options)
        }
        Task::Conformance(options) => {
            setup::run(None, false)?;
            programs::conformance(&options)
        }
        Task::Fuzz(options) => {
            setup::run(None, false)?;
            programs::fuzz(&options)
        }
        Task::ProbeLibclang => match setup::probe_libclang() {
            Ok(version) => {
                println!("{version}");
                Ok(ExitCode::SUCCESS)
            }
            Err(reason) => {
                println!("{reason}");
                Ok(ExitCode::FAILURE)
            }
        },
    }
}

fn exit_code(success: bool) -> ExitCode {
    if success {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// Says on standard error what is happening; standard output is kept for results.
fn note(message: impl std::fmt::Display) {
    eprintln!("xtask: {message}");
}
