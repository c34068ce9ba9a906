//! What XLA chose, as axes of a mesh and parts of axes.

use super::sharding::Digit;
use super::{Mesh, NamedSharding};
use xla_core::Tiling;

/// A digit of a place in the mesh, and what it counts: blocks along an axis of the tensor.
struct Use {
    digit: Digit,
    /// The tensor's axis.
    along: usize,
    /// How many blocks further the next value of the digit is.
    step: usize,
}

impl NamedSharding {
    /// The sharding by which the partitions of a program on this mesh hold the tiles that `tiling`
    /// gives them; `None` where the axes of the mesh and their parts cannot say it, or the tiling is
    /// of another number of partitions.
    pub(crate) fn from_tiles(mesh: &Mesh, tiling: &Tiling) -> Option<Self> {
        let tiles = tiling.tiles();
        if tiles.iter().all(|n| *n == 1) {
            return Some(NamedSharding::replicated(mesh));
        }
        let blocks = blocks(mesh.len(), tiling)?;
        let mut uses = Vec::new();
        // From the last axis on, positions along which are `stride` apart.
        let mut stride = 1;
        for (axis, &length) in mesh.shape().iter().enumerate().rev() {
            let line: Vec<&[usize]> = (0..length).map(|i| &*blocks[i * stride]).collect();
            uses.extend(digits(axis, &line)?);
            stride *= length;
        }
        let axes = (0..tiles.len()).map(|along| {
            let mut of_axis: Vec<&Use> = uses.iter().filter(|u| u.along == along).collect();
            of_axis.sort_by_key(|u| std::cmp::Reverse(u.step));
            of_axis.iter().map(|u| u.digit).collect()
        });
        let sharding = NamedSharding::of_digits(mesh, &axes.collect::<Vec<_>>());
        // What single lines of the mesh say need not be what the whole does.
        let holds = |position: usize| sharding.block(tiles.len(), position) == blocks[position];
        (sharding.tiles(tiles.len()) == tiles && (0..mesh.len()).all(holds)).then_some(sharding)
    }
}

/// Which block each of `count` partitions holds, along each axis of the tensor.
fn blocks(count: usize, tiling: &Tiling) -> Option<Vec<Vec<usize>>> {
    let rank = tiling.tiles().len();
    if tiling.devices.len() != count || tiling.dims.iter().product::<usize>() != count {
        return None;
    }
    let mut blocks = vec![None; count];
    for (place, &partition) in tiling.devices.iter().enumerate() {
        let mut rest = place;
        let mut block = vec![0; tiling.dims.len()];
        for (at, length) in block.iter_mut().zip(&tiling.dims).rev() {
            *at = rest % length;
            rest /= length;
        }
        block.truncate(rank);
        *blocks.get_mut(partition)? = Some(block);
    }
    blocks.into_iter().collect()
}

/// What the places along one axis of the mesh count, digit by digit from the least significant;
/// `line` has the block at each place. Digits that count nothing are left out.
fn digits(axis: usize, line: &[&[usize]]) -> Option<Vec<Use>> {
    let mut uses = Vec::new();
    let mut after = 1;
    while after < line.len() {
        let step = line[after];
        // The digit goes on for as long as each of its values is as far from the one before.
        let continues = |i: &usize| {
            let expected = step.iter().map(|n| n * i);
            line.get(i * after)
                .is_some_and(|block| block.iter().copied().eq(expected))
        };
        let size = (2..).find(|i| !continues(i))?;
        if !line.len().is_multiple_of(after * size) {
            return None;
        }
        let mut moved = step.iter().enumerate().filter(|(_, n)| **n != 0);
        match (moved.next(), moved.next()) {
            (None, _) => {}
            (Some((along, &step)), None) => uses.push(Use {
                digit: Digit {
                    axis,
                    before: line.len() / (after * size),
                    size,
                    after,
                },
                along,
                step,
            }),
            // One step along the mesh is one along two axes of the tensor.
            _ => return None,
        }
        after *= size;
    }
    Some(uses)
}
