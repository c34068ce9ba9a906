//! Counts what the Rust side allocates. The plugin's own allocations do not come by here.

use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// How often memory has been allocated, or what was allocated has changed its size, in all threads.
pub(crate) fn count() -> usize {
    let stats = ALLOCATOR.stats();
    stats.allocations + stats.reallocations
}
