//! What is loaded of a checkpoint, and whether it fits what it is loaded into.

use super::index::Entry;
use super::placed::Placement;
use crate::IncompatibleKeys;
use xla_core::{DType, DTypeConflict, Error, Result, ShapeConflict, Site};
use xla_lazy::Tensor;

/// A tensor to be loaded.
pub(super) struct Wanted<'a> {
    pub(super) entry: &'a Entry,
    pub(super) placement: Placement,
    /// Another dtype than the saved one.
    pub(super) dtype: Option<DType>,
}

impl<'a> Wanted<'a> {
    pub(super) fn like(entry: &'a Entry, tensor: &Tensor) -> Result<Self> {
        Ok(Wanted {
            entry,
            placement: Placement::of(tensor)?,
            dtype: None,
        })
    }
}

/// What does not fit between a checkpoint and what it is loaded into.
#[derive(Default)]
pub(super) struct Misfits {
    pub(super) missing: Vec<String>,
    pub(super) unexpected: Vec<String>,
    mismatched: Vec<ShapeConflict>,
    mistyped: Vec<DTypeConflict>,
}

impl Misfits {
    /// Whether what is saved has the tensor's shape and dtype.
    pub(super) fn fits(&mut self, name: &str, entry: &Entry, tensor: &Tensor) -> bool {
        if entry.shape != tensor.dims() {
            self.mismatched.push(ShapeConflict {
                key: name.to_owned(),
                expected: tensor.dims().to_vec(),
                got: entry.shape.clone(),
            });
            return false;
        }
        if entry.dtype != tensor.dtype() {
            self.mistyped.push(DTypeConflict {
                key: name.to_owned(),
                expected: tensor.dtype(),
                got: entry.dtype,
            });
            return false;
        }
        true
    }

    pub(super) fn check(self, op: &'static str, strict: bool) -> Result<IncompatibleKeys> {
        let Misfits {
            missing,
            unexpected,
            mismatched,
            mistyped,
        } = self;
        let names = !(missing.is_empty() && unexpected.is_empty());
        if mismatched.is_empty() && mistyped.is_empty() && !(strict && names) {
            return Ok(IncompatibleKeys {
                missing,
                unexpected,
            });
        }
        let of = |names| if strict { names } else { Vec::new() };
        Err(Error::StateDict {
            op,
            missing: of(missing),
            unexpected: of(unexpected),
            mismatched,
            mistyped,
            at: Site::NONE,
        })
    }
}
