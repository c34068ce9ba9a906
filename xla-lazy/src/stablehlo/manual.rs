//! Parts of a partitioned program that the partitioner leaves as they are: each device computes with
//! the blocks that it holds, and communicates as is written.

use super::func::{Func, Value, join, text_of};
use crate::spmd::NamedSharding;
use crate::ty::{Ty, ty};
use xla_core::{DType, Error, Result, Shape};

impl Func {
    /// `body` on each device of the mesh, given the device's blocks of the operands and giving its
    /// blocks of the results. The shardings say which blocks; all split evenly.
    ///
    /// # Errors
    /// Those of `body`; [`Error::Internal`] in a program that Shardy does not partition.
    pub(crate) fn manual_computation(
        &mut self,
        operands: &[(Value, NamedSharding)],
        results: &[(Ty, NamedSharding)],
        body: impl FnOnce(&mut Func, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let Some(partitioning) = self.partitioning.as_ref().filter(|p| p.shardy) else {
            return Err(Error::Internal {
                what: "shard_map",
                expected: "a program that Shardy partitions".into(),
            });
        };
        let mesh = partitioning.mesh;
        if mesh.len() == 1 {
            // The blocks are the whole, and nothing is partitioned.
            let values: Vec<Value> = operands.iter().map(|(value, _)| *value).collect();
            return body(self, &values);
        }
        let blocks: Vec<Ty> = operands
            .iter()
            .map(|(value, sharding)| block_of(value.ty(), sharding))
            .collect();
        let block = self.block(&blocks, body)?;
        let values: Vec<Value> = operands.iter().map(|(value, _)| *value).collect();
        let types: Vec<Ty> = results.iter().map(|(ty, _)| *ty).collect();
        let inputs = operands.iter();
        let inputs = join(inputs.map(|(value, s)| s.to_sdy(value.shape().rank())));
        let outputs = results.iter();
        let outputs = join(outputs.map(|(ty, s)| s.to_sdy(ty.rank())));
        let axes = join(mesh.axis_names().iter().map(|name| format!("{name:?}")));
        let returned = join(block.results.iter().map(|v| text_of(v.ty())));
        let operation = format!(
            "sdy.manual_computation({}) in_shardings=[{inputs}] out_shardings=[{outputs}] \
             manual_axes={{{axes}}} ({}) {{\n{}    sdy.return {} : {returned}\n    }}",
            join(&values),
            block.declared(),
            block.body,
            join(&block.results),
        );
        Ok(self.call_many(operation, &values, &types))
    }

    /// Which device of the mesh runs the program, by its position: a scalar `u32`.
    pub(crate) fn partition_id(&mut self) -> Value {
        let out = ty(DType::U32, &Shape::scalar());
        self.emit("stablehlo.partition_id", text_of(out), out)
    }

    /// The attribute by which a collective is one between the devices of a mesh, each time another.
    pub fn next_channel(&mut self) -> String {
        self.channels += 1;
        format!(
            "channel_handle = #stablehlo.channel_handle<handle = {}, type = 1>",
            self.channels
        )
    }
}

/// The type of a device's block.
fn block_of(whole: Ty, sharding: &NamedSharding) -> Ty {
    ty(whole.dtype(), &sharding.shard_shape(whole.shape()))
}
