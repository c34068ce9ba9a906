//! `cargo xtask check`: formatting, lints, documentation, layering.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::process::{self, End};
use crate::{layering, note, workspace};

/// Lints and documentation compile every dependency the first time.
const DEADLINE: Duration = Duration::from_secs(20 * 60);

/// Runs every check on what is built with Gloo or without, also after one has failed, and returns the names of those that failed.
///
/// # Errors
/// If a check could not be carried out at all.
pub(crate) fn run(gloo: bool) -> Result<Vec<&'static str>> {
    for component in ["fmt", "clippy"] {
        ensure_component(component)?;
    }
    let mut clippy = workspace::cargo();
    clippy.args(["clippy", "--quiet", "--all-targets"]);
    clippy.args(workspace::selection(&[], gloo));
    clippy.args(["--", "-D", "warnings"]);
    let mut fmt = workspace::cargo();
    // The files to format, not every difference.
    fmt.args(["fmt", "--all", "--check", "--", "-l"]);
    let mut doc = workspace::cargo();
    doc.args(["doc", "--quiet", "--no-deps"]);
    doc.args(workspace::selection(&[], gloo));
    doc.env("RUSTDOCFLAGS", "-D warnings");

    let mut failed = Vec::new();
    let mut record = |name: &'static str, started: Instant, passed: bool| {
        let result = if passed { "ok" } else { "FAILED" };
        note(format_args!(
            "check {name}: {result} ({:.1} s)",
            started.elapsed().as_secs_f64()
        ));
        if !passed {
            failed.push(name);
        }
    };
    let started = Instant::now();
    record("layering", started, layering::check()?);
    for (name, command) in [
        ("fmt", &mut fmt),
        ("clippy", &mut clippy),
        ("doc", &mut doc),
    ] {
        let started = Instant::now();
        let end = process::run(command, DEADLINE)?;
        record(
            name,
            started,
            matches!(end, End::Exited(status) if status.success()),
        );
    }
    Ok(failed)
}

/// Minimal toolchains lack `cargo fmt` and `cargo clippy`; rustup adds them.
fn ensure_component(subcommand: &str) -> Result<()> {
    let present = |deadline| {
        let mut command = workspace::cargo();
        process::quiet(command.args([subcommand, "--version"]), deadline)
    };
    let short = Duration::from_secs(60);
    if present(short).is_ok() {
        return Ok(());
    }
    let component = if subcommand == "fmt" {
        "rustfmt"
    } else {
        subcommand
    };
    note(format_args!(
        "cargo {subcommand} is missing; running: rustup component add {component}"
    ));
    let mut rustup = Command::new("rustup");
    rustup
        .args(["component", "add", component])
        .current_dir(workspace::root());
    process::quiet(&mut rustup, Duration::from_secs(5 * 60)).map_err(|error| Error::Missing {
        missing: vec![format!("cargo {subcommand} ({error})")],
        command: format!("rustup component add {component}"),
        hint: "(or the package of that name, where Rust came from the system's package manager)"
            .to_owned(),
    })?;
    present(short).map(drop)
}
