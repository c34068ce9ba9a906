//! One program over several devices: how the devices are arranged, and how tensors are split over
//! them.
//!
//! A [`Mesh`] arranges devices in a grid with named axes. A [`PartitionSpec`] says for each axis of
//! a tensor over which of the mesh's axes it is split; both together are a [`NamedSharding`].

#[allow(dead_code, reason = "lowering uses the rest")]
mod mesh;
#[allow(dead_code, reason = "lowering uses the rest")]
mod sharding;
mod spec;
#[allow(dead_code, reason = "lowering uses it")]
mod text;
#[allow(dead_code, reason = "what executions return uses it")]
mod tiles;
mod visualize;

pub use mesh::Mesh;
pub use sharding::NamedSharding;
pub use spec::{PartitionSpec, SpecAxes};
pub use visualize::{visualize_sharding, visualize_sharding_svg};

#[cfg(test)]
mod tests;
