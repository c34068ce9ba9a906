//! How batches are split where all devices of a mesh work on one program.

use crate::sharded::{marked, with_axis};
use xla_core::{Error, Result};
use xla_dist::ProcessGroup;
use xla_lazy::Tensor;
use xla_lazy::spmd::{Mesh, NamedSharding, SpecAxes};

/// Over which axes of which mesh.
#[derive(Debug)]
pub(super) struct Batch {
    mesh: Mesh,
    pub(super) axes: SpecAxes,
}

impl Batch {
    /// Over the mesh's first axis.
    pub(super) fn of(mesh: Mesh) -> Self {
        Batch {
            mesh,
            axes: mesh.axis_names()[0].into(),
        }
    }

    /// The axes, if the mesh has them.
    ///
    /// # Errors
    /// [`Error::Sharding`].
    pub(super) fn checked(&self, axes: SpecAxes) -> Result<SpecAxes> {
        NamedSharding::new(&self.mesh, [axes.clone()])?;
        Ok(axes)
    }

    /// See [`DistributedDataParallel::scatter`](super::DistributedDataParallel::scatter).
    #[track_caller]
    pub(super) fn split(&self, input: &Tensor) -> Result<Tensor> {
        if input.rank() == 0 {
            return Ok(input.clone());
        }
        let now = marked(input, &self.mesh);
        let now = now.unwrap_or_else(|| NamedSharding::replicated(&self.mesh));
        let first = now.spec().axes().first();
        if first.is_some_and(|axes| !axes.is_empty()) {
            return Ok(input.clone());
        }
        let spec = with_axis(now.spec(), input.rank(), 0, self.axes.clone());
        input.with_sharding_constraint(&NamedSharding::new(&self.mesh, spec)?)
    }
}

/// The error of several processes that each have a mesh.
#[cold]
pub(super) fn several(mesh: Mesh, group: &ProcessGroup) -> Error {
    Error::ProcessGroup {
        what: "DistributedDataParallel",
        state: format!(
            "the mesh of {mesh} has devices of this process only, the process group has {} ranks",
            group.size()
        ),
        advice: "run one process over all its devices, or leave SPMD and have a replica on each device",
    }
}
