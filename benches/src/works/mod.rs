//! The works, each the same as in `peers.py`.

mod all_reduce;
mod chain;
mod cnn;
mod ddp;
mod first;
mod gpt;
mod mlp;

use crate::Options;
use crate::timing::{self, Step, wait};
use std::time::Instant;
use xla::optim::Optimizer;
use xla::{Literal, Result, Tensor};

/// Times one piece of work and returns the line that says how long it took. `started` is when the
/// process was.
///
/// # Errors
/// A name of no work; what the work returns.
pub fn run(work: &str, options: &Options, started: Instant) -> std::result::Result<String, String> {
    let error = |e: xla::Error| e.to_string();
    let operators = work.strip_prefix("chain-").and_then(|n| n.parse().ok());
    if options.grad && operators.is_none() {
        return Err("--grad: expected a chain; the others record gradients anyway".into());
    }
    let repeated = |step: Result<Step>| {
        let measured = step.and_then(|step| timing::repeated(step, options));
        measured.map(|measured| measured.report()).map_err(error)
    };
    let mut line = match (work, operators) {
        ("all_reduce", _) => return all_reduce::run(options),
        ("ddp", _) => ddp::run(options)?.report(),
        ("first" | "first-warm", _) => first::run(started)?,
        (_, Some(n)) if n >= 2 => {
            let mut line = repeated(chain::step(n, options.grad))?;
            let seconds = line["pipelined_s"].as_f64().unwrap_or(0.0);
            line["operator_ns"] = (1e9 * seconds / n as f64).into();
            line
        }
        ("mlp", _) => repeated(mlp::step())?,
        ("cnn", _) => repeated(cnn::step())?,
        ("gpt", _) => repeated(gpt::step())?,
        ("gpt-spmd", _) => repeated(gpt::partitioned_step())?,
        _ => {
            let expected = "chain-N with N of at least 2, mlp, cnn, gpt, gpt-spmd, ddp, \
                 first, first-warm or all_reduce";
            return Err(format!("no benchmark {work:?}: expected {expected}"));
        }
    };
    line["peer"] = "xla-rs".into();
    line["work"] = work.into();
    if options.grad {
        line["grad"] = true.into();
    }
    Ok(line.to_string())
}

/// Trains on one batch: what all training benchmarks do in a step.
fn training(
    mut optimizer: impl Optimizer + 'static,
    loss: impl Fn() -> Result<Tensor> + 'static,
) -> Result<Step> {
    wait()?;
    Ok(Box::new(move || {
        let loss = loss()?;
        loss.backward()?;
        optimizer.step()?;
        // Before the sync too: gradients that are held then are results of the program.
        optimizer.zero_grad();
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
