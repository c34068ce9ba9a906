//! Who writes what: each block once, whoever has it, and all have about as much to write.

use super::index::dtype_name;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::ops::Range;
use xla_core::blocks::{self, Block};
use xla_core::{DType, Error, Result};

/// The blocks that one writer has of a tensor, each once.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Holding {
    pub(super) name: String,
    #[serde(with = "dtype_name")]
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    #[serde(with = "block_list")]
    pub(super) blocks: Vec<Block>,
}

/// A tensor of the checkpoint, and who writes which of its blocks.
#[derive(Debug, Clone)]
pub(super) struct Planned {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Vec<usize>,
    pub(super) blocks: Vec<Assigned>,
}

/// A block and the writer that writes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Assigned {
    pub(super) block: Block,
    pub(super) writer: usize,
}

/// Distributes what the writers have: of those that have a block, the one with the least to write
/// yet. The same list gives the same plan everywhere.
///
/// # Errors
/// [`Error::Argument`] where two writers have different tensors under one name, or all of them
/// together do not have a whole one.
pub(super) fn plan(op: &'static str, writers: &[Vec<Holding>]) -> Result<Vec<Planned>> {
    let refused = |expected: String, got: String| Error::argument(op, "state", expected, got);
    // By name, in the order in which the first writer that has one lists it.
    let mut names: HashMap<&str, usize> = HashMap::new();
    let mut tensors: Vec<Vec<(usize, &Holding)>> = Vec::new();
    for (writer, holdings) in writers.iter().enumerate() {
        for holding in holdings {
            let at = *names.entry(&holding.name).or_insert_with(|| {
                tensors.push(Vec::new());
                tensors.len() - 1
            });
            if let Some((first, same)) = tensors[at].first()
                && (same.dtype, &same.shape) != (holding.dtype, &holding.shape)
            {
                let expected = format!(
                    "{} of {} {:?} as on rank {first}",
                    holding.name, same.dtype, same.shape
                );
                let got = format!("{} {:?} on rank {writer}", holding.dtype, holding.shape);
                return Err(refused(expected, got));
            }
            tensors[at].push((writer, holding));
        }
    }
    let mut burden = vec![0_usize; writers.len()];
    let mut plan = Vec::with_capacity(tensors.len());
    for holders in tensors {
        let Some((_, first)) = holders.first() else {
            continue;
        };
        let mut distinct: Vec<(&[Range<usize>], Vec<usize>)> = Vec::new();
        let mut known: HashMap<&[Range<usize>], usize> = HashMap::new();
        for (writer, holding) in &holders {
            for block in &holding.blocks {
                let at = *known.entry(block).or_insert_with(|| {
                    distinct.push((block, Vec::new()));
                    distinct.len() - 1
                });
                distinct[at].1.push(*writer);
            }
        }
        let mut volumes = distinct.iter().map(|(block, _)| blocks::volume(block));
        let held = volumes.try_fold(0_usize, |sum, volume| sum.checked_add(volume?));
        let wanted = blocks::volume(&blocks::whole(&first.shape));
        if held != wanted {
            let got: Vec<String> = distinct.iter().map(|(b, _)| blocks::text(b)).collect();
            let expected = format!("blocks that are all of {} {:?}", first.name, first.shape);
            return Err(refused(expected, got.join(", ")));
        }
        let assigned = distinct.into_iter().map(|(block, able)| {
            let writer = able
                .into_iter()
                .min_by_key(|writer| (burden[*writer], *writer));
            let writer = writer.unwrap_or(0);
            burden[writer] += blocks::volume(block).unwrap_or(0) * first.dtype.size();
            Assigned {
                block: block.to_vec(),
                writer,
            }
        });
        plan.push(Planned {
            blocks: assigned.collect(),
            name: first.name.clone(),
            dtype: first.dtype,
            shape: first.shape.clone(),
        });
    }
    Ok(plan)
}

mod block_list {
    use super::Block;
    use crate::state::checkpoint::index::pairs;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    #[derive(Serialize, Deserialize)]
    #[serde(transparent)]
    struct Pairs(#[serde(with = "pairs")] Block);

    pub(crate) fn serialize<S: Serializer>(blocks: &[Block], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(blocks.iter().map(|block| Pairs(block.clone())))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Block>, D::Error> {
        let blocks = Vec::<Pairs>::deserialize(from)?;
        Ok(blocks.into_iter().map(|pairs| pairs.0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holding(name: &str, shape: &[usize], blocks: &[Block]) -> Holding {
        Holding {
            name: name.into(),
            dtype: DType::F32,
            shape: shape.to_vec(),
            blocks: blocks.to_vec(),
        }
    }

    fn rows(range: Range<usize>) -> Block {
        vec![range]
    }

    fn writers(plan: &[Planned]) -> Vec<Vec<usize>> {
        let of = |planned: &Planned| planned.blocks.iter().map(|b| b.writer).collect();
        plan.iter().map(of).collect()
    }

    #[test]
    fn replicas_are_shared_out_and_own_blocks_stay() {
        let all = |n: usize| [rows(0..n)];
        let first = vec![
            holding("a", &[100], &all(100)),
            holding("b", &[60], &all(60)),
            holding("c", &[60], &all(60)),
            holding("split", &[4], &[rows(0..2)]),
        ];
        let mut second = first.clone();
        second[3] = holding("split", &[4], &[rows(2..4)]);
        second.push(holding("own", &[], &[vec![]]));
        let plan = plan("save", &[first, second]).unwrap();
        assert_eq!(
            writers(&plan),
            [vec![0], vec![1], vec![1], vec![0, 1], vec![1]]
        );
        assert_eq!(plan[4].name, "own");
    }

    #[test]
    fn what_does_not_fit_together_is_said() {
        let text = |writers: &[Vec<Holding>]| plan("save", writers).unwrap_err().to_string();
        let one = vec![holding("a", &[4], &[rows(0..4)])];
        let other = vec![holding("a", &[5], &[rows(0..5)])];
        assert_eq!(
            text(&[one, other]),
            "save: state: expected a of f32 [4] as on rank 0, got f32 [5] on rank 1"
        );
        let half = vec![holding("a", &[4], &[rows(0..2)])];
        assert_eq!(
            text(&[half.clone(), half]),
            "save: state: expected blocks that are all of a [4], got [0:2]"
        );
    }
}
