//! The line of the user's program that an error is about.

use std::fmt;
use std::panic::Location;

/// The line of the user's program that an operator was called on, when it is known.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Site(Option<&'static Location<'static>>);

impl Site {
    /// Not known (yet): [`Error::at`](crate::Error::at) fills it in.
    pub const NONE: Site = Site(None);

    /// The line that called the function this is written in (which must be `#[track_caller]`).
    #[track_caller]
    pub fn caller() -> Site {
        Site(Some(Location::caller()))
    }

    /// The file, line and column.
    pub fn location(self) -> Option<&'static Location<'static>> {
        self.0
    }
}

impl From<&'static Location<'static>> for Site {
    fn from(location: &'static Location<'static>) -> Self {
        Site(Some(location))
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(l) => write!(f, " (at {}:{}:{})", l.file(), l.line(), l.column()),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(l) => write!(f, "{}:{}:{}", l.file(), l.line(), l.column()),
            None => f.write_str("unknown"),
        }
    }
}
