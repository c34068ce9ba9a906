//! Counts of what costs time: compiles, executions and transfers, read from a scope.
//!
//! A [`Scope`] sees what its own thread does while it is alive, and what the replicas do that a
//! launch starts meanwhile. Nothing is global, so two tests, or two models in one process, do not
//! see each other's counts.

use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Counter {
    /// Programs compiled.
    Compile,
    /// Programs started on one device.
    Execute,
    /// Arrays that programs returned, those that are kept beyond them.
    Output,
    /// Arrays sent to a device.
    Upload,
    /// Bytes sent to a device.
    UploadBytes,
    /// Arrays read from a device.
    Download,
    /// Bytes read from a device.
    DownloadBytes,
}

const COUNTERS: usize = 7;

#[derive(Debug, Default)]
struct Counts([AtomicU64; COUNTERS]);

thread_local! {
    static SCOPES: RefCell<Vec<Arc<Counts>>> = const { RefCell::new(Vec::new()) };
}

/// Counts what happens from its creation until it is read.
///
/// ```
/// use xla_runtime::metrics::{Counter, Scope};
/// let scope = Scope::new();
/// assert_eq!(scope.count(Counter::Compile), 0);
/// ```
#[derive(Debug)]
pub struct Scope {
    counts: Arc<Counts>,
    // A scope belongs to the thread whose work it counts.
    _thread: PhantomData<*const ()>,
}

impl Scope {
    /// Starts counting this thread's work.
    #[allow(clippy::new_without_default)] // it registers itself: a default would hide that
    pub fn new() -> Self {
        let counts = Arc::new(Counts::default());
        SCOPES.with_borrow_mut(|scopes| scopes.push(Arc::clone(&counts)));
        Scope {
            counts,
            _thread: PhantomData,
        }
    }

    /// How much of this has happened since the scope began.
    pub fn count(&self, counter: Counter) -> u64 {
        self.counts.0[counter as usize].load(Ordering::Relaxed)
    }

    /// Programs compiled.
    pub fn compiles(&self) -> u64 {
        self.count(Counter::Compile)
    }

    /// Programs started; each device that runs one counts.
    pub fn executions(&self) -> u64 {
        self.count(Counter::Execute)
    }

    /// Arrays that programs returned.
    pub fn outputs(&self) -> u64 {
        self.count(Counter::Output)
    }

    /// Arrays read back to the host.
    pub fn downloads(&self) -> u64 {
        self.count(Counter::Download)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        SCOPES.with_borrow_mut(|scopes| scopes.retain(|c| !Arc::ptr_eq(c, &self.counts)));
    }
}

/// Adds to every scope of the calling thread.
pub(crate) fn add(counter: Counter, n: u64) {
    SCOPES.with_borrow(|scopes| {
        for counts in scopes {
            counts.0[counter as usize].fetch_add(n, Ordering::Relaxed);
        }
    });
}

/// The scopes of a thread, to be continued on a thread it starts.
#[derive(Debug, Clone)]
pub struct Inherited(Vec<Arc<Counts>>);

/// What a thread about to start another hands to it.
pub fn inherit() -> Inherited {
    SCOPES.with_borrow(|scopes| Inherited(scopes.clone()))
}

impl Inherited {
    /// Lets the calling thread's work count in the scopes handed over.
    pub fn adopt(self) {
        SCOPES.with_borrow_mut(|scopes| scopes.extend(self.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_nest_and_threads_join_them() {
        let outer = Scope::new();
        add(Counter::Compile, 1);
        let inner = Scope::new();
        let handed = inherit();
        std::thread::spawn(move || {
            add(Counter::Compile, 100);
            handed.adopt();
            add(Counter::Compile, 1);
        })
        .join()
        .unwrap();
        assert_eq!((outer.compiles(), inner.compiles()), (2, 1));
        drop(inner);
        add(Counter::Compile, 1);
        assert_eq!(outer.compiles(), 3);
    }
}
