//! Blocks of arrays on the host: cut out, padded to the size that devices store, and put together.

use bytemuck::Pod;
use ndarray::{ArrayViewD, ArrayViewMutD, IxDyn, Slice};
use std::ops::Range;
use xla_core::{DType, Error, Literal, Result, Shape};

/// The block of an array at these index ranges.
///
/// # Errors
/// None for ranges within the array.
pub(crate) fn cut(whole: &Literal, index: &[Range<usize>]) -> Result<Literal> {
    let shape = shape_of(index);
    if shape == *whole.shape() {
        return Ok(whole.clone());
    }
    Literal::from_fill(whole.dtype(), &shape, |out| {
        let from = Block::new(whole.shape(), index);
        copy(
            whole.dtype(),
            whole.bytes(),
            &from,
            out,
            &Block::all(&shape),
        )
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
    let fits = |(len, room): (&usize, &usize)| len <= room;
    if block.shape().rank() != shape.rank()
        || !block.shape().dims().iter().zip(shape.dims()).all(fits)
    {
        return Err(Error::shape(
            "local shards",
            format!("a block of at most {shape}"),
            block.shape(),
        ));
    }
    Literal::from_fill(block.dtype(), shape, |out| {
        let to = Block::new(shape, &ranges(block.shape()));
        let from = Block::all(block.shape());
        copy(block.dtype(), block.bytes(), &from, out, &to)
    })
}

/// The part of a device's block that is not padding, by the block's place in the whole.
///
/// # Errors
/// None for ranges of at most the block's lengths.
pub(crate) fn unpadded(block: Literal, index: &[Range<usize>]) -> Result<Literal> {
    let own: Vec<Range<usize>> = index.iter().map(|range| 0..range.len()).collect();
    cut(&block, &own)
}

/// The array that blocks at these index ranges make up.
///
/// # Errors
/// None for ranges within the array that are as long as their blocks, or shorter by padding.
pub(crate) fn joined(
    dtype: DType,
    shape: &Shape,
    blocks: &[(Vec<Range<usize>>, Literal)],
) -> Result<Literal> {
    Literal::from_fill(dtype, shape, |out| {
        for (index, block) in blocks {
            let own: Vec<Range<usize>> = index.iter().map(|range| 0..range.len()).collect();
            let from = Block::new(block.shape(), &own);
            copy(dtype, block.bytes(), &from, out, &Block::new(shape, index))?;
        }
        Ok(())
    })
}

fn ranges(shape: &Shape) -> Vec<Range<usize>> {
    shape.dims().iter().map(|&len| 0..len).collect()
}

fn shape_of(index: &[Range<usize>]) -> Shape {
    let lengths: Vec<usize> = index.iter().map(Range::len).collect();
    Shape::new(&lengths)
}

/// A block of an array in row-major order.
struct Block {
    dims: Vec<usize>,
    index: Vec<Range<usize>>,
}

impl Block {
    fn new(shape: &Shape, index: &[Range<usize>]) -> Self {
        Block {
            dims: shape.dims().to_vec(),
            index: index.to_vec(),
        }
    }

    fn all(shape: &Shape) -> Self {
        Block::new(shape, &ranges(shape))
    }

    fn slice(&self, axis: usize) -> Slice {
        let range = &self.index[axis];
        Slice::new(range.start as isize, Some(range.end as isize), 1)
    }
}

fn copy(dtype: DType, from: &[u8], source: &Block, to: &mut [u8], target: &Block) -> Result<()> {
    match dtype.size() {
        1 => copy_words::<u8>(from, source, to, target),
        2 => copy_words::<u16>(from, source, to, target),
        4 => copy_words::<u32>(from, source, to, target),
        _ => copy_words::<u64>(from, source, to, target),
    }
}

fn copy_words<T: Pod>(from: &[u8], source: &Block, to: &mut [u8], target: &Block) -> Result<()> {
    let wrong = |what: String| Error::Internal {
        what: "blocks",
        expected: what,
    };
    for block in [source, target] {
        let mut axes = block.index.iter().zip(&block.dims);
        if block.index.len() != block.dims.len() || !axes.all(|(range, len)| range.end <= *len) {
            return Err(wrong(format!(
                "a block {:?} within {:?}",
                block.index, block.dims
            )));
        }
    }
    let from = bytemuck::try_cast_slice::<u8, T>(from).map_err(|e| wrong(e.to_string()))?;
    let to = bytemuck::try_cast_slice_mut::<u8, T>(to).map_err(|e| wrong(e.to_string()))?;
    let from =
        ArrayViewD::from_shape(IxDyn(&source.dims), from).map_err(|e| wrong(e.to_string()))?;
    let mut to =
        ArrayViewMutD::from_shape(IxDyn(&target.dims), to).map_err(|e| wrong(e.to_string()))?;
    let from = from.slice_each_axis(|axis| source.slice(axis.axis.index()));
    let mut to = to.slice_each_axis_mut(|axis| target.slice(axis.axis.index()));
    if from.shape() != to.shape() {
        return Err(wrong(format!("{:?} as {:?}", to.shape(), from.shape())));
    }
    to.assign(&from);
    Ok(())
}
