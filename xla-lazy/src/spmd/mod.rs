//! One program over several devices: how the devices are arranged, and how tensors are split over
//! them.
//!
//! A [`Mesh`] arranges devices in a grid with named axes. A [`PartitionSpec`] says for each axis of
//! a tensor over which of the mesh's axes it is split; both together are a [`NamedSharding`].

pub(crate) mod blocks;
mod mesh;
mod mode;
mod partitioned;
mod region;
mod sharding;
mod spec;
mod tensor;
mod text;
mod tiles;
mod visualize;

pub use crate::ops::{axis_index, shard_map};
pub use mesh::Mesh;
pub(crate) use mode::{adopt, apart, mesh_of, used_on};
pub use mode::{current_mesh, default_device, enable, is_enabled, scope};
pub(crate) use partitioned::Partitioned;
pub use region::manual_mesh;
pub(crate) use region::{recording, region_mesh};
pub use sharding::NamedSharding;
pub use spec::{PartitionSpec, SpecAxes};
pub(crate) use tensor::spread;
pub use tensor::{Shard, clear_sharding, mark_sharding, marked, visualize_tensor_sharding};
pub use visualize::{visualize_sharding, visualize_sharding_svg};

#[cfg(test)]
mod tests;
