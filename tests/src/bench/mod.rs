//! This project's side of the benchmarks: work that is timed, and how it is reported.

mod all_reduce;
mod chain;
mod cnn;
mod gpt;
mod mlp;

use std::hint::black_box;
use std::time::Instant;
use xla::optim::Optimizer;
use xla::{Literal, Result, Tensor};

/// How often a step is timed, and how it records.
#[derive(Debug, Clone, clap::Args)]
pub struct Options {
    /// Steps that are timed, each way
    #[arg(long, default_value_t = 50)]
    pub steps: usize,
    /// Steps before the first that is timed
    #[arg(long, default_value_t = 5)]
    pub warmup: usize,
    /// Record gradients too (the tensor that a chain begins with requires one)
    #[arg(long)]
    pub grad: bool,
}

/// A step that leaves a value behind.
type Step = Box<dyn FnMut() -> Result<Tensor>>;

/// Times one piece of work and returns the line that says how long it took. `start` is when the
/// process began.
///
/// # Errors
/// A name of no work; what the work returns.
pub fn run(work: &str, options: &Options, start: Instant) -> Result<String, String> {
    let error = |e: xla::Error| e.to_string();
    if options.steps == 0 {
        return Err("--steps: expected at least 1".into());
    }
    if work == "all_reduce" {
        return all_reduce::run(options);
    }
    let operators = work.strip_prefix("chain-").and_then(|n| n.parse().ok());
    let step = match (work, operators) {
        (_, Some(n)) if n >= 2 => chain::step(n, options.grad),
        ("mlp", _) => mlp::step(),
        ("cnn", _) => cnn::step(),
        ("gpt" | "first", _) => gpt::step(),
        _ => {
            let expected = "chain-N with N of at least 2, mlp, cnn, gpt, first or all_reduce";
            return Err(format!("no benchmark {work:?}: expected {expected}"));
        }
    };
    let step = step.map_err(error)?;
    let measured = match work {
        "first" => first(step, start),
        _ => repeated(step, options),
    };
    let mut line = measured.map_err(error)?;
    line["peer"] = "xla-rs".into();
    line["work"] = work.into();
    Ok(line.to_string())
}

fn wait() -> Result<()> {
    xla::sync()?.wait()
}

/// From the beginning of the process to the end of the first step.
fn first(mut step: Step, start: Instant) -> Result<serde_json::Value> {
    black_box(step()?);
    wait()?;
    Ok(serde_json::json!({ "step_s": start.elapsed().as_secs_f64() }))
}

/// The median of steps that are each waited for, the mean of steps with one wait at the end, and how
/// much longer the first took than the others: what its compilation took.
fn repeated(mut step: Step, options: &Options) -> Result<serde_json::Value> {
    let mut timed = || -> Result<f64> {
        let start = Instant::now();
        black_box(step()?);
        wait()?;
        Ok(start.elapsed().as_secs_f64())
    };
    let first = timed()?;
    for _ in 1..options.warmup {
        timed()?;
    }
    let mut each = Vec::with_capacity(options.steps);
    for _ in 0..options.steps {
        each.push(timed()?);
    }
    let start = Instant::now();
    for _ in 0..options.steps {
        black_box(step()?);
    }
    wait()?;
    let pipelined = start.elapsed().as_secs_f64() / options.steps as f64;
    each.sort_by(f64::total_cmp);
    let median = each[each.len() / 2];
    Ok(serde_json::json!({
        "step_s": median,
        "pipelined_s": pipelined,
        "compile_s": (first - median).max(0.0),
        "peak_rss_mb": peak_rss_mb(),
    }))
}

/// The most memory the process has had resident, in MiB; 0 where the system does not tell.
fn peak_rss_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok());
    kib.unwrap_or(0.0) / 1024.0
}

/// Trains on one batch: what all training benchmarks do in a step.
fn training(
    mut optimizer: impl Optimizer + 'static,
    loss: impl Fn() -> Result<Tensor> + 'static,
) -> Result<Step> {
    wait()?;
    Ok(Box::new(move || {
        optimizer.zero_grad();
        let loss = loss()?;
        loss.backward()?;
        optimizer.step()?;
        // Recorded before the sync: after it, it would be the next step's, with a wait or without.
        let value = loss.detach()?.copy()?;
        drop(loss);
        xla::sync()?;
        Ok(value)
    }))
}

/// Labels from 0 up to `classes`, in no order that matters.
fn labels(count: usize, classes: usize) -> Result<Tensor> {
    let labels = (0..count).map(|i| ((i * 7919 + 13) % classes) as i64);
    Tensor::from_literal(Literal::from_vec(labels.collect::<Vec<_>>(), count)?, ())
}
