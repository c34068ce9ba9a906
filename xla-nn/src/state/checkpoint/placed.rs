//! Where tensors are: in which blocks one is kept, and one made of blocks.

use super::blocks::{self, Block};
use std::collections::HashSet;
use xla_core::{DType, Device, Literal, Result};
use xla_lazy::Tensor;

/// Where a tensor is to be.
#[derive(Debug, Clone)]
pub(crate) struct Placement(Device);

impl Placement {
    /// All of it on one device.
    pub(crate) fn on(device: Device) -> Self {
        Placement(device)
    }

    /// Where this tensor is.
    pub(crate) fn of(tensor: &Tensor) -> Result<Self> {
        Ok(Placement(tensor.device()))
    }

    /// The blocks that this process needs of a tensor, each once.
    pub(super) fn blocks(&self, dims: &[usize]) -> Vec<Block> {
        vec![blocks::whole(dims)]
    }

    /// The tensor of these blocks, which are those of [`Placement::blocks`] in their order.
    pub(super) fn assemble(
        &self,
        _dims: &[usize],
        dtype: DType,
        mut literals: Vec<Literal>,
    ) -> Result<Tensor> {
        match literals.pop() {
            Some(whole) => Tensor::from_literal(whole, (dtype, self.0)),
            None => Err(xla_core::Error::Internal {
                what: "Checkpoint::load",
                expected: "a block of each tensor".into(),
            }),
        }
    }
}

/// The blocks in which this process keeps a tensor, each once; none of a tensor without elements.
pub(super) fn blocks_of(tensor: &Tensor) -> Result<Vec<Block>> {
    let mut seen = HashSet::new();
    let mut blocks = Placement::of(tensor)?.blocks(tensor.dims());
    blocks.retain(|block| blocks::volume(block) != Some(0) && seen.insert(block.clone()));
    Ok(blocks)
}

/// Some of the blocks of [`blocks_of`], on the host.
pub(super) fn literals_of(tensor: &Tensor, wanted: &[&Block]) -> Result<Vec<Literal>> {
    wanted.iter().map(|_| tensor.to_literal()).collect()
}
