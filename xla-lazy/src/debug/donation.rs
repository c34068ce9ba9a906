//! Which arguments a program could have overwritten but copied, and why.

use super::size::{Part, bytes};
use crate::ty::Ty;
use std::cell::RefCell;
use std::fmt;
use std::panic::Location;
use xla_core::Result;
use xla_runtime::metrics::Unit;

/// Why a value was not overwritten by the one that takes its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NotDonated {
    /// Something besides the tensor holds the value: a value saved for a backward pass, a snapshot,
    /// or a read under way on another thread. It was copied.
    Shared,
    /// What was recorded after the part that ran still reads the old value.
    ReadLater,
    /// Another replica, which ran the same program, still needs its old value, or has no tensor any more
    /// that takes the new one.
    OtherReplica,
    /// No tensor was changed in place: its last handle was dropped, while the program returned a
    /// value of the same type in new memory.
    Replaced,
}

impl fmt::Display for NotDonated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotDonated::Shared => {
                "something else holds the value: a value saved for a backward pass, a snapshot, or a read under way; drop it before the next sync()"
            }
            NotDonated::ReadLater => {
                "what was recorded after the part that ran reads the old value: read it before the change"
            }
            NotDonated::OtherReplica => {
                "another replica still needs its old value: hold the same tensors on all replicas"
            }
            NotDonated::Replaced => {
                "it was replaced rather than changed: change it in place (add_, sub_, copy_)"
            }
        })
    }
}

/// A value whose memory the program could have used again but did not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct MissedDonation {
    /// Dtype and shape.
    pub ty: Ty,
    /// Its size.
    pub bytes: u64,
    /// The line that first read the value in the program.
    pub read_at: &'static Location<'static>,
    /// The operator that computes its new value, and the line that called it.
    pub changed: Option<(&'static str, &'static Location<'static>)>,
    /// Why not.
    pub reason: NotDonated,
}

impl MissedDonation {
    pub(crate) fn new(
        ty: Ty,
        read_at: &'static Location<'static>,
        changed: Option<(&'static str, &'static Location<'static>)>,
        reason: NotDonated,
    ) -> Self {
        MissedDonation {
            ty,
            bytes: bytes(ty),
            read_at,
            changed,
            reason,
        }
    }
}

impl fmt::Display for MissedDonation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Unit::Bytes.show(self.bytes as f64);
        write!(f, "{} ({bytes}), read at {}", self.ty, self.read_at)?;
        if let Some((op, at)) = self.changed {
            write!(f, ", changed by {op} at {at}")?;
        }
        write!(f, ": {}", self.reason)
    }
}

/// What the programs that a function ran did with the memory of their arguments.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Donations {
    /// Arguments that were overwritten.
    pub donated: usize,
    /// Their bytes.
    pub donated_bytes: u64,
    /// Arguments that could have been.
    pub missed: Vec<MissedDonation>,
}

impl fmt::Display for Donations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = Unit::Bytes.show(self.donated_bytes as f64);
        write!(f, "donated: {} ({bytes})", self.donated)?;
        for missed in &self.missed {
            write!(f, "\nnot donated: {missed}")?;
        }
        Ok(())
    }
}

thread_local! {
    static AUDIT: RefCell<Option<Donations>> = const { RefCell::new(None) };
}

/// Runs `f`, then what it has recorded, and tells which arguments of the calling thread's programs
/// were overwritten by their new values, and which were copied although they could have been.
///
/// ```no_run
/// use xla_lazy::{Tensor, debug};
/// let mut weights = Tensor::from_slice(&[1.0f32, 2.0], [2], ())?;
/// let ((), audit) = debug::donations(|| {
///     weights = weights.mul(0.5)?;
///     Ok(())
/// })?;
/// assert_eq!(audit.missed[0].reason, debug::NotDonated::Replaced);
///
/// let ((), audit) = debug::donations(|| weights.mul_(0.5).map(drop))?;
/// assert_eq!((audit.donated, audit.missed.len()), (1, 0));
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// # Errors
/// Those of `f` and of [`crate::sync`].
#[track_caller]
pub fn donations<T>(f: impl FnOnce() -> Result<T>) -> Result<(T, Donations)> {
    /// Gives the audit around this one back, also after a panic.
    struct Outer(Option<Donations>);
    impl Drop for Outer {
        fn drop(&mut self) {
            AUDIT.set(self.0.take());
        }
    }
    // What was recorded before is not part of it.
    crate::sync()?;
    let _outer = Outer(AUDIT.replace(Some(Donations::default())));
    let value = f()?;
    crate::sync()?;
    Ok((value, AUDIT.take().unwrap_or_default()))
}

/// Whether somebody asks.
pub(crate) fn audited() -> bool {
    AUDIT.with_borrow(Option::is_some)
}

/// Adds what one program did.
pub(crate) fn note(donated: Part, missed: &[MissedDonation]) {
    AUDIT.with_borrow_mut(|audit| {
        if let Some(audit) = audit {
            audit.donated += donated.count;
            audit.donated_bytes += donated.bytes;
            audit.missed.extend_from_slice(missed);
        }
    });
}
