//! Sums over replicas: between threads, between processes, and what these are measured against.
//!
//! A line says what was measured (`what`), over how many replicas, and the median seconds; for the
//! large size also how many GB of one replica's tensor are reduced a second. What a step over processes
//! spends on comparing what they execute is `check_s`.

use crate::Options;
use crate::timing::{self, wait};
use std::hint::black_box;
use std::time::Instant;
use xla::dist::{self, ReduceOp};
use xla::{Launcher, Result, StartMethod, Tensor};

/// Elements of the large tensor: 64 MiB.
const LARGE: usize = 16 << 20;

/// Replicas of one process.
const THREADS: usize = 4;

/// Steps before those that are timed.
const WARMUP: u32 = 3;

/// Measures everything. Processes are this program again.
pub(super) fn run(options: &Options) -> Result<String, String> {
    #[cfg(feature = "gloo")]
    if let Some(line) = between::member(options)? {
        return Ok(line);
    }
    crate::with_devices(THREADS).map_err(|error| error.to_string())?;
    let mut lines = Vec::new();
    // Launches first: the processes of one do again what comes before it.
    #[cfg(feature = "gloo")]
    for processes in [2, 4] {
        let launcher = Launcher::new().processes(processes).devices(1);
        lines.push(steps("processes", processes, launcher, options)?);
    }
    let threads = Launcher::new()
        .start_method(StartMethod::Threads)
        .devices(THREADS);
    lines.push(steps("threads", THREADS, threads, options)?);
    lines.push(copy(options));
    #[cfg(feature = "gloo")]
    for processes in [2, 4] {
        lines.push(between::processes(processes)?);
    }
    Ok(lines.join("\n"))
}

fn line(what: &str, replicas: usize, elements: usize, seconds: f64) -> String {
    let bytes = elements * size_of::<f32>();
    let mut line = serde_json::json!({
        "peer": "xla-rs", "work": "all_reduce",
        "what": what, "replicas": replicas, "bytes": bytes, "step_s": seconds,
    });
    if elements == LARGE {
        line["gb_s"] = (bytes as f64 / seconds / 1e9).into();
    }
    line.to_string()
}

