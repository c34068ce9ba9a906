//! Where tensors are: in which blocks one is kept, and one made of blocks.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use xla_core::blocks::{self, Block};
use xla_core::{DType, Device, Error, Literal, Result, Shape};
use xla_lazy::Tensor;
use xla_lazy::spmd::NamedSharding;

/// Where a tensor is to be.
#[derive(Debug, Clone)]
pub(crate) enum Placement {
    /// All of it on one device; on that of a mesh, on each device there.
    On(Device),
    /// Spread over a mesh.
    Spread(NamedSharding),
}

impl Placement {
    /// Where this tensor is. One that is spread and still pending is computed.
    pub(crate) fn of(tensor: &Tensor) -> Result<Self> {
        let device = tensor.device();
        if !device.is_virtual() {
            return Ok(Placement::On(device));
        }
        let sharding = tensor.sharding()?;
        Ok(sharding.map_or(Placement::On(device), Placement::Spread))
    }

    /// The blocks that this process keeps of a tensor, each once; none without elements.
    pub(super) fn blocks(&self, dims: &[usize]) -> Vec<Block> {
        let mut blocks = match self {
            Placement::On(_) => vec![blocks::whole(dims)],
            Placement::Spread(sharding) => {
                let shape = Shape::new(dims);
                let positions = 0..sharding.mesh().len();
                positions
                    .map(|position| sharding.shard_index(&shape, position))
                    .collect()
            }
        };
        let mut seen = HashSet::new();
        blocks.retain(|block| blocks::volume(block) != Some(0) && seen.insert(block.clone()));
        blocks
    }

    /// The tensor of the blocks of [`Placement::blocks`], converted to `dtype`.
    pub(super) fn assemble(
        &self,
        dims: &[usize],
        dtype: DType,
        blocks: Vec<(Block, Literal)>,
    ) -> Result<Tensor> {
        let mut blocks: HashMap<Block, Literal> = blocks.into_iter().collect();
        let mut take = |block: &[Range<usize>]| match blocks.remove(block) {
            Some(literal) => Ok(literal.cast(dtype)),
            None if blocks::volume(block) == Some(0) => {
                Literal::from_fill(dtype, &Shape::new(&blocks::dims(block)), |_| Ok(()))
            }
            None => Err(Error::Internal {
                what: "Checkpoint::load",
                expected: format!("the block {} to have been read", blocks::text(block)),
            }),
        };
        match self {
            Placement::On(device) => {
                Tensor::from_literal(take(&blocks::whole(dims))?, (dtype, *device))
            }
            Placement::Spread(sharding) => Tensor::from_local_shards(dims, dtype, sharding, take),
        }
    }
}

/// The blocks in which this process keeps a tensor, each once; none of a tensor without elements.
pub(super) fn blocks_of(tensor: &Tensor) -> Result<Vec<Block>> {
    Ok(Placement::of(tensor)?.blocks(tensor.dims()))
}

/// Some of the blocks of [`blocks_of`], on the host.
pub(super) fn literals_of(tensor: &Tensor, wanted: &[&Block]) -> Result<Vec<Literal>> {
    let whole = blocks::whole(tensor.dims());
    if let [block] = wanted
        && **block == whole
    {
        return Ok(vec![tensor.to_literal()?]);
    }
    let shards = tensor.local_shards()?;
    wanted
        .iter()
        .map(|block| {
            let shard = shards.iter().find(|shard| shard.index == **block);
            shard
                .map(|shard| shard.data.clone())
                .ok_or_else(|| Error::Internal {
                    what: "Checkpoint::save",
                    expected: format!("the block {} to be where it was", blocks::text(block)),
                })
        })
        .collect()
}
