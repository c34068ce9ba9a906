//! `cargo xtask test`: every test in a process of its own.
//!
//! A PJRT plugin lives as long as its process, and so do the environment it was created under and
//! the counters of compiles and executions. Tests that shared a process would see each other's.

mod build;
mod doctests;
mod execute;

use std::fmt;
use std::ops::AddAssign;
use std::process::Command;
use std::time::{Duration, Instant};

use clap::Args;

use crate::error::Result;
use crate::setup::Tool;
use crate::{check, note, setup};

/// Test programs that run a program of others, which is installed when one of their tests is to run.
const NEEDED: [(&str, Tool); 2] = [
    ("xla modes_torchrun", Tool::Torchrun),
    ("xla modes_notebook", Tool::Evcxr),
];

/// Which tests to run, and how.
#[derive(Args)]
pub(crate) struct Options {
    /// Run only tests whose name contains this text
    #[arg(long, value_name = "TEXT")]
    filter: Option<String>,
    /// Run only this package's tests; may be given several times
    #[arg(long, short, value_name = "NAME")]
    package: Vec<String>,
    /// Do not run the checks first
    #[arg(long)]
    no_check: bool,
    /// Tests at a time [default: the number of cores, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Seconds after which a test is ended and counts as failed
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    deadline: u64,
}

/// How many tests passed and failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Summary {
    passed: usize,
    failed: usize,
}

impl Summary {
    /// Whether something ran and nothing failed.
    pub(crate) fn succeeded(self) -> bool {
        self.failed == 0 && self.passed > 0
    }
}

impl AddAssign for Summary {
    fn add_assign(&mut self, other: Summary) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

/// Checks, then runs the tests and doctests; the closing line is printed last.
///
/// # Errors
/// If the tests cannot be built or found. Tests and checks that fail are in the summary.
pub(crate) fn run(options: &Options) -> Result<Summary> {
    let started = Instant::now();
    let gloo = setup::gloo();
    let mut summary = Summary::default();
    if !options.no_check {
        for name in check::run(gloo)? {
            println!("FAILED check {name}");
            summary.failed += 1;
        }
    }
    let mut build = build::build(&options.package, gloo)?;
    let filter = options.filter.as_deref();
    for (program, tool) in NEEDED {
        if execute::list(&build, filter)?
            .iter()
            .any(|test| test.is_of(program))
        {
            let path = tool.ensure()?;
            build.tell(program, tool.variable(), &path);
        }
    }
    let deadline = Duration::from_secs(options.deadline);
    let tests = execute::list(&build, filter)?;
    summary += execute::all(&tests, jobs(options), deadline);
    if build.has_library {
        summary += doctests::run(options, gloo)?;
    }
    note(format_args!(
        "tests took {:.0} s in all",
        started.elapsed().as_secs_f64()
    ));
    println!("{summary}");
    Ok(summary)
}

/// What tests see must not depend on what ran before them, and what they compile is nothing that the
/// user wants kept.
fn without_persistent_cache(command: &mut Command) {
    command.env("XLA_PERSISTENT_CACHE_PATH", "0");
}

fn jobs(options: &Options) -> usize {
    /// Each test may start a client with a thread pool as large as the machine.
    const MOST: usize = 8;
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    options.jobs.map_or(cores.min(MOST), usize::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_closing_line_has_its_exact_form() {
        let mut summary = Summary {
            passed: 3,
            failed: 0,
        };
        assert!(summary.succeeded());
        summary += Summary {
            passed: 9,
            failed: 1,
        };
        assert_eq!(summary.to_string(), "12 passed, 1 failed");
        assert!(!summary.succeeded());
        assert!(
            !Summary::default().succeeded(),
            "running nothing is no success"
        );
    }
}
