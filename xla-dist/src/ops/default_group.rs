//! The collectives of the default group, as PyTorch has them without a group. In the body of a
//! `shard_map` they are of all devices of its mesh.

use super::{AllReduceOptions, AllToAllOptions, Transfer};
use crate::group::collective;
use xla_core::Result;
use xla_lazy::Tensor;

/// [`ProcessGroup::all_reduce`](crate::ProcessGroup::all_reduce) in the default group: the combination of all ranks' tensors, on every rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_reduce(tensor: &Tensor, options: impl Into<AllReduceOptions>) -> Result<Tensor> {
    collective("all_reduce")?.all_reduce(tensor, options)
}

/// [`ProcessGroup::all_reduce_`](crate::ProcessGroup::all_reduce_) in the default group: the same in place.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_reduce_(tensor: &Tensor, options: impl Into<AllReduceOptions>) -> Result<Tensor> {
    collective("all_reduce_")?.all_reduce_(tensor, options)
}

/// [`ProcessGroup::all_reduce_many`](crate::ProcessGroup::all_reduce_many) in the default group: many tensors by one collective for each dtype among them.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_reduce_many(
    tensors: &[&Tensor],
    options: impl Into<AllReduceOptions>,
) -> Result<Vec<Tensor>> {
    collective("all_reduce_many")?.all_reduce_many(tensors, options)
}

/// [`ProcessGroup::all_reduce_bucketed`](crate::ProcessGroup::all_reduce_bucketed) in the default group: many tensors by collectives of at most so many MiB.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_reduce_bucketed(
    tensors: &[&Tensor],
    options: impl Into<AllReduceOptions>,
    bucket_cap_mb: f64,
) -> Result<Vec<Tensor>> {
    collective("all_reduce_bucketed")?.all_reduce_bucketed(tensors, options, bucket_cap_mb)
}

/// [`ProcessGroup::all_gather`](crate::ProcessGroup::all_gather) in the default group: all ranks' tensors, on every rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_gather(tensor: &Tensor) -> Result<Vec<Tensor>> {
    collective("all_gather")?.all_gather(tensor)
}

/// [`ProcessGroup::all_gather_into_tensor`](crate::ProcessGroup::all_gather_into_tensor) in the default group: all ranks' tensors in one, on every rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_gather_into_tensor(tensor: &Tensor, dim: i64) -> Result<Tensor> {
    collective("all_gather_into_tensor")?.all_gather_into_tensor(tensor, dim)
}

/// [`ProcessGroup::all_gather_many`](crate::ProcessGroup::all_gather_many) in the default group: many tensors by one collective for each dtype among them.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_gather_many(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    collective("all_gather_many")?.all_gather_many(tensors)
}

/// [`ProcessGroup::all_gather_bucketed`](crate::ProcessGroup::all_gather_bucketed) in the default group: many tensors by collectives of at most so many MiB.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_gather_bucketed(tensors: &[&Tensor], bucket_cap_mb: f64) -> Result<Vec<Tensor>> {
    collective("all_gather_bucketed")?.all_gather_bucketed(tensors, bucket_cap_mb)
}

/// [`ProcessGroup::reduce_scatter`](crate::ProcessGroup::reduce_scatter) in the default group: the combination of what all ranks pass for this one.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn reduce_scatter(tensors: &[&Tensor], options: impl Into<AllReduceOptions>) -> Result<Tensor> {
    collective("reduce_scatter")?.reduce_scatter(tensors, options)
}

/// [`ProcessGroup::reduce_scatter_tensor`](crate::ProcessGroup::reduce_scatter_tensor) in the default group: this rank's part of the combination of all ranks' tensors.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn reduce_scatter_tensor(
    tensor: &Tensor,
    dim: i64,
    options: impl Into<AllReduceOptions>,
) -> Result<Tensor> {
    collective("reduce_scatter_tensor")?.reduce_scatter_tensor(tensor, dim, options)
}

/// [`ProcessGroup::reduce_scatter_many`](crate::ProcessGroup::reduce_scatter_many) in the default group: many tensors by one collective for each dtype among them.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn reduce_scatter_many(
    tensors: &[&Tensor],
    options: impl Into<AllReduceOptions>,
) -> Result<Vec<Tensor>> {
    collective("reduce_scatter_many")?.reduce_scatter_many(tensors, options)
}

