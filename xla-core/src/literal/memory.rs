//! The memory of literals: aligned and their own, a vector they were given, or somebody else's.

use crate::Element;
use std::sync::Arc;

/// Alignment of the memory that literals allocate. XLA takes host memory without a copy only when
/// it is aligned to a cache line.
pub(super) const ALIGNMENT: usize = 64;

/// Memory that a literal owns.
pub(super) trait Memory: Send + Sync {
    fn bytes(&self) -> &[u8];

    /// Whether the bytes are known to stay where and what they are.
    fn is_fixed(&self) -> bool {
        true
    }
}

/// Aligned bytes within an allocation that need not be: one that asks for more than the allocator's own
/// alignment cannot be had zeroed, and would be written twice.
struct Within {
    allocation: Vec<u8>,
    start: usize,
    len: usize,
}

impl Memory for Within {
    fn bytes(&self) -> &[u8] {
        &self.allocation[self.start..][..self.len]
    }
}

/// So many bytes, filled by `fill`, which is handed zeros.
pub(super) fn aligned(len: usize, fill: impl FnOnce(&mut [u8])) -> Arc<dyn Memory> {
    let mut allocation = vec![0; len.saturating_add(ALIGNMENT - 1)];
    let start = allocation.as_ptr().addr().wrapping_neg() % ALIGNMENT;
    fill(&mut allocation[start..][..len]);
    Arc::new(Within {
        allocation,
        start,
        len,
    })
}

pub(super) struct Elements<T>(pub(super) Vec<T>);

impl<T: Element> Memory for Elements<T> {
    fn bytes(&self) -> &[u8] {
        bytemuck::cast_slice(&self.0)
    }
}

/// What an owner returns, who may be anybody.
pub(super) struct Owned<O>(pub(super) O);

impl<O: AsRef<[u8]> + Send + Sync> Memory for Owned<O> {
    fn bytes(&self) -> &[u8] {
        self.0.as_ref()
    }

    fn is_fixed(&self) -> bool {
        false
    }
}
