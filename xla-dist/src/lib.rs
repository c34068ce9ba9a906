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
//! Values of the host travel at once, through the store that the processes have in common:
//! [`all_gather_object`], [`broadcast_object`], [`mesh_reduce`]. They are for what is small.
#![deny(unsafe_code)]

mod exchange;
mod gang;
mod group;
mod lobby;
mod objects;
mod ops;
mod subgroup;
#[allow(dead_code)] // parts of it serve measurements, or the feature `gloo`, only
mod transport;
mod world;

pub use gang::OVERDUE_EXIT_CODE;
pub use group::{
    ProcessGroup, destroy_process_group, get_rank, get_world_size, init_process_group,
    is_initialized,
};
pub use objects::{
    all_gather_object, broadcast_object, broadcast_object_list, gather_object, is_master,
    mesh_reduce, scatter_object,
};
pub use ops::*;
pub use subgroup::{Subgroups, new_group, new_subgroups, new_subgroups_by_enumeration};

use xla_core::Result;

/// The calling replica's default process group.
///
/// # Errors
/// [`xla_core::Error::ProcessGroup`] when there is none.
pub fn default_group() -> Result<std::sync::Arc<ProcessGroup>> {
    group::current("default_group")
}
