//! What is measured: totals, and the latest samples for percentiles.

use crate::profiler;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Samples kept of a metric, as many as PyTorch/XLA keeps.
const KEPT: usize = 1024;

/// What the values of a metric are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Bytes.
    Bytes,
    /// Things.
    Count,
}

macro_rules! metrics {
    ($($(#[$doc:meta])* $variant:ident: $unit:ident,)*) => {
        /// What is measured. Each variant's name is that in reports: PyTorch/XLA's where it means
        /// the same.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Metric {
            $($(#[$doc])* $variant,)*
        }

        impl Metric {
            /// Every metric, in the order that reports list them.
            pub const ALL: &[Metric] = &[$(Metric::$variant,)*];

            /// The name in reports.
            pub fn name(self) -> &'static str {
                match self {
                    $(Metric::$variant => stringify!($variant),)*
                }
            }

            /// What its values are.
            pub fn unit(self) -> Unit {
                match self {
                    $(Metric::$variant => Unit::$unit,)*
                }
            }
        }
    };
}

metrics! {
    /// Lowering one program to StableHLO.
    LowerTime: Seconds,
    /// Compiling one program.
    CompileTime: Seconds,
    /// Reading one program from the persistent cache and loading it.
    PersistentCacheLoad: Seconds,
    /// Serialising one program and writing it to the persistent cache, while it may already run.
    PersistentCacheStore: Seconds,
    /// Starting one program: the host's time. It is the whole execution where the plugin runs it
    /// on the calling thread, as a CPU plugin does with a small one.
    ExecuteTime: Seconds,
    /// Waiting for what a device has not computed yet.
    WaitTime: Seconds,
    /// Waiting for the other replicas before a program with collectives.
    GangWaitTime: Seconds,
    /// Sending one array to a device: the host's time.
    TransferToDeviceTime: Seconds,
    /// Copying one array to the host, once it is computed.
    TransferFromDeviceTime: Seconds,
    /// The bytes of one array sent to a device.
    OutboundData: Bytes,
    /// The bytes of one array read from a device.
    InboundData: Bytes,
    /// Operators recorded for one execution.
    TensorsGraphSize: Count,
    /// Arguments of one program that its results may overwrite.
    InputOutputAliasCount: Count,
}

const METRICS: usize = Metric::ALL.len();

pub(super) struct Samples {
    pub(super) count: u64,
    pub(super) sum: f64,
    /// When, in seconds since the first sample of the process, and what; oldest first.
    pub(super) latest: VecDeque<(f64, f64)>,
}

static SAMPLES: [Mutex<Samples>; METRICS] = [const {
    Mutex::new(Samples {
        count: 0,
        sum: 0.0,
        latest: VecDeque::new(),
    })
}; METRICS];

fn since_first(now: Instant) -> f64 {
    static FIRST: OnceLock<Instant> = OnceLock::new();
    now.saturating_duration_since(*FIRST.get_or_init(|| now))
        .as_secs_f64()
}

impl Metric {
    pub(super) fn samples(self) -> MutexGuard<'static, Samples> {
        SAMPLES[self as usize]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a sample.
    pub fn record(self, value: f64) {
        self.record_at(value, Instant::now());
    }

    fn record_at(self, value: f64, now: Instant) {
        let when = since_first(now);
        let mut samples = self.samples();
        samples.count += 1;
        samples.sum += value;
        if samples.latest.len() == KEPT {
            samples.latest.pop_front();
        }
        samples.latest.push_back((when, value));
    }

    /// Starts a measurement of this metric, which is one of seconds.
    pub fn start(self) -> Stopwatch {
        Stopwatch {
            metric: self,
            began: Instant::now(),
        }
    }
}

/// A measurement under way. It adds no sample unless it is stopped.
#[derive(Debug)]
#[must_use = "a measurement that is not stopped adds no sample"]
pub struct Stopwatch {
    metric: Metric,
    began: Instant,
}

impl Stopwatch {
    /// When the measurement started.
    pub fn began(&self) -> Instant {
        self.began
    }

    /// Ends the measurement, adds its sample and returns it in seconds.
    pub fn stop(self) -> f64 {
        let now = Instant::now();
        self.stop_at(now)
    }

    /// Ends the measurement as [`Stopwatch::stop`] does, and adds a sample of another metric, too:
    /// the clock is read once.
    pub fn stop_with(self, other: Metric, value: f64) -> f64 {
        let now = Instant::now();
        other.record_at(value, now);
        self.stop_at(now)
    }

    fn stop_at(self, now: Instant) -> f64 {
        let seconds = now.saturating_duration_since(self.began).as_secs_f64();
        self.metric.record_at(seconds, now);
        profiler::measured(self.metric, self.began);
        seconds
    }
}

pub(super) fn clear() {
    for metric in Metric::ALL {
        let mut samples = metric.samples();
        samples.count = 0;
        samples.sum = 0.0;
        samples.latest.clear();
    }
}
