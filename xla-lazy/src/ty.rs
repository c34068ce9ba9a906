//! Tensor types, interned: equal types are the same pointer, so that recording copies and compares
//! one word.

use crate::hash::{self, Hash128};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Mutex, OnceLock, PoisonError};
use xla_core::{DType, Shape};

/// A dtype and a shape. Only [`ty`] makes one.
pub struct TensorType {
    dtype: DType,
    shape: Shape,
    hash: Hash128,
    too_large: bool,
}

/// An interned [`TensorType`]. It lives as long as the process: each distinct shape is part of
/// programs whose compiled code is thousands of times larger.
pub type Ty = &'static TensorType;

impl TensorType {
    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Axis lengths.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Whether the bytes of such a tensor cannot be counted in 63 bits. XLA ends the process that
    /// compiles one.
    pub(crate) fn is_too_large(&self) -> bool {
        self.too_large
    }

    pub(crate) fn hash(&self) -> Hash128 {
        self.hash
    }
}

impl PartialEq for TensorType {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for TensorType {}

impl fmt::Debug for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

const NEAR: usize = 64;

thread_local! {
    // Direct-mapped: recording mostly asks for the few types it asked for before.
    static RECENT: RefCell<[Option<Ty>; NEAR]> = const { RefCell::new([None; NEAR]) };
}

/// The interned type of this dtype and shape.
pub fn ty(dtype: DType, shape: &Shape) -> Ty {
    let mut hash = hash::fold(hash::SEED, dtype as u64, shape.rank() as u64);
    for pair in shape.dims().chunks(2) {
        hash = hash::fold(hash, pair[0] as u64, pair.get(1).map_or(0, |d| *d as u64));
    }
    let slot = hash[0] as usize % NEAR;
    let same = |t: &Ty| t.dtype == dtype && t.shape == *shape;
    if let Some(found) = RECENT.with_borrow(|recent| recent[slot].filter(same)) {
        return found;
    }
    static ALL: OnceLock<Mutex<HashMap<Hash128, Vec<Ty>>>> = OnceLock::new();
    let mut all = ALL
        .get_or_init(Mutex::default)
        .lock()
        .unwrap_or_else(PoisonError::into_inner);
    let bucket = all.entry(hash).or_default();
    let found = match bucket.iter().copied().find(same) {
        Some(found) => found,
        None => {
            let bytes = shape.numel().saturating_mul(dtype.size());
            let new: Ty = Box::leak(Box::new(TensorType {
                dtype,
                shape: shape.clone(),
                hash,
                too_large: bytes > isize::MAX as usize,
            }));
            bucket.push(new);
            new
        }
    };
    drop(all);
    RECENT.with_borrow_mut(|recent| recent[slot] = Some(found));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_types_are_one_pointer_on_every_thread() {
        let a = ty(DType::F32, &Shape::new(&[2, 3]));
        let b = std::thread::spawn(|| ty(DType::F32, &Shape::new(&[2, 3])))
            .join()
            .unwrap();
        assert!(std::ptr::eq(a, b));
        assert!(!std::ptr::eq(a, ty(DType::F32, &Shape::new(&[3, 2]))));
        assert!(!std::ptr::eq(a, ty(DType::F64, &Shape::new(&[2, 3]))));
    }
}
