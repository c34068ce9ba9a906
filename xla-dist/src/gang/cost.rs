//! How long comparing what processes execute takes, summed up for benchmarks.

use std::sync::atomic::{AtomicU64, Ordering};
#[cfg(feature = "gloo")]
use std::time::Duration;
use std::time::Instant;

static NANOSECONDS: AtomicU64 = AtomicU64::new(0);

/// Adds the time until it is dropped.
pub(super) struct Timed(Instant);

impl Timed {
    pub(super) fn begin() -> Self {
        Timed(Instant::now())
    }
}

impl Drop for Timed {
    fn drop(&mut self) {
        let nanoseconds = u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX);
        NANOSECONDS.fetch_add(nanoseconds, Ordering::Relaxed);
    }
}

/// What this process has spent so far on announcing its collectives and on comparing them with those
/// of others, without waiting for them.
#[cfg(feature = "gloo")]
pub(crate) fn spent() -> Duration {
    Duration::from_nanos(NANOSECONDS.load(Ordering::Relaxed))
}
