//! Fully sharded data parallelism: each device holds a part of every parameter.

use super::{marked, replicate_unmarked, with_axis};
use crate::Module;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::spmd::{self, Mesh, NamedSharding, SpecAxes};

/// What may differ from [`fully_shard`].
#[derive(Debug, Clone, Copy, Default)]
pub struct FullyShardOptions<'a> {
    /// The axis of the mesh that parameters are split over; the mesh's first unless set.
    pub axis: Option<&'a str>,
    /// Parameters of fewer elements stay whole on each device: splitting them saves little. 0 unless
    /// set.
    pub min_numel: usize,
}

/// Splits every parameter of a module over the first axis of a mesh, so that a device holds only its
/// part of it, of its gradient and of what an optimizer remembers of it. The compiler gathers a
/// parameter where it is used and sums its gradient where it is kept
/// ([Xu et al. 2020](https://arxiv.org/abs/2004.13336), [Zhao et al. 2023](https://arxiv.org/abs/2304.11277));
/// the values are those of one device. As `torch.distributed.fsdp.fully_shard`.
///
/// A parameter is split along its longest axis that divides evenly, or, if none does, its longest
/// one. One that is split already ([`parallelize_module`](crate::parallelize_module),
/// [`spmd::mark_sharding`]) keeps that and is split further; one that is split over the same axis of
/// the mesh stays as it is. Parameters without axes, and buffers, are whole on each device.
///
/// What is split is the state. The batch is split by
/// [`DistributedDataParallel`](crate::DistributedDataParallel), which leaves parameters as they are
/// here, or by [`DataLoader::sharding`](crate::data::DataLoader::sharding):
///
/// ```no_run
/// use xla_lazy::spmd;
/// use xla_nn::{DistributedDataParallel, Linear, Module, fully_shard, optim};
/// let mesh = spmd::Mesh::all("data")?;
/// spmd::enable(&mesh)?;
/// let model = Linear::new(4096, 4096, ())?;
/// fully_shard(&model, &mesh)?;
/// let model = DistributedDataParallel::new(model)?;
/// let optimizer = optim::AdamW::new(model.parameters(), 1e-3);
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// Do it before the parameters are first computed: then no device ever holds a whole one.
///
/// # Errors
/// Those of [`spmd::mark_sharding`].
#[track_caller]
pub fn fully_shard(module: &(impl Module + ?Sized), mesh: &Mesh) -> Result<()> {
    fully_shard_with(module, mesh, FullyShardOptions::default())
}

/// [`fully_shard`] over another axis of the mesh, or of the larger parameters only.
///
/// # Errors
/// [`Error::Mesh`] for an axis that the mesh does not have; those of [`spmd::mark_sharding`].
#[track_caller]
pub fn fully_shard_with(
    module: &(impl Module + ?Sized),
    mesh: &Mesh,
    options: FullyShardOptions<'_>,
) -> Result<()> {
    let here = Location::caller();
    let axis = options.axis.unwrap_or(mesh.axis_names()[0]);
    let split = || -> Result<()> {
        let parts = mesh.axis_size(axis)?;
        let parameters = module.parameters();
        for parameter in &parameters {
            let now = marked(parameter, mesh).unwrap_or_else(|| NamedSharding::replicated(mesh));
            let spec = now.spec();
            let used = spec.axes().iter().flat_map(SpecAxes::names);
            if parameter.numel() < options.min_numel || used.into_iter().any(|name| name == axis) {
                continue;
            }
            let block = now.shard_shape(parameter.shape());
            let Some(along) = longest(block.dims(), parts) else {
                continue;
            };
            let before = spec.axes().get(along).into_iter();
            let axes = before.flat_map(SpecAxes::names).chain([axis]).collect();
            let spec = with_axis(spec, parameter.rank(), along, axes);
            spmd::mark_sharding(parameter, mesh, spec)?;
        }
        replicate_unmarked(&parameters, mesh)?;
        replicate_unmarked(&module.buffers(), mesh)
    };
    split().map_err(|error: Error| error.relocated(here))
}

/// The longest axis that divides into so many parts, the first of equals; if there is none, the
/// longest.
fn longest(dims: &[usize], parts: usize) -> Option<usize> {
    let order = |&axis: &usize| {
        let length = dims[axis];
        (length.is_multiple_of(parts), length, dims.len() - axis)
    };
    (0..dims.len()).max_by_key(order)
}

#[cfg(test)]
mod tests {
    use super::longest;

    #[test]
    fn the_longest_axis_that_divides_is_split() {
        assert_eq!(longest(&[], 4), None);
        assert_eq!(longest(&[7], 4), Some(0));
        assert_eq!(longest(&[8, 8], 4), Some(0));
        assert_eq!(longest(&[8, 12], 4), Some(1));
        assert_eq!(longest(&[17, 8], 4), Some(1));
        assert_eq!(longest(&[3, 5], 4), Some(1));
    }
}
