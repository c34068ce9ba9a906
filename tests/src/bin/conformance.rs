//! Compares operators, training runs and random bits with what others computed: one line for each
//! case that fails, and a closing `N passed, N failed`.
#![forbid(unsafe_code)]

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use tests::conformance;

/// Runs the cases under a path on the plugin.
#[derive(Parser)]
struct Arguments {
    /// A folder of cases, one that holds such folders, or a file
    path: PathBuf,
    /// Only cases whose id contains this
    #[arg(long)]
    filter: Option<String>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match conformance::run(&arguments.path, arguments.filter.as_deref()) {
        Ok(report) => {
            println!("{} passed, {} failed", report.passed, report.failed.len());
            match report.failed.is_empty() && report.passed > 0 {
                true => ExitCode::SUCCESS,
                false => ExitCode::FAILURE,
            }
        }
        Err(reason) => {
            eprintln!("conformance: {reason}");
            ExitCode::FAILURE
        }
    }
}
