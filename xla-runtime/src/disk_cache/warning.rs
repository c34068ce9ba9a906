//! One warning a process for each kind of trouble with the cache.

use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use tracing::subscriber::NoSubscriber;

/// What may be wrong.
#[derive(Clone, Copy)]
pub(super) enum Warning {
    /// An entry is there but cannot be read.
    Unreadable,
    /// An entry is damaged, of another version, or refused by the plugin.
    Unusable,
    /// Nothing can be written.
    Unwritable,
}

impl Warning {
    const COUNT: usize = 3;

    /// Warns, unless this process has warned of the same kind of trouble before. Where the program
    /// collects no `tracing` events, the warning goes to standard error.
    pub(super) fn give(self, path: &Path, reason: &dyn Display) {
        static GIVEN: [AtomicBool; Warning::COUNT] = [const { AtomicBool::new(false) }; 3];
        if GIVEN[self as usize].swap(true, Ordering::Relaxed) {
            tracing::debug!(path = %path.display(), %reason, "persistent cache");
            return;
        }
        let text = format!(
            "persistent cache: {}: {reason}; {}",
            path.display(),
            match self {
                Warning::Unreadable => "the program is compiled instead",
                Warning::Unusable => "the program is compiled anew and the file replaced",
                Warning::Unwritable =>
                    "compiled programs are not kept by this process; \
                     name another folder with XLA_PERSISTENT_CACHE_PATH, or switch it off with 0",
            }
        );
        if tracing::dispatcher::get_default(|to| to.is::<NoSubscriber>()) {
            eprintln!("warning: {text}");
        } else {
            tracing::warn!("{text}");
        }
    }
}
