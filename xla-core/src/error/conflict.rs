//! How a saved state can fail to fit what it is loaded into.

use crate::DType;

/// A name under which a saved state holds a tensor of another shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeConflict {
    /// The name.
    pub key: String,
    /// The shape it should have.
    pub expected: Vec<usize>,
    /// The shape it has in the state.
    pub got: Vec<usize>,
}

/// A name under which a saved state holds a tensor of another dtype.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DTypeConflict {
    /// The name.
    pub key: String,
    /// The dtype it should have.
    pub expected: DType,
    /// The dtype it has in the state.
    pub got: DType,
}
