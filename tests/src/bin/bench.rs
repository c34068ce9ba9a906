//! This project's side of the benchmarks: one JSON line with the median seconds of a step that is
//! waited for (`step_s`), the mean of steps with one wait at the end (`pipelined_s`), how much
//! longer the first step took (`compile_s`), and the process's peak memory. For `first` it is the
//! seconds from the process's start to the end of the first step of `gpt`. `all_reduce` prints a line
//! for each way to reduce and each size.
#![forbid(unsafe_code)]

use clap::Parser;
use std::time::Instant;
use tests::bench::{self, Options};

/// Times one piece of work on the XLA CPU plugin.
#[derive(Parser)]
struct Arguments {
    /// `chain-N` (N elementwise operators on 16 by 16 `f32`s, recorded anew in every step), `mlp`,
    /// `cnn`, `gpt`, `first` or `all_reduce`
    work: String,
    #[command(flatten)]
    options: Options,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let start = Instant::now();
    let arguments = Arguments::parse();
    println!(
        "{}",
        bench::run(&arguments.work, &arguments.options, start)?
    );
    Ok(())
}
