//! Times one piece of work and prints what it took as a line of JSON.
#![forbid(unsafe_code)]

use benches::Options;
use clap::Parser;
use std::time::Instant;

/// Times one piece of work on the XLA CPU plugin.
#[derive(Parser)]
struct Arguments {
    /// `chain-N` (N elementwise operators on 16 by 16 `f32`s, recorded anew in every step), `mlp`,
    /// `cnn`, `gpt`, `gpt-spmd` (the same, partitioned over 4 devices: `CPU_NUM_DEVICES=4`), `ddp`,
    /// `first`, `first-warm` (the same, which finds what an earlier run has compiled) or `all_reduce`
    work: String,
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let started = benches::started(Instant::now());
    let arguments = Arguments::parse();
    println!(
        "{}",
        benches::run(&arguments.work, &arguments.options, started)?
    );
    Ok(())
}
