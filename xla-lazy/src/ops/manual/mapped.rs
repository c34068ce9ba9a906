//! A function of blocks as an operator, and its lowering.

use crate::intern::Interned;
use crate::op::{Derivative, InputType, Operator};
use crate::spmd::{Mesh, NamedSharding};
use crate::stablehlo::{Func, Value};
use crate::trace::Region;
use crate::ty::{Ty, ty};
use std::fmt;
use xla_core::{Dims, Error, Result, Shape};

/// A function that each device of a mesh runs on its blocks. Its operands are the arguments, what the
/// region captures, of which each device gets the whole, and its numbers.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct Mapped {
    pub(super) mesh: Mesh,
    /// How arguments and captures are split.
    pub(super) inputs: Vec<NamedSharding>,
    /// How the results are.
    pub(super) outputs: Vec<NamedSharding>,
    pub(super) arguments: usize,
    pub(super) region: Region,
}

impl Mapped {
    /// The type of a result: of all its blocks together.
    fn result(&self, index: usize) -> Ty {
        let block = self.region.result(index);
        let tiles = self.outputs[index].tiles(block.rank());
        let lengths = block.shape().dims().iter().zip(tiles);
        let whole: Dims = lengths.map(|(n, tiles)| n.saturating_mul(tiles)).collect();
        ty(block.dtype(), &Shape::from(whole))
    }

    fn lower(&self, f: &mut Func, operands: &[Value]) -> Result<Vec<Value>> {
        if operands.len() != self.inputs.len() + self.region.numbers.len() {
            return Err(Error::Internal {
                what: "shard_map",
                expected: format!("{} tensors, not {}", self.inputs.len(), operands.len()),
            });
        }
        let whole = NamedSharding::replicated(&self.mesh);
        let shardings = self.inputs.iter().chain(std::iter::repeat(&whole));
        let operands: Vec<(Value, NamedSharding)> =
            operands.iter().copied().zip(shardings.cloned()).collect();
        let outputs = self.outputs.iter().enumerate();
        let results: Vec<(Ty, NamedSharding)> = outputs
            .map(|(index, sharding)| (self.result(index), sharding.clone()))
            .collect();
        f.manual_computation(&operands, &results, |f, blocks| {
            let (arguments, rest) = blocks.split_at(self.arguments);
            let (captures, numbers) = rest.split_at(self.region.captures as usize);
            self.region.lower(f, arguments, captures, numbers)
        })
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |all: &[NamedSharding]| -> Vec<String> {
            all.iter().map(|s| s.spec().to_string()).collect()
        };
        let (inputs, outputs) = (list(&self.inputs), list(&self.outputs));
        let operators = self.region.nodes.len();
        write!(
            f,
            "[{}] -> [{}] over {}, {operators} operators",
            inputs.join(", "),
            outputs.join(", "),
            self.mesh
        )
    }
}

/// One result of a function of blocks.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct MappedResult {
    pub(super) mapped: Interned<Mapped>,
    pub(super) index: usize,
}

impl Operator for MappedResult {
    const NAME: &'static str = "shard_map";
    // Gradients flow through a node beside it, which has the region's tape.
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(self.mapped.result(self.index))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let mapped = self.mapped;
        let results = f.once(mapped.number(), inputs, |f| mapped.lower(f, inputs))?;
        Ok(results[self.index])
    }
}
