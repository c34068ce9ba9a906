//! Regions: operations that hold others.

use super::func::{Func, Value, join, text_of};
use super::watch::Watched;
use crate::ty::Ty;
use std::collections::HashMap;
use std::fmt::Write;
use xla_core::Result;

/// Results of what was lowered already, by what it was (a number that names it in this process) and
/// its operands. Operators that each stand for one result of the same operation share it so.
pub(super) type Calls = HashMap<(usize, Vec<Value>), Vec<Value>>;

impl Func {
    /// The results that `lower` gives for these operands, lowered no more than once for each `what`.
    ///
    /// # Errors
    /// Those of `lower`.
    pub(crate) fn once(
        &mut self,
        what: usize,
        operands: &[Value],
        lower: impl FnOnce(&mut Func) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let key = (what, operands.to_vec());
        if let Some(known) = self.calls.get(&key) {
            return Ok(known.clone());
        }
        let results = lower(self)?;
        self.calls.insert(key, results.clone());
        Ok(results)
    }

    /// `stablehlo.while`: as long as `condition` of the variables is true, they become what `body`
    /// makes of them. Its results are the variables at the end. What is watched in the body is carried
    /// along with them, and told in the block that the loop is in.
    ///
    /// # Errors
    /// Those of the two functions.
    pub(crate) fn while_loop(
        &mut self,
        initial: &[Value],
        condition: impl FnOnce(&mut Func, &[Value]) -> Result<Value>,
        body: impl Fn(&mut Func, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Vec<Value>> {
        let count = initial.len();
        let mut types: Vec<Ty> = initial.iter().map(|v| v.ty()).collect();
        let watched = self.watched_by(&types, &body)?;
        let mut initial = initial.to_vec();
        initial.extend(self.unseen(&watched));
        types.extend(initial[count..].iter().map(|v| v.ty()));
        let condition = self.region(&types, |f, v| Ok(vec![condition(f, &v[..count])?]))?;
        let body = self.region(&types, |f, v| {
            let mut next = body(f, &v[..count])?;
            let seen = f.take_watched();
            next.extend(f.seen_so_far(&v[count..], &seen));
            Ok(next)
        })?;
        let operation = format!(
            "\"stablehlo.while\"({}) ({condition}, {body})",
            join(&initial)
        );
        let mut ended = self.call_many(operation, &initial, &types);
        let seen = ended.split_off(count);
        self.tell(&watched, &seen);
        Ok(ended)
    }

    /// What is watched in a block, which is written only to find that out.
    fn watched_by(
        &mut self,
        arguments: &[Ty],
        block: impl FnOnce(&mut Func, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Watched> {
        let mut watched = Watched::default();
        if self.is_watching() {
            self.region(arguments, |f, v| {
                let results = block(f, v)?;
                watched = f.take_watched();
                Ok(results)
            })?;
        }
        Ok(watched)
    }

    /// The values as they are, none of which is available before all are.
    pub(crate) fn barrier(&mut self, values: &[Value]) -> Vec<Value> {
        let types: Vec<Ty> = values.iter().map(|v| v.ty()).collect();
        let operation = format!("\"stablehlo.optimization_barrier\"({})", join(values));
        self.call_many(operation, values, &types)
    }

    /// A block with these arguments, as text.
    fn region(
        &mut self,
        arguments: &[Ty],
        block: impl FnOnce(&mut Func, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<String> {
        let block = self.block(arguments, block)?;
        let types = join(block.results.iter().map(|v| text_of(v.ty())));
        let mut text = format!("{{\n    ^bb0({}):\n{}", block.declared(), block.body);
        let _ = write!(
            text,
            "    \"stablehlo.return\"({}) : ({types}) -> ()\n    }}",
            join(&block.results)
        );
        Ok(text)
    }

    /// What `block` writes for these arguments.
    pub(super) fn block(
        &mut self,
        arguments: &[Ty],
        block: impl FnOnce(&mut Func, &[Value]) -> Result<Vec<Value>>,
    ) -> Result<Block> {
        let outer = std::mem::take(&mut self.body);
        // Values of a block are not seen outside of it.
        let calls = std::mem::take(&mut self.calls);
        let of_block = self.watch.of_block();
        let watch = std::mem::replace(&mut self.watch, of_block);
        let arguments: Vec<Value> = arguments.iter().map(|ty| self.fresh(ty)).collect();
        let results = block(self, &arguments);
        self.calls = calls;
        self.watch = watch;
        let body = std::mem::replace(&mut self.body, outer);
        Ok(Block {
            arguments,
            body,
            results: results?,
        })
    }
}

/// A block of operations.
pub(super) struct Block {
    arguments: Vec<Value>,
    pub(super) body: String,
    pub(super) results: Vec<Value>,
}

impl Block {
    /// Its arguments with their types.
    pub(super) fn declared(&self) -> String {
        let arguments = self.arguments.iter();
        join(arguments.map(|v| format!("{v}: {}", text_of(v.ty()))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stablehlo::Compare;
    use crate::ty::ty;
    use xla_core::{DType, Shape};

    #[test]
    fn a_loop_is_written_once_however_often_it_is_asked_for() -> Result<()> {
        let scalar = Shape::scalar();
        let mut f = Func::new();
        let x = f.argument(ty(DType::I64, &scalar), None);
        for _ in 0..2 {
            f.once(7, &[x], |f| {
                f.while_loop(
                    &[x],
                    |f, v| {
                        let limit = f.constant_int(DType::I64, &Shape::scalar(), 5);
                        Ok(f.compare(Compare::Lt, v[0], limit))
                    },
                    |f, v| Ok(vec![f.binary("add", v[0], v[0])]),
                )
            })?;
        }
        let text = f.finish("test", &[x]);
        assert_eq!(text.matches("stablehlo.while").count(), 1);
        assert_eq!(text.matches("stablehlo.return").count(), 2);
        Ok(())
    }
}
