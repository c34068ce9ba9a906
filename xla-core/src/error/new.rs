//! Constructors of the errors that are made in many places.

use super::{Error, Site};
use crate::DType;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

impl Error {
    /// A shape error; the caller's line is added by [`Error::at`].
    pub fn shape(op: &'static str, expected: impl Into<String>, got: impl fmt::Display) -> Self {
        Error::ShapeMismatch {
            op,
            expected: expected.into(),
            got: got.to_string(),
            at: Site::NONE,
        }
    }

    /// A dtype error; the caller's line is added by [`Error::at`].
    pub fn dtype(op: &'static str, expected: impl Into<String>, got: DType) -> Self {
        Error::DTypeMismatch {
            op,
            expected: expected.into(),
            got,
            at: Site::NONE,
        }
    }

    /// An argument error; the caller's line is added by [`Error::at`].
    pub fn argument(
        op: &'static str,
        argument: &'static str,
        expected: impl Into<String>,
        got: impl fmt::Display,
    ) -> Self {
        Error::Argument {
            op,
            argument,
            expected: expected.into(),
            got: got.to_string(),
            at: Site::NONE,
        }
    }

    /// An error of the operating system.
    pub fn system(call: &'static str, source: std::io::Error) -> Self {
        Error::System {
            call,
            source: Arc::new(source),
        }
    }

    /// An I/O error on a path.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::Io {
            path: path.into(),
            source: Arc::new(source),
        }
    }
}
