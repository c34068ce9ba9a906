//! Throws random arguments at operators until the time is up.
#![forbid(unsafe_code)]

use clap::Parser;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tests::fuzz::{self, Depth};

/// Runs cases of every operator in turn, until the time is up or one fails.
#[derive(Parser)]
struct Arguments {
    /// How long to go on
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Only operators whose name contains this
    #[arg(long)]
    filter: Option<String>,
    /// Begins with these cases; another number, other cases [default: the time]
    #[arg(long)]
    seed: Option<u64>,
    /// Only record: shapes, dtypes and checks, without compiling
    #[arg(long)]
    record: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let seconds = (arguments.minutes * 60.0).clamp(0.0, 1e9);
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let mut seed = arguments
        .seed
        .unwrap_or_else(|| since.map_or(0, |d| d.as_secs()));
    let chosen = |name: &str| arguments.filter.as_deref().is_none_or(|f| name.contains(f));
    let mut properties = fuzz::properties();
    properties.retain(|property| chosen(property.name));
    if properties.is_empty() {
        eprintln!("fuzz: no such operator");
        return ExitCode::FAILURE;
    }
    let (depth, cases) = match arguments.record {
        true => (Depth::Recorded, 256),
        false => (Depth::Executed, 8),
    };
    let (mut passed, mut failed) = (0u64, Vec::new());
    while Instant::now() < end && !properties.is_empty() {
        properties.retain(|property| {
            if Instant::now() >= end {
                return true;
            }
            let outcome = fuzz::run(property, cases, depth, seed);
            match &outcome {
                Ok(()) => passed += u64::from(cases),
                Err(reason) => {
                    println!("seed {seed}: {reason}");
                    failed.push(property.name);
                }
            }
            outcome.is_ok()
        });
        seed = seed.wrapping_add(1);
    }
    println!("{passed} cases passed, {} operators failed", failed.len());
    match failed.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
