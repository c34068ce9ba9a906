//! Parameters that are split over the devices of a mesh.

mod fully;
mod parallel;

pub use fully::{FullyShardOptions, fully_shard, fully_shard_with};
pub use parallel::{ParallelStyle, parallelize_module};

use xla_core::Result;
use xla_lazy::Tensor;
use xla_lazy::spmd::{self, Mesh, NamedSharding, PartitionSpec, SpecAxes};

/// How a tensor is marked over this mesh. One that is on another mesh, or on a real device, is not.
pub(crate) fn marked(tensor: &Tensor, mesh: &Mesh) -> Option<NamedSharding> {
    spmd::marked(tensor).filter(|sharding| sharding.mesh() == *mesh)
}

/// Brings tensors that nobody has marked to the mesh, a whole one to each device.
pub(crate) fn replicate_unmarked(tensors: &[Tensor], mesh: &Mesh) -> Result<()> {
    tensors
        .iter()
        .filter(|tensor| marked(tensor, mesh).is_none())
        .try_for_each(|tensor| spmd::mark_sharding(tensor, mesh, ()))
}

/// A specification of so many axes, of which this one is split over `axes`.
pub(crate) fn with_axis(
    spec: &PartitionSpec,
    rank: usize,
    axis: usize,
    axes: SpecAxes,
) -> PartitionSpec {
    let mut all = spec.axes().to_vec();
    all.resize(rank, SpecAxes::default());
    all[axis] = axes;
    PartitionSpec::new(all)
}
