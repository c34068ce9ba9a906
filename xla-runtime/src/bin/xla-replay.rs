//! Runs a capsule again: one program with its arguments, recorded where it failed or was slow.
//!
//! ```text
//! xla-replay slow.safetensors
//! xla-replay --plugin other/pjrt_plugin.so --runs 20 slow.safetensors
//! ```
#![forbid(unsafe_code)]

use clap::Parser;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use xla_core::{Config, DeviceKind, Result};
use xla_runtime::{Capsule, Client, ClientOptions, Plugin, Replay};

/// Compiles a capsule's program, runs it, times it, and compares with the recorded results.
///
/// The plugin is the one that PJRT_LIBRARY_PATH or the usual places lead to. The exit code is 1 when
/// the program fails or a result differs by more than the tolerance.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// The capsule.
    file: PathBuf,
    /// Another plugin to run it on.
    #[arg(long, value_name = "FILE")]
    plugin: Option<PathBuf>,
    /// How often to run it.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// How much of a result's largest magnitude an element may differ by.
    #[arg(long, default_value_t = 1e-5)]
    tolerance: f64,
    /// Seconds that one run may take [default: XLA_DEADLINE_SECONDS, or 1800].
    #[arg(long, value_name = "SECONDS")]
    deadline: Option<u64>,
    /// Print the program's text and do nothing else.
    #[arg(long)]
    text: bool,
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("xla-replay: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the results are as recorded.
fn run(arguments: &Arguments) -> Result<bool> {
    let capsule = Capsule::load(&arguments.file)?;
    if arguments.text {
        println!("{}", capsule.program);
        return Ok(true);
    }
    describe(&capsule);
    let config = Config::global()?;
    let path = match &arguments.plugin {
        Some(path) => path.clone(),
        None => Plugin::find(config)?,
    };
    let options = ClientOptions {
        kind: config.device,
        cpu_device_count: (config.device == DeviceKind::Cpu)
            .then(|| capsule.options.device_count()),
        ..ClientOptions::default()
    };
    let client = Client::create(&Plugin::load(&path)?, &options)?;
    let deadline = arguments
        .deadline
        .map_or(config.deadline, Duration::from_secs);
    let replay = capsule.replay(&client, arguments.runs, deadline)?;
    Ok(report(&replay, arguments.tolerance))
}

fn describe(capsule: &Capsule) {
    let versions = &capsule.versions;
    println!(
        "{} arguments, {} results, {} device(s)",
        capsule.inputs.len(),
        capsule.output_types.len(),
        capsule.options.device_count(),
    );
    println!(
        "recorded by version {} on {} ({}, API {}.{})",
        versions.library, versions.platform, versions.plugin, versions.api.0, versions.api.1,
    );
    println!("executed for {}", capsule.cause);
    if let Some(error) = &capsule.error {
        println!("failed then: {error}");
    }
}

fn report(replay: &Replay, tolerance: f64) -> bool {
    println!("compiled in {:.3} s", replay.compile.as_secs_f64());
    let mut times = replay.runs.clone();
    times.sort_unstable();
    println!(
        "ran {} time(s): median {:.3} ms, fastest {:.3} ms, slowest {:.3} ms",
        times.len(),
        milliseconds(times.get(times.len() / 2)),
        milliseconds(times.first()),
        milliseconds(times.last()),
    );
    let Some(differences) = &replay.differences else {
        println!("no results to compare with");
        return true;
    };
    let mut good = true;
    for (i, difference) in differences.iter().enumerate() {
        let Some(d) = difference else { continue };
        let within = d.relative <= tolerance;
        good &= within;
        println!(
            "result {i}: {} of {} elements differ, element {} by {:e} ({:e} of the largest){}",
            d.elements,
            d.of,
            d.at,
            d.largest,
            d.relative,
            if within { "" } else { ": too much" },
        );
    }
    let same = differences.iter().filter(|d| d.is_none()).count();
    println!("{same} of {} results are the same bits", differences.len());
    good
}

fn milliseconds(time: Option<&Duration>) -> f64 {
    time.map_or(0.0, |t| 1e3 * t.as_secs_f64())
}
