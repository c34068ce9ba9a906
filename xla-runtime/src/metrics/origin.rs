//! On whose behalf something is done: the user's line that what is counted is put down to.

use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;

/// A call of the user's that makes the library compile, execute or transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Origin {
    /// What was called.
    pub what: &'static str,
    /// Where.
    pub location: &'static Location<'static>,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}() at {}", self.what, self.location)
    }
}

thread_local! {
    static CURRENT: Cell<Option<Origin>> = const { Cell::new(None) };
}

/// What the calling thread does is put down to this call, until the guard is dropped. A call within
/// another one, as when a method of the library uses another, is the outer one's.
pub fn attribute(what: &'static str, location: &'static Location<'static>) -> Attributed {
    let outermost = CURRENT.get().is_none();
    if outermost {
        CURRENT.set(Some(Origin { what, location }));
    }
    Attributed {
        outermost,
        _thread: PhantomData,
    }
}

/// Ends an attribution when dropped; see [`attribute`].
#[derive(Debug)]
pub struct Attributed {
    outermost: bool,
    // It ends on the thread where it began.
    _thread: PhantomData<*const ()>,
}

impl Drop for Attributed {
    fn drop(&mut self) {
        if self.outermost {
            CURRENT.set(None);
        }
    }
}

impl Origin {
    /// The call on whose behalf the calling thread works just now.
    pub fn current() -> Option<Origin> {
        CURRENT.get()
    }
}
