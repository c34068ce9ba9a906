//! Blocks of arrays on the host: cut out, padded to the size that devices store, and put together.

use std::ops::Range;
use xla_core::blocks::{self, Block};
use xla_core::{DType, Error, Literal, Result, Shape};

/// The block of an array at these index ranges.
///
/// # Errors
/// None for ranges within the array.
pub(crate) fn cut(whole: &Literal, index: &[Range<usize>]) -> Result<Literal> {
    let shape = Shape::new(&blocks::dims(index));
    if shape == *whole.shape() {
        return Ok(whole.clone());
    }
    Literal::from_fill(whole.dtype(), &shape, |out| {
        copy(index, whole, &blocks::whole(whole.shape()), out, index)
    })
}

/// A block with zeros after it along each axis, up to this shape.
///
/// # Errors
/// [`Error::ShapeMismatch`] for a block that is larger.
pub(crate) fn padded(block: Literal, shape: &Shape) -> Result<Literal> {
    if block.shape() == shape {
        return Ok(block);
    }
    let (own, room) = (blocks::whole(block.shape()), blocks::whole(shape));
    if !blocks::contains(&room, &own) {
        return Err(Error::shape(
            "local shards",
            format!("a block of at most {shape}"),
            block.shape(),
        ));
    }
    Literal::from_fill(block.dtype(), shape, |out| {
        copy(&own, &block, &own, out, &room)
    })
}

/// The part of a device's block that is not padding, by the block's place in the whole.
///
/// # Errors
/// None for ranges of at most the block's lengths.
pub(crate) fn unpadded(block: Literal, index: &[Range<usize>]) -> Result<Literal> {
    cut(&block, &blocks::whole(&blocks::dims(index)))
}

/// The array that blocks at these index ranges make up.
///
/// # Errors
/// None for ranges within the array that are as long as their blocks, or shorter by padding.
pub(crate) fn joined(dtype: DType, shape: &Shape, parts: &[(Block, Literal)]) -> Result<Literal> {
    let whole = blocks::whole(shape);
    Literal::from_fill(dtype, shape, |out| {
        for (index, part) in parts {
            // Its padding included, which may lie beyond the end of the array.
            let lengths = index.iter().zip(part.shape().dims());
            let stored: Block = lengths
                .map(|(range, length)| range.start..range.start + length)
                .collect();
            copy(index, part, &stored, out, &whole)?;
        }
        Ok(())
    })
}

/// Copies the elements at `common` from the block `from` at `source` to the one at `target` in `to`, each
/// in row-major order.
fn copy(
    common: &[Range<usize>],
    from: &Literal,
    source: &[Range<usize>],
    to: &mut [u8],
    target: &[Range<usize>],
) -> Result<()> {
    let size = from.dtype().size();
    let holds = |block: &[Range<usize>], bytes: &[u8]| {
        let room = blocks::volume(block).and_then(|volume| volume.checked_mul(size));
        blocks::contains(block, common) && room == Some(bytes.len())
    };
    if !holds(source, from.bytes()) || !holds(target, to) {
        let [common, source, target] = [common, source, target].map(blocks::text);
        return Err(Error::Internal {
            what: "blocks",
            expected: format!("{common} in arrays at {source} and {target}"),
        });
    }
    for run in blocks::runs(common, source, target) {
        let bytes = &from.bytes()[run.from * size..][..run.len * size];
        to[run.to * size..][..bytes.len()].copy_from_slice(bytes);
    }
    Ok(())
}
