//! Blocks of an array: how they overlap, and which elements of one are which of another. Devices of a
//! mesh hold an array in blocks, and so do the files of a checkpoint.

use std::ops::Range;

/// A range of indices on each axis; none at all for a scalar.
pub type Block = Vec<Range<usize>>;

/// The block that is all of an array.
pub fn whole(dims: &[usize]) -> Block {
    dims.iter().map(|&length| 0..length).collect()
}

/// A block's own dimensions.
pub fn dims(block: &[Range<usize>]) -> Vec<usize> {
    block.iter().map(ExactSizeIterator::len).collect()
}

/// Number of elements; `None` where that is beyond what can be counted.
pub fn volume(block: &[Range<usize>]) -> Option<usize> {
    block
        .iter()
        .try_fold(1_usize, |product, range| product.checked_mul(range.len()))
}

/// Whether `inner` is a block, perhaps without elements, of what `outer` is one of, and lies in it.
pub fn contains(outer: &[Range<usize>], inner: &[Range<usize>]) -> bool {
    let within = |(outer, inner): (&Range<usize>, &Range<usize>)| {
        outer.start <= inner.start && inner.start <= inner.end && inner.end <= outer.end
    };
    outer.len() == inner.len() && outer.iter().zip(inner).all(within)
}

/// What two blocks of one array have in common; `None` where that is nothing.
pub fn overlap(a: &[Range<usize>], b: &[Range<usize>]) -> Option<Block> {
    let common: Block = a
        .iter()
        .zip(b)
        .map(|(a, b)| a.start.max(b.start)..a.end.min(b.end))
        .collect();
    common
        .iter()
        .all(|range| !range.is_empty())
        .then_some(common)
}

/// As it is written in names and errors: `[0:64,0:784]`.
pub fn text(block: &[Range<usize>]) -> String {
    let ranges: Vec<String> = block
        .iter()
        .map(|range| format!("{}:{}", range.start, range.end))
        .collect();
    format!("[{}]", ranges.join(","))
}

/// Elements that follow each other in two blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// Position of the first one in the block that is read, in elements.
    pub from: usize,
    /// Its position in the block that is filled.
    pub to: usize,
    /// How many they are.
    pub len: usize,
}

/// The elements of `common`, which lies in both blocks, in ascending order of both.
///
/// ```
/// use xla_core::blocks::{Run, overlap, runs};
/// // The middle columns of a 2x6 array, in the block that is read and in that of its last row.
/// let (read, filled) = ([0..2, 2..5], [1..2, 0..6]);
/// let common = overlap(&read, &filled).unwrap();
/// let runs: Vec<Run> = runs(&common, &read, &filled).collect();
/// assert_eq!(runs, [Run { from: 3, to: 2, len: 3 }]);
/// ```
pub fn runs(
    common: &[Range<usize>],
    from: &[Range<usize>],
    to: &[Range<usize>],
) -> impl Iterator<Item = Run> {
    // A run goes over the last axes as long as they are whole in all three, and over the one
    // before as far as it is common.
    let mut outer = common.len();
    let mut len = 1;
    while outer > 0 {
        outer -= 1;
        len *= common[outer].len();
        if common[outer] != from[outer] || common[outer] != to[outer] {
            break;
        }
    }
    let (steps_from, steps_to) = (strides(from), strides(to));
    let start = |block: &[Range<usize>], steps: &[usize]| -> usize {
        let axes = common.iter().zip(block).zip(steps);
        axes.map(|((c, b), step)| (c.start - b.start) * step).sum()
    };
    let (first_from, first_to) = (start(from, &steps_from), start(to, &steps_to));
    let lengths: Vec<usize> = common[..outer].iter().map(ExactSizeIterator::len).collect();
    let count: usize = lengths.iter().product();
    (0..count).map(move |mut number| {
        let (mut from, mut to) = (first_from, first_to);
        for axis in (0..lengths.len()).rev() {
            let position = number % lengths[axis];
            number /= lengths[axis];
            from += position * steps_from[axis];
            to += position * steps_to[axis];
        }
        Run { from, to, len }
    })
}

fn strides(block: &[Range<usize>]) -> Vec<usize> {
    let mut strides = vec![1; block.len()];
    for axis in (1..block.len()).rev() {
        strides[axis - 1] = strides[axis] * block[axis].len();
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_scalar_is_one_run() {
        let all: Vec<Run> = runs(&[], &[], &[]).collect();
        assert_eq!(
            all,
            [Run {
                from: 0,
                to: 0,
                len: 1
            }]
        );
    }

    #[test]
    fn rows_are_one_run_and_columns_many() {
        let tensor = whole(&[4, 6]);
        let rows = [1..3, 0..6];
        let all: Vec<Run> = runs(&rows, &tensor, &rows).collect();
        assert_eq!(
            all,
            [Run {
                from: 6,
                to: 0,
                len: 12
            }]
        );
        let columns = [0..4, 2..5];
        let all: Vec<Run> = runs(&columns, &tensor, &columns).collect();
        let expected = (0..4).map(|row| Run {
            from: 6 * row + 2,
            to: 3 * row,
            len: 3,
        });
        assert_eq!(all, expected.collect::<Vec<_>>());
    }

    fn range(length: usize) -> impl Strategy<Value = Range<usize>> {
        (0..length, 0..length).prop_map(|(a, b)| a.min(b)..a.max(b) + 1)
    }

    fn two_blocks() -> impl Strategy<Value = (Block, Block)> {
        proptest::collection::vec(1_usize..6, 0..5).prop_flat_map(|dims| {
            let block = || dims.iter().map(|&n| range(n)).collect::<Vec<_>>();
            (block(), block())
        })
    }

    /// Every element's index, in the order in which the block holds them.
    fn indices(block: &[Range<usize>]) -> Vec<Vec<usize>> {
        block.iter().fold(vec![Vec::new()], |all, range| {
            let longer = |index: &Vec<usize>| {
                let index = index.clone();
                range.clone().map(move |i| [&index[..], &[i]].concat())
            };
            all.iter().flat_map(longer).collect()
        })
    }

    proptest! {
        #[test]
        fn runs_pair_equal_indices_and_leave_none_out((from, to) in two_blocks()) {
            let (left, right) = (indices(&from), indices(&to));
            let both = left.iter().filter(|index| right.contains(index)).count();
            let common = overlap(&from, &to);
            prop_assert_eq!(common.as_deref().and_then(volume).unwrap_or(0), both);
            let mut paired = 0;
            for run in common.iter().flat_map(|common| runs(common, &from, &to)) {
                for i in 0..run.len {
                    prop_assert_eq!(&left[run.from + i], &right[run.to + i]);
                }
                paired += run.len;
            }
            prop_assert_eq!(paired, both);
        }
    }
}
