//! Groups of a mesh's devices, in the body of a `shard_map`.

use super::{Members, ProcessGroup, Role, current};
use crate::ops::ReplicaGroups;
use crate::world::World;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use xla_core::{Error, Result};
use xla_lazy::spmd::{self, Mesh, SpecAxes};
use xla_runtime::context;
use xla_store::Store;

impl ProcessGroup {
    /// The devices of a mesh that differ along these axes only.
    #[track_caller]
    fn along(call: &'static str, mesh: &Mesh, axes: &SpecAxes) -> Result<ProcessGroup> {
        let groups = ReplicaGroups::along(mesh, axes)?;
        let size = groups.size();
        let role = match size {
            1 => Role::Alone,
            _ => Role::Member(Members {
                gang: None,
                groups,
                position: 0,
            }),
        };
        Ok(ProcessGroup {
            rank: 0,
            ranks: (0..size).collect(),
            device: mesh.device(),
            role,
            world: World::within(context::current(call)?.launch(), Store::local()),
            name: axes.to_string(),
            destroyed: AtomicBool::new(false),
            generation: 0,
            children: AtomicU64::new(0),
            exchanges: AtomicU64::new(0),
        })
    }

    /// Refuses what takes a replica for each member: all devices of a mesh are driven by one.
    pub(crate) fn check_replicas(&self, op: &'static str, advice: &'static str) -> Result<()> {
        if !self.device.is_virtual() {
            return Ok(());
        }
        Err(Error::ProcessGroup {
            what: op,
            state: "the group's members are devices of a mesh, which one replica drives".into(),
            advice,
        })
    }
}

/// In the body of a [`shard_map`](xla_lazy::spmd::shard_map): the group of the mesh's devices that
/// differ along these axes only, to communicate along a part of the mesh. Without a group the
/// collectives there are of all devices.
///
/// The members' ranks are their places along the axes, of which the first counts most, as
/// [`axis_index`](xla_lazy::spmd::axis_index) tells them.
///
/// # Errors
/// [`Error::Argument`] outside of a `shard_map`, for an axis that its mesh does not have, and for one
/// named twice.
///
/// ```no_run
/// # fn demo(mesh: &xla_lazy::spmd::Mesh, x: &xla_lazy::Tensor) -> xla_core::Result<()> {
/// use xla_dist::ReduceOp;
/// // `x` is split over both axes of the mesh; the sum over its rows.
/// let sums = xla_lazy::spmd::shard_map(mesh, [("data", "model")], [((), "model")], &[x], |block| {
///     let rows = xla_dist::axis_group("data")?;
///     Ok(vec![rows.all_reduce(&block[0].sum(0, true)?, ReduceOp::Sum)?])
/// })?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn axis_group(axes: impl Into<SpecAxes>) -> Result<Arc<ProcessGroup>> {
    const CALL: &str = "axis_group";
    let at = Location::caller();
    let Some(mesh) = spmd::manual_mesh() else {
        let expected = "a call in the body of a shard_map";
        return Err(Error::argument(CALL, "axes", expected, "one outside of it").at(at));
    };
    let group = ProcessGroup::along(CALL, &mesh, &axes.into());
    group.map(Arc::new).map_err(|e| e.named(CALL))
}

/// The group that collectives are of by default: in the body of a `shard_map` that of all devices of
/// the mesh, else the calling replica's default group. `what` is the call that needs it.
///
/// # Errors
/// [`Error::ProcessGroup`] when there is none.
pub(crate) fn collective(what: &'static str) -> Result<Arc<ProcessGroup>> {
    match spmd::manual_mesh() {
        None => current(what),
        Some(mesh) => {
            let all = mesh.axis_names().into();
            ProcessGroup::along(what, &mesh, &all).map(Arc::new)
        }
    }
}