/// [`ProcessGroup::reduce_scatter_bucketed`](crate::ProcessGroup::reduce_scatter_bucketed) in the default group: many tensors by collectives of at most so many MiB.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn reduce_scatter_bucketed(
    tensors: &[&Tensor],
    options: impl Into<AllReduceOptions>,
    bucket_cap_mb: f64,
) -> Result<Vec<Tensor>> {
    collective("reduce_scatter_bucketed")?.reduce_scatter_bucketed(tensors, options, bucket_cap_mb)
}

/// [`ProcessGroup::all_to_all`](crate::ProcessGroup::all_to_all) in the default group: a tensor from every rank to every rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_to_all(tensors: &[&Tensor], options: &AllToAllOptions) -> Result<Vec<Tensor>> {
    collective("all_to_all")?.all_to_all(tensors, options)
}

/// [`ProcessGroup::all_to_all_single`](crate::ProcessGroup::all_to_all_single) in the default group: a part of one tensor from every rank to every rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_to_all_single(tensor: &Tensor, options: &AllToAllOptions) -> Result<Tensor> {
    collective("all_to_all_single")?.all_to_all_single(tensor, options)
}

/// [`ProcessGroup::all_to_all_tensor`](crate::ProcessGroup::all_to_all_tensor) in the default group: what was spread along one axis is spread along another.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn all_to_all_tensor(tensor: &Tensor, split_dim: i64, concat_dim: i64) -> Result<Tensor> {
    collective("all_to_all_tensor")?.all_to_all_tensor(tensor, split_dim, concat_dim)
}

/// [`ProcessGroup::broadcast`](crate::ProcessGroup::broadcast) in the default group: one rank's tensor, on every rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn broadcast(tensor: &Tensor, source: usize) -> Result<Tensor> {
    collective("broadcast")?.broadcast(tensor, source)
}

/// [`ProcessGroup::broadcast_`](crate::ProcessGroup::broadcast_) in the default group: the same in place.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn broadcast_(tensor: &Tensor, source: usize) -> Result<Tensor> {
    collective("broadcast_")?.broadcast_(tensor, source)
}

/// [`ProcessGroup::broadcast_many`](crate::ProcessGroup::broadcast_many) in the default group: many tensors of one rank by one collective for each dtype among them.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn broadcast_many(tensors: &[&Tensor], source: usize) -> Result<Vec<Tensor>> {
    collective("broadcast_many")?.broadcast_many(tensors, source)
}

/// [`ProcessGroup::broadcast_bucketed`](crate::ProcessGroup::broadcast_bucketed) in the default group: many tensors of one rank by collectives of at most so many MiB.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn broadcast_bucketed(
    tensors: &[&Tensor],
    source: usize,
    bucket_cap_mb: f64,
) -> Result<Vec<Tensor>> {
    collective("broadcast_bucketed")?.broadcast_bucketed(tensors, source, bucket_cap_mb)
}

/// [`ProcessGroup::reduce`](crate::ProcessGroup::reduce) in the default group: the combination of all ranks' tensors, on one rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn reduce(
    tensor: &Tensor,
    destination: usize,
    options: impl Into<AllReduceOptions>,
) -> Result<Tensor> {
    collective("reduce")?.reduce(tensor, destination, options)
}

/// [`ProcessGroup::gather`](crate::ProcessGroup::gather) in the default group: all ranks' tensors, on one rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn gather(tensor: &Tensor, destination: usize) -> Result<Vec<Tensor>> {
    collective("gather")?.gather(tensor, destination)
}

/// [`ProcessGroup::scatter`](crate::ProcessGroup::scatter) in the default group: a tensor from one rank to every rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn scatter(tensor: &Tensor, list: Option<&[&Tensor]>, source: usize) -> Result<Tensor> {
    collective("scatter")?.scatter(tensor, list, source)
}

/// [`ProcessGroup::collective_permute`](crate::ProcessGroup::collective_permute) in the default group: tensors passed on from rank to rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn collective_permute(tensor: &Tensor, pairs: &[(usize, usize)]) -> Result<Tensor> {
    collective("collective_permute")?.collective_permute(tensor, pairs)
}

/// [`ProcessGroup::send_recv`](crate::ProcessGroup::send_recv) in the default group: tensors sent from rank to rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn send_recv(transfers: &[Transfer<'_>]) -> Result<Vec<Tensor>> {
    collective("send_recv")?.send_recv(transfers)
}

/// [`ProcessGroup::barrier`](crate::ProcessGroup::barrier) in the default group: waits until every rank has come here.
///
/// # Errors
/// As there; [`Error::ProcessGroup`](xla_core::Error::ProcessGroup) when there is no default group.
#[track_caller]
pub fn barrier() -> Result<()> {
    collective("barrier")?.barrier()
}
