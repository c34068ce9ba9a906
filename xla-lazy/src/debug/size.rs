//! How large a program is, for people.

use crate::ty::Ty;
use std::fmt;
use xla_runtime::metrics::Unit;

/// Arrays that a program takes or returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) count: usize,
    pub(crate) bytes: u64,
}

impl Part {
    pub(crate) fn of(types: impl Iterator<Item = Ty>) -> Self {
        types.fold(Part { count: 0, bytes: 0 }, |sum, ty| Part {
            count: sum.count + 1,
            bytes: sum.bytes + bytes(ty),
        })
    }
}

/// The bytes of such a tensor.
pub(crate) fn bytes(ty: Ty) -> u64 {
    (ty.shape().numel() as u64).saturating_mul(ty.dtype().size() as u64)
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Unit::Bytes.show(self.bytes as f64);
        write!(f, "{} ({bytes})", self.count)
    }
}

/// Memory beyond arguments and results that one execution takes, in bytes, as the plugin says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) temporaries: u64,
    pub(crate) code: u64,
}

/// What is known of a compiled program's size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Size {
    /// Those that the results need.
    pub(crate) operators: usize,
    pub(crate) arguments: Part,
    pub(crate) results: Part,
    /// The arguments that results may overwrite.
    pub(crate) donated: Part,
    pub(crate) memory: Option<Memory>,
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} operators, arguments {}, results {}, donated {}",
            self.operators, self.arguments, self.results, self.donated
        )?;
        if let Some(memory) = self.memory {
            let temporaries = Unit::Bytes.show(memory.temporaries as f64);
            write!(f, ", temporaries {temporaries}")?;
            // Not every plugin counts it.
            if memory.code > 0 {
                write!(f, ", code {}", Unit::Bytes.show(memory.code as f64))?;
            }
        }
        Ok(())
    }
}
