//! What is counted, and the process's totals.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident => $name:literal,)*) => {
        /// What is counted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum Counter {
            $($(#[$doc])* $variant,)*
        }

        impl Counter {
            /// Every counter, in the order that reports list them.
            pub const ALL: &[Counter] = &[$(Counter::$variant,)*];

            /// The name in reports: PyTorch/XLA's where it counts the same.
            pub fn name(self) -> &'static str {
                match self {
                    $(Counter::$variant => $name,)*
                }
            }
        }
    };
}

counters! {
    /// Calls of `sync`.
    MarkStep => "MarkStep",
    /// Programs that were found compiled.
    CachedCompile => "CachedCompile",
    /// Programs that were not, and had to be compiled or loaded.
    UncachedCompile => "UncachedCompile",
    /// Programs that the compiler made.
    Compile => "CreateCompileHandles",
    /// Programs loaded from the persistent cache instead.
    PersistentCacheHit => "PersistentCacheHit",
    /// Programs looked for in the persistent cache in vain.
    PersistentCacheMiss => "PersistentCacheMiss",
    /// Programs started on one device.
    Execute => "Execute",
    /// Arrays that programs returned, those that are kept beyond them.
    Output => "Output",
    /// Arguments that could have been overwritten, since the program computes their new value, and
    /// were copied instead.
    DonationMissed => "DonationMissed",
    /// Arrays sent to a device.
    Upload => "TransferToDevice",
    /// Bytes sent to a device.
    UploadBytes => "OutboundBytes",
    /// Arrays read from a device.
    Download => "TransferFromDevice",
    /// Bytes read from a device.
    DownloadBytes => "InboundBytes",
}

pub(super) const COUNTERS: usize = Counter::ALL.len();

/// One number a counter.
#[derive(Debug)]
pub(super) struct Counts([AtomicU64; COUNTERS]);

impl Counts {
    pub(super) const fn new() -> Self {
        Counts([const { AtomicU64::new(0) }; COUNTERS])
    }

    pub(super) fn add(&self, counter: Counter, n: u64) {
        self.0[counter as usize].fetch_add(n, Ordering::Relaxed);
    }

    pub(super) fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize].load(Ordering::Relaxed)
    }
}

/// Those of the process.
pub(super) static TOTALS: Counts = Counts::new();

/// How much of this has happened in the process since it began, or since [`clear`](super::clear).
pub fn total(counter: Counter) -> u64 {
    TOTALS.get(counter)
}

pub(super) fn clear() {
    for count in &TOTALS.0 {
        count.store(0, Ordering::Relaxed);
    }
}
