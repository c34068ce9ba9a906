//! A timeline of what the process does: recording, compiling, transfers, executions, waiting.
//!
//! [`start`] begins it, [`Profile::save`] writes it in the format that Perfetto and Chrome's
//! `about:tracing` read. Each replica has a row, and so has each device, which shows from when to
//! when its programs ran. [`Trace`] and [`StepTrace`] add spans of the user's own, as those of
//! `torch_xla.debug.profiler`.
//!
//! ```
//! use xla_runtime::profiler;
//!
//! let profile = profiler::start()?;
//! for step in 0..3 {
//!     let _step = profiler::StepTrace::new("train", step);
//!     let _load = profiler::Trace::new("load");
//!     // …
//! }
//! let path = std::env::temp_dir().join(format!("profile-{}.json", std::process::id()));
//! profile.save(&path)?;
//! # std::fs::remove_file(path).unwrap();
//! # Ok::<(), xla_core::Error>(())
//! ```
//!
//! A collective that goes over the network has a span in the row of each of its devices, with operator
//! and line: from when the device came to it until its result was there, waiting for the others
//! included. The collectives of a program whose devices all belong to one process, partitioned ones
//! too, are XLA's own: they are a part of that program's span and cannot be told apart from outside.
//!
//! Nothing is kept, and a span costs the reading of one flag, while no profile is running. Each
//! process has its own; where several run, put the rank in the file's name.

mod json;
mod row;

use crate::metrics::Metric;
use row::Row;
use std::borrow::Cow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use xla_core::{Error, Result};

/// Most spans that a profile keeps: about 100 MB. What comes after is counted only.
const MOST: usize = 1 << 20;

static RUNNING: AtomicBool = AtomicBool::new(false);

/// What a running profile has seen.
struct Seen {
    began: Instant,
    spans: Vec<Span>,
    left_out: u64,
}

static SEEN: Mutex<Option<Seen>> = Mutex::new(None);

fn seen() -> MutexGuard<'static, Option<Seen>> {
    SEEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One span of the timeline.
struct Span {
    name: Cow<'static, str>,
    category: &'static str,
    row: Row,
    began: Instant,
    lasted: Duration,
    detail: Option<(&'static str, String)>,
}

/// Whether a profile is running.
#[inline]
pub fn is_running() -> bool {
    RUNNING.load(Ordering::Relaxed)
}

/// Begins a profile of this process.
///
/// # Errors
/// [`Error::Argument`] while another one is running.
pub fn start() -> Result<Profile> {
    let mut seen = seen();
    if seen.is_some() {
        let expected = "no other profile to be running";
        return Err(Error::argument(
            "profiler::start",
            "profile",
            expected,
            "one that is",
        ));
    }
    *seen = Some(Seen {
        began: Instant::now(),
        spans: Vec::new(),
        left_out: 0,
    });
    RUNNING.store(true, Ordering::Relaxed);
    Ok(Profile(()))
}

/// A running profile. It ends when it is dropped.
#[derive(Debug)]
#[must_use = "a profile that is not kept ends at once"]
pub struct Profile(());

impl Profile {
    /// Ends the profile and writes it to a file.
    ///
    /// # Errors
    /// [`Error::Argument`] for a file that cannot be written, with the system's words.
    pub fn save(self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        std::fs::write(path, self.to_json()?).map_err(|error| {
            let got = format!("{} ({error})", path.display());
            Error::argument("Profile::save", "path", "a file that can be written", got)
        })
    }

