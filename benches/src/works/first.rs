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
    let seconds = launcher.run(|_| -> Result<[f64; 2]> {
        let launch = started.elapsed().as_secs_f64();
        black_box(gpt::step()?()?);
        wait()?;
        Ok([launch, started.elapsed().as_secs_f64()])
    });
    let seconds = seconds.map_err(|error| error.to_string())?;
    let [launch, step] = seconds.first().copied().ok_or("no replica ran")?;
    Ok(serde_json::json!({
        "step_s": step,
        "launch_s": launch,
        "peak_rss_mb": memory::peak_rss_mb(),
    }))
}
