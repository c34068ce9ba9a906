//! From the start of the process to the end of the first step of `gpt`.

use super::gpt;
use crate::memory;
use crate::timing::wait;
use std::hint::black_box;
use std::time::Instant;
use xla::{Launcher, Result, StartMethod};

pub(super) fn run(started: Instant) -> std::result::Result<serde_json::Value, String> {
    let launcher = Launcher::new()
        .start_method(StartMethod::Threads)
        .devices(1);
    let seconds = launcher.run(|_| -> Result<[f64; 3]> {
        let so_far = || started.elapsed().as_secs_f64();
        let launch = so_far();
        let mut step = gpt::step()?;
        let ready = so_far();
        black_box(step()?);
        wait()?;
        Ok([launch, ready, so_far()])
    });
    let seconds = seconds.map_err(|error| error.to_string())?;
    let [launch, ready, step] = seconds.first().copied().ok_or("no replica ran")?;
    Ok(serde_json::json!({
        "step_s": step,
        "launch_s": launch,
        "ready_s": ready,
        "peak_rss_mb": memory::peak_rss_mb(),
    }))
}
