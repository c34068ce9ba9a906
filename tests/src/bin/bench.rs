//! This project's side of the benchmarks: one JSON line with the median seconds of a step that is
//! waited for (`step_s`), the mean of steps with one wait at the end (`pipelined_s`), and the
//! process's peak memory.
#![forbid(unsafe_code)]

use clap::Parser;
use std::hint::black_box;
use std::time::Instant;
use xla::Tensor;

/// Times one piece of work on the XLA CPU plugin.
#[derive(Parser)]
struct Arguments {
    /// `chain-N`: N elementwise operators on 16 by 16 `f32`s, recorded anew in every step.
    work: String,
    /// Steps that are timed, each way.
    #[arg(long, default_value_t = 50)]
    steps: usize,
    /// Steps before the first that is timed.
    #[arg(long, default_value_t = 5)]
    warmup: usize,
    /// Record gradients too (the tensor that the chain begins with requires one).
    #[arg(long)]
    grad: bool,
}

fn chain(operators: usize, grad: bool) -> xla::Result<impl FnMut() -> xla::Result<Tensor>> {
    let x = Tensor::ones([16, 16], ())?.requires_grad_(grad)?;
    xla::sync()?.wait()?;
    Ok(move || {
        let mut y = x.clone();
        for _ in 0..operators / 2 {
            y = y.mul(1.0001)?.add(0.5)?;
        }
        // What a step of training leaves behind: the value, not its history.
        let value = if grad { y.detach()?.copy()? } else { y.clone() };
        drop(y);
        xla::sync()?;
        Ok(value)
    })
}

fn report(arguments: &Arguments, mut step: impl FnMut() -> xla::Result<Tensor>) -> xla::Result<()> {
    let wait = || xla::sync()?.wait();
    for _ in 0..arguments.warmup {
        black_box(step()?);
        wait()?;
    }
    let mut each = Vec::with_capacity(arguments.steps);
    for _ in 0..arguments.steps {
        let start = Instant::now();
        black_box(step()?);
        wait()?;
        each.push(start.elapsed().as_secs_f64());
    }
    let start = Instant::now();
    for _ in 0..arguments.steps {
        black_box(step()?);
    }
    wait()?;
    let pipelined = start.elapsed().as_secs_f64() / arguments.steps as f64;
    each.sort_by(f64::total_cmp);
    let line = serde_json::json!({
        "peer": "xla-rs",
        "work": arguments.work,
        "step_s": each[each.len() / 2],
        "pipelined_s": pipelined,
        "peak_rss_mb": peak_rss_mb(),
    });
    println!("{line}");
    Ok(())
}

/// The most memory the process has had resident, in MiB; 0 where the system does not tell.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments = Arguments::parse();
    if arguments.steps == 0 {
        return Err("--steps: expected at least 1".into());
    }
    let operators = arguments
        .work
        .strip_prefix("chain-")
        .and_then(|n| n.parse::<usize>().ok());
    match operators {
        Some(n) if n >= 2 => report(&arguments, chain(n, arguments.grad)?)?,
        _ => {
            let work = &arguments.work;
            return Err(
                format!("no benchmark {work:?}: expected chain-N with N of at least 2").into(),
            );
        }
    }
    Ok(())
}