    /// Ends the profile and returns it as JSON.
    ///
    /// # Errors
    /// [`Error::Internal`] when it cannot be written as JSON.
    pub fn to_json(self) -> Result<String> {
        RUNNING.store(false, Ordering::Relaxed);
        let seen = seen().take();
        seen.map_or_else(|| Ok(String::new()), |seen| json::write(&seen))
    }
}

impl Drop for Profile {
    fn drop(&mut self) {
        RUNNING.store(false, Ordering::Relaxed);
        drop(seen().take());
    }
}

/// Adds a span of the calling thread, or of a device, to the profile that is running.
fn add(span: Span) {
    let mut seen = seen();
    let Some(seen) = seen.as_mut().filter(|seen| span.began >= seen.began) else {
        return;
    };
    if seen.spans.len() < MOST {
        seen.spans.push(span);
    } else {
        seen.left_out += 1;
    }
}

/// Adds a span from `began` until now to the row of the calling thread, if a profile is running. The
/// detail, a name and a value, is shown with it.
pub fn record(
    name: impl Into<Cow<'static, str>>,
    category: &'static str,
    began: Instant,
    detail: Option<(&'static str, String)>,
) {
    if is_running() {
        add(Span {
            name: name.into(),
            category,
            row: Row::of_thread(),
            began,
            lasted: began.elapsed(),
            detail,
        });
    }
}

/// Adds a span from `began` until now in which the calling thread recorded so many operators, if a
/// profile is running.
pub fn record_recording(began: Instant, operators: usize) {
    if is_running() {
        add(Span {
            name: "Record".into(),
            category: "trace",
            row: Row::Recording(Row::of_thread().id()),
            began,
            lasted: began.elapsed(),
            detail: Some(("operators", operators.to_string())),
        });
    }
}

/// Adds the span of a measurement that ends now, if a profile is running.
pub(crate) fn measured(metric: Metric, began: Instant) {
    let category = match metric {
        Metric::LowerTime => "lower",
        Metric::CompileTime => "compile",
        Metric::PersistentCacheLoad | Metric::PersistentCacheStore => "cache",
        Metric::ExecuteTime => "execute",
        Metric::WaitTime => "wait",
        Metric::GangWaitTime => "collective",
        Metric::TransferToDeviceTime | Metric::TransferFromDeviceTime => "transfer",
        _ => "measured",
    };
    let name = metric.name();
    record(
        name.strip_suffix("Time").unwrap_or(name),
        category,
        began,
        None,
    );
}

/// Adds a span from `began` until now to the row of a device of this process, if a profile is running.
/// The detail, a name and a value, is shown with it.
pub fn record_on_device(
    name: &'static str,
    category: &'static str,
    device: usize,
    began: Instant,
    detail: Option<(&'static str, String)>,
) {
    if is_running() {
        add(Span {
            name: name.into(),
            category,
            row: Row::Device(device),
            began,
            lasted: began.elapsed(),
            detail,
        });
    }
}

/// A span of the user's own, from where it is made to where it is dropped: PyTorch/XLA's
/// `xp.Trace`.
#[derive(Debug)]
#[must_use = "the span ends where this is dropped"]
pub struct Trace(Option<(Cow<'static, str>, Instant)>);

impl Trace {
    /// Begins a span.
    pub fn new(name: impl Into<Cow<'static, str>>) -> Trace {
        Trace(is_running().then(|| (name.into(), Instant::now())))
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        if let Some((name, began)) = self.0.take() {
            record(name, "user", began, None);
        }
    }
}

/// The span of one step of a loop: PyTorch/XLA's `xp.StepTrace`.
#[derive(Debug)]
#[must_use = "the step ends where this is dropped"]
pub struct StepTrace(Option<(Cow<'static, str>, u64, Instant)>);

impl StepTrace {
    /// Begins a step.
    pub fn new(name: impl Into<Cow<'static, str>>, step: u64) -> StepTrace {
        StepTrace(is_running().then(|| (name.into(), step, Instant::now())))
    }
}

impl Drop for StepTrace {
    fn drop(&mut self) {
        if let Some((name, step, began)) = self.0.take() {
            record(
                format!("{name} {step}"),
                "step",
                began,
                Some(("step", step.to_string())),
            );
        }
    }
}

/// Runs `f` in a span of this name: [`Trace`] for a function.
pub fn trace<T>(name: impl Into<Cow<'static, str>>, f: impl FnOnce() -> T) -> T {
    let _span = Trace::new(name);
    f()
}
