//! How steps are timed. What is waited for is waited for inside the timed region.

use crate::{Options, allocations, memory};
use std::hint::black_box;
use std::time::Instant;
use xla::{Result, Tensor};

/// A step that leaves a value behind.
pub(crate) type Step = Box<dyn FnMut() -> Result<Tensor>>;

/// What repeated steps took; the fields of the report have the same names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Measured {
    pub(crate) step_s: f64,
    pub(crate) pipelined_s: f64,
    pub(crate) compile_s: f64,
    pub(crate) allocations: f64,
}

impl Measured {
    /// The report's fields, with the process's memory so far.
    pub(crate) fn report(&self) -> serde_json::Value {
        serde_json::json!({
            "step_s": self.step_s,
            "pipelined_s": self.pipelined_s,
            "compile_s": self.compile_s,
            "allocations": self.allocations,
            "peak_rss_mb": memory::peak_rss_mb(),
        })
    }
}

/// Runs what is pending and waits until it has run.
pub(crate) fn wait() -> Result<()> {
    xla::sync()?.wait()
}

/// Times steps that are each waited for, then as many with one wait at the end.
pub(crate) fn repeated(mut step: Step, options: &Options) -> Result<Measured> {
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
    let mut each = Vec::with_capacity(options.steps as usize);
    for _ in 0..options.steps {
        each.push(timed()?);
    }
    let start = Instant::now();
    let (ran, allocations) = allocations::count(|| -> Result<()> {
        let mut last = None;
        for _ in 0..options.steps {
            last = Some(black_box(step()?));
        }
        wait()?;
        drop(last);
        Ok(())
    });
    ran?;
    let steps = f64::from(options.steps);
    let pipelined_s = start.elapsed().as_secs_f64() / steps;
    let allocations = allocations as f64 / steps;
    let step_s = median(&mut each);
    Ok(Measured {
        step_s,
        pipelined_s,
        compile_s: (first - step_s).max(0.0),
        allocations,
    })
}

/// The value in the middle, the upper one of two; 0 of none.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}
