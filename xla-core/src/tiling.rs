//! How an array is spread over the partitions of a program.

/// How the compiler spreads an array over the partitions of a program: which partition holds which
/// tile. The general form, of which a sharding by the axes of a mesh is a special case.
///
/// `devices` is an array of the shape `dims`, row-major: the partition that holds the tile at each
/// place. `dims` has one entry for each axis of the array, the number of tiles along it, and with
/// `replicate_last` one more, along which partitions hold the same tile. Without entries every
/// partition holds the whole array, and `devices` is empty.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Tiling {
    /// Tiles along each axis of the array, and how many partitions hold each of them.
    pub dims: Vec<usize>,
    /// The partition of each place, row-major.
    pub devices: Vec<usize>,
    /// Whether the last of `dims` counts partitions that hold the same tile.
    pub replicate_last: bool,
}

impl Tiling {
    /// That by which every partition holds the whole array.
    pub fn replicated() -> Self {
        Self::default()
    }

    /// Tiles along each axis of the array, without the axis of replicas; empty where every partition
    /// holds all of it.
    ///
    /// ```
    /// let tiling = xla_core::Tiling {
    ///     dims: vec![2, 1, 2],
    ///     devices: vec![0, 1, 2, 3],
    ///     replicate_last: true,
    /// };
    /// assert_eq!(tiling.tiles(), [2, 1]);
    /// ```
    pub fn tiles(&self) -> &[usize] {
        let replicas = usize::from(self.replicate_last);
        &self.dims[..self.dims.len().saturating_sub(replicas)]
    }
}
