//! Where a replica panicked: what the panic's value does not say.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::cell::RefCell;
use std::panic;
use std::sync::Once;
use std::thread;
use xla_runtime::context;

/// The line, as it follows the panic's words, and the backtrace where there is one.
type Place = (String, Option<String>);

thread_local! {
    static PLACE: RefCell<Option<Place>> = const { RefCell::new(None) };
}

/// Has the place of each later panic of a replica noted, before whatever else the program has
/// happen in its hook. The backtrace is taken where the environment asks for one, as
/// `RUST_BACKTRACE` does.
pub(crate) fn note_places() {
    static ONCE: Once = Once::new();
    // The hook cannot be changed during a panic.
    if thread::panicking() {
        return;
    }
    ONCE.call_once(|| {
        let previous = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if context::in_launch() {
                let line = info
                    .location()
                    .map(|line| format!(" (at {line})"))
                    .unwrap_or_default();
                let backtrace = Backtrace::capture();
                let captured = backtrace.status() == BacktraceStatus::Captured;
                PLACE.set(Some((line, captured.then(|| backtrace.to_string()))));
            }
            previous(info);
        }));
    });
}

/// Where the calling thread last panicked.
pub(crate) fn take() -> Option<Place> {
    PLACE.take()
}