/// The median of `steps` runs, after a few that are not timed.
fn median<E>(steps: u32, mut step: impl FnMut() -> Result<(), E>) -> Result<f64, E> {
    for _ in 0..WARMUP {
        step()?;
    }
    let mut seconds = Vec::with_capacity(steps as usize);
    for _ in 0..steps {
        let start = Instant::now();
        step()?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok(timing::median(&mut seconds))
}

fn copy(options: &Options) -> String {
    let (from, mut to) = (vec![1.0_f32; LARGE], vec![0.0_f32; LARGE]);
    let copied = median(options.steps, || -> Result<(), std::convert::Infallible> {
        to.copy_from_slice(black_box(&from));
        black_box(&mut to);
        Ok(())
    });
    let Ok(seconds) = copied;
    line("memcpy", 1, LARGE, seconds)
}

/// Steps that hold one collective, and a step of the same size without one.
fn steps(
    what: &str,
    replicas: usize,
    launcher: Launcher,
    options: &Options,
) -> Result<String, String> {
    let steps = options.steps;
    let measured = launcher.run_serialized(move |_| -> Result<[f64; 4]> {
        dist::init_process_group("xla", "xla://")?;
        let (large, small) = (Tensor::ones([LARGE], ())?, Tensor::ones([1], ())?);
        wait()?;
        let step = |x: &Tensor, reduced: bool| {
            median(steps, || {
                let y = match reduced {
                    true => dist::all_reduce(x, ReduceOp::Sum)?,
                    false => x.add(1.0)?,
                };
                wait()?;
                black_box(y);
                Ok(())
            })
        };
        let large = step(&large, true)?;
        let before = checking();
        let reduced = step(&small, true)?;
        let check = (checking() - before) / f64::from(steps + WARMUP);
        let seconds = [large, reduced, step(&small, false)?, check];
        dist::destroy_process_group()?;
        Ok(seconds)
    });
    let measured = measured.map_err(|error| error.to_string())?;
    let [large, small, alone, check] = measured.first().copied().unwrap_or_default();
    let mut lines = vec![
        line(&format!("step, {what}"), replicas, LARGE, large),
        line(&format!("step, {what}"), replicas, 1, small),
        line(
            &format!("step without a collective, {what}"),
            replicas,
            1,
            alone,
        ),
    ];
    if check > 0.0 {
        let line = serde_json::json!({
            "peer": "xla-rs", "work": "all_reduce",
            "what": format!("check in a step, {what}"), "replicas": replicas, "check_s": check,
        });
        lines.push(line.to_string());
    }
    Ok(lines.join("\n"))
}

/// Seconds that this process has spent on comparing what processes execute.
fn checking() -> f64 {
    #[cfg(feature = "gloo")]
    return xla_dist::bench::checking().as_secs_f64();
    #[cfg(not(feature = "gloo"))]
    return 0.0;
}

/// The exchange without the program around it, and Gloo's own algorithm.
#[cfg(feature = "gloo")]
mod between {
    use super::{LARGE, WARMUP, line};
    use crate::{Options, timing};
    use std::process::{Command, Stdio};
    use std::time::Instant;
    use xla::Result;
    use xla_dist::bench::Connected;
    use xla_store::{ConnectOptions, Server, ServerOptions, Store};

    /// Says to a process who it is: address of the store, index, number of processes.
    const MEMBER: &str = "XLA_BENCH_MEMBER";

    pub(super) fn processes(count: usize) -> Result<String, String> {
        let server = Server::bind(&ServerOptions::default()).map_err(|e| e.to_string())?;
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut children = Vec::new();
        for index in 0..count {
            let child = Command::new(&program)
                .args(std::env::args_os().skip(1))
                .env(MEMBER, format!("{} {index} {count}", server.address()))
                .stdout(Stdio::piped())
                .spawn();
            children.push(child.map_err(|e| e.to_string())?);
        }
        let mut first = None;
        for child in children {
            let output = child.wait_with_output().map_err(|e| e.to_string())?;
            if !output.status.success() {
                return Err(format!("a process ended with {}", output.status));
            }
            first.get_or_insert(output.stdout);
        }
        let text = String::from_utf8_lossy(&first.unwrap_or_default())
            .trim()
            .to_owned();
        Ok(text)
    }

    /// What this process measures if it is one of those.
    pub(super) fn member(options: &Options) -> Result<Option<String>, String> {
        let Ok(member) = std::env::var(MEMBER) else {
            return Ok(None);
        };
        let words: Vec<&str> = member.split(' ').collect();
        let [address, index, count] = words[..] else {
            return Err(format!("{MEMBER}: expected three words, got {member:?}"));
        };
        let number = |word: &str| word.parse::<usize>().map_err(|e| e.to_string());
        let (index, count) = (number(index)?, number(count)?);
        let connected = Store::connect(address, &ConnectOptions::default())
            .and_then(|store| Connected::new(&store, index, count))
            .map_err(|e| e.to_string())?;
        let mut lines = Vec::new();
        for elements in [LARGE, 1] {
            let (input, mut output) = (vec![1.0; elements], vec![0.0; elements]);
            let mut seconds = [Vec::new(), Vec::new()];
            // In turn, so that what else the machine does falls on both.
            for round in 0..options.steps + WARMUP {
                let start = Instant::now();
                connected.gloo_all_reduce(&mut output)?;
                let gloo = start.elapsed().as_secs_f64();
                let start = Instant::now();
                connected.all_reduce(&input, &mut output)?;
                if round >= WARMUP {
                    seconds[0].push(gloo);
                    seconds[1].push(start.elapsed().as_secs_f64());
                }
            }
            let [gloo, ours] = seconds.map(|mut each| timing::median(&mut each));
            lines.push(line("Gloo alone, processes", count, elements, gloo));
            lines.push(line("exchange alone, processes", count, elements, ours));
        }
        Ok(Some(lines.join("\n")))
    }
}
