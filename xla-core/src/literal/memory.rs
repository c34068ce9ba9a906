//! The memory of literals: aligned and their own, a vector they were given, or somebody else's.

use crate::Element;
use std::sync::Arc;

/// Alignment of the memory that literals allocate. XLA takes host memory without a copy only when
/// it is aligned to a cache line.
pub(super) const ALIGNMENT: usize = 64;

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C, align(64))]
struct Line([u8; ALIGNMENT]);

/// Memory that a literal owns.
pub(super) trait Memory: Send + Sync {
    fn bytes(&self) -> &[u8];

    /// Whether the bytes are known to stay where and what they are.
    fn is_fixed(&self) -> bool {
        true
    }
}

struct Lines {
    lines: Vec<Line>,
    len: usize,
}

impl Memory for Lines {
    fn bytes(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.lines)[..self.len]
    }
}

/// So many bytes, filled by `fill`, which is handed zeros.
pub(super) fn aligned(len: usize, fill: impl FnOnce(&mut [u8])) -> Arc<dyn Memory> {
    let mut lines = bytemuck::zeroed_vec::<Line>(len.div_ceil(ALIGNMENT));
    fill(&mut bytemuck::cast_slice_mut(&mut lines)[..len]);
    Arc::new(Lines { lines, len })
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
