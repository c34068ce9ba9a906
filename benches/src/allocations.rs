//! Counts what the Rust side allocates. The plugin's own allocations do not come by here.

/// Calls `f`; returns also how often the calling thread has allocated memory meanwhile, or changed the
/// size of what was allocated. It is where steps are recorded and started.
pub(crate) fn count<T>(f: impl FnOnce() -> T) -> (T, u64) {
    let mut result = None;
    let counted = allocation_counter::measure(|| result = Some(f()));
    (result.expect("`measure` calls it"), counted.count_total)
}
