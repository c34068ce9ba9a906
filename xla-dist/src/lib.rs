//! Process groups and collectives: how the replicas of a program communicate.
//!
//! ```
//! use xla_dist::{self as dist, ReduceOp};
//! use xla_lazy::Tensor;
//!
//! dist::init_process_group("xla", "xla://")?;
//! let x = Tensor::from_slice(&[1.0_f32, 2.0], [2], ())?;
//! let mean = dist::all_reduce(&x, ReduceOp::Mean)?;
//! # assert_eq!(dist::get_world_size()?, 1);
//! # dist::destroy_process_group()?;
//! # drop(mean);
//! # Ok::<(), xla_core::Error>(())
//! ```
//!
//! A collective is an operator of the program, compiled with what surrounds it, so the compiler
//! can fuse it and overlap it with computation. Nothing is communicated when [`all_reduce`]
//! returns: it records, like any operator, and the next sync (or read) executes.
//!
//! XLA ends the process when a replica that takes part in a collective never comes. So before a
//! program with collectives runs, its replicas meet and compare what they are about to run. A rank
//! whose program differs, that has returned, that failed, or that does not come before the
//! deadline is an error on every rank that waits for it. It is no error when one rank reads a
//! value, or keeps one, that the others do not: they settle on what all have recorded. (Two ranks
//! that read at two different places before the same collective have cut their programs where no
//! common one is left: that is divergence.)
//!
//! In the body of a [`shard_map`](xla_lazy::spmd::shard_map) the same functions are collectives of the
//! mesh's devices, within the one program that all of them run: of all devices, or along some axes of
//! the mesh by an [`axis_group`].
//!
//! Values of the host travel at once, through the store that the processes have in common:
//! [`all_gather_object`], [`broadcast_object`], [`mesh_reduce`]. They are for what is small.
//!
//! # Coming from PyTorch
//! Every collective is a method of [`ProcessGroup`] and, for the default group, a function. Ranks are
//! global, results are returned (a name that ends in `_` changes its argument), and all but those
//! that do are differentiable.
//!
//! | PyTorch | here |
//! | --- | --- |
//! | `dist.all_reduce(x, op=AVG)` | [`all_reduce_`]`(&x, ReduceOp::Mean)`, or [`all_reduce`] |
//! | `xm.all_reduce("sum", x, scale=s)` | `all_reduce(&x, ReduceOp::Sum.scale(s))` |
//! | `xm.all_reduce("sum", [x, y])` | [`all_reduce_many`]`(&[&x, &y], ReduceOp::Sum)`; [`all_reduce_bucketed`] with a cap |
//! | `dist.all_gather(list, x)` | [`all_gather`]`(&x)` |
//! | `dist.all_gather_into_tensor(out, x)`, `xm.all_gather(x, dim)` | [`all_gather_into_tensor`]`(&x, dim)` |
//! | `dist.reduce_scatter_tensor(out, x)`, `xm.reduce_scatter` | [`reduce_scatter_tensor`]`(&x, dim, op)` |
//! | `dist.all_to_all_single(out, x, out_sizes, in_sizes)` | [`all_to_all_single`]`(&x, &`[`AllToAllOptions`]`)` |
//! | `xm.all_to_all(x, split, concat, n)` | [`all_to_all_tensor`]`(&x, split, concat)` |
//! | `dist.broadcast(x, src)` | [`broadcast_`]`(&x, src)`, or [`broadcast`] |
//! | `dist.reduce(x, dst)`, `gather`, `scatter` | [`reduce`], [`gather`], [`scatter`]: zeros where PyTorch gives nothing |
//! | `xm.collective_permute(x, pairs)` | [`collective_permute`]`(&x, pairs)` |
//! | `dist.batch_isend_irecv(ops)` | [`send_recv`]`(transfers)`, the same list on every rank |
//! | `dist.new_group(ranks)`, `new_subgroups` | [`new_group`], [`new_subgroups`], [`new_subgroups_by_enumeration`] |
//! | `group=g` | a method: `g.all_reduce(&x, ReduceOp::Sum)` |
#![deny(unsafe_code)]

mod backend;
mod exchange;
mod gang;
mod group;
mod lobby;
mod objects;
mod ops;
mod subgroup;
mod transport;
mod world;

#[cfg(feature = "gloo")]
#[doc(hidden)]
pub use transport::bench;

pub use backend::{BackendWorld, register_backend};
pub use gang::OVERDUE_EXIT_CODE;
pub use group::{
    ProcessGroup, axis_group, destroy_process_group, get_rank, get_world_size, init_process_group,
    is_initialized,
};
pub use objects::{
    all_gather_object, broadcast_object, broadcast_object_list, gather_object, is_master,
    mesh_reduce, scatter_object,
};
pub use ops::*;
pub use subgroup::{Subgroups, new_group, new_subgroups, new_subgroups_by_enumeration};

use xla_core::Result;

/// The calling replica's default process group; in the body of a
/// [`shard_map`](xla_lazy::spmd::shard_map) that of all devices of its mesh.
///
/// # Errors
/// [`xla_core::Error::ProcessGroup`] when there is none.
pub fn default_group() -> Result<std::sync::Arc<ProcessGroup>> {
    group::collective("default_group")
}
