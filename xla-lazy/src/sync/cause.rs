//! Why a trace is executed: what each compile and execution is put down to.

use std::fmt;
use std::panic::Location;

/// What made a trace run, with the user's line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Cause {
    /// [`crate::sync`].
    Sync { at: &'static Location<'static> },
    /// A value was needed on the host, or on another device, by the method `what`.
    Read {
        what: &'static str,
        at: &'static Location<'static>,
    },
    /// The operator `op` takes a value that is pending in another trace.
    Operand {
        op: &'static str,
        at: &'static Location<'static>,
    },
    /// The collective `op` belongs to another gang than those that are pending.
    OtherGang {
        op: &'static str,
        at: &'static Location<'static>,
    },
    /// A compiled function of this name was called.
    Compiled {
        name: &'static str,
        at: &'static Location<'static>,
    },
}

impl Cause {
    /// The method or operator that the execution is put down to.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Cause::Sync { .. } => "sync",
            Cause::Read { what, .. } => what,
            Cause::Operand { op, .. } | Cause::OtherGang { op, .. } => op,
            Cause::Compiled { name, .. } => name,
        }
    }

    /// The line that the execution is put down to.
    pub(crate) fn location(self) -> &'static Location<'static> {
        match self {
            Cause::Sync { at }
            | Cause::Read { at, .. }
            | Cause::Operand { at, .. }
            | Cause::OtherGang { at, .. }
            | Cause::Compiled { at, .. } => at,
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cause::Sync { .. } => f.write_str("sync()")?,
            Cause::Read { what, .. } => write!(f, "{what}() read a value")?,
            Cause::Operand { op, .. } => write!(f, "{op} needs a value of another trace")?,
            Cause::OtherGang { op, .. } => write!(f, "{op} belongs to another group")?,
            Cause::Compiled { name, .. } => write!(f, "compiled function {name} called")?,
        }
        write!(f, " at {}", self.location())
    }
}
