//! Pictures of which device holds which block.

mod svg;
mod text;

use super::NamedSharding;
use super::sharding::range;
use std::io::IsTerminal;
use std::ops::Range;
use xla_core::Shape;

/// A picture, in text, of which devices hold which blocks of a tensor of this shape: rows and columns
/// are those of the first two axes that are split, with their ranges of indices; where more axes are
/// split there is a grid for each of their blocks. In colours if the standard output is a terminal
/// (and `NO_COLOR` is not set). As `jax.debug.visualize_array_sharding`, which prints it.
///
/// ```no_run
/// use xla_lazy::spmd::{Mesh, NamedSharding, visualize_sharding};
/// let mesh = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["data", "model"])?;
/// let sharding = NamedSharding::new(&mesh, ("data", "model"))?;
/// println!("{}", visualize_sharding(&sharding, &xla_core::Shape::new(&[8, 6])));
/// // [8, 6] as ("data", "model") over 4 devices: data=2, model=2
/// //        0:3     3:6
/// //     ┌───────┬───────┐
/// // 0:4 │ xla:0 │ xla:1 │
/// //     ├───────┼───────┤
/// // 4:8 │ xla:2 │ xla:3 │
/// //     └───────┴───────┘
/// # Ok::<(), xla_core::Error>(())
/// ```
pub fn visualize_sharding(sharding: &NamedSharding, shape: &Shape) -> String {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colors = std::io::stdout().is_terminal() && !no_color;
    in_text(sharding, shape, colors)
}

pub(super) fn in_text(sharding: &NamedSharding, shape: &Shape, colors: bool) -> String {
    text::draw(&Picture::new(sharding, shape), colors)
}

/// The picture of [`visualize_sharding`] as an SVG document.
///
/// ```
/// use xla_lazy::spmd::{Mesh, NamedSharding, visualize_sharding_svg};
/// let sharding = NamedSharding::new(&Mesh::all("data")?, "data")?;
/// let svg = visualize_sharding_svg(&sharding, &xla_core::Shape::new(&[8, 6]));
/// assert!(svg.starts_with("<svg") && svg.contains("xla:0"));
/// # Ok::<(), xla_core::Error>(())
/// ```
pub fn visualize_sharding_svg(sharding: &NamedSharding, shape: &Shape) -> String {
    svg::draw(&Picture::new(sharding, shape))
}

/// What is drawn.
struct Picture {
    title: String,
    grids: Vec<Grid>,
}

/// Blocks along two axes, or fewer.
struct Grid {
    /// Where the grid is along the axes that are split but are neither rows nor columns.
    place: Option<String>,
    /// The indices of each row; none where the rows are no axis.
    rows: Vec<Option<Range<usize>>>,
    columns: Vec<Option<Range<usize>>>,
    /// Row by row, the devices that hold each block.
    cells: Vec<Vec<Vec<usize>>>,
}

impl Picture {
    fn new(sharding: &NamedSharding, shape: &Shape) -> Self {
        let rank = shape.rank();
        let tiles = sharding.tiles(rank);
        let (row, column) = drawn(&tiles);
        let others: Vec<usize> = (0..rank)
            .filter(|axis| tiles[*axis] > 1 && ![row, column].contains(&Some(*axis)))
            .collect();
        let block = sharding.shard_shape(shape);
        let range_of = |axis: usize, place| range(shape[axis], block[axis], place);
        let ranges = |axis: Option<usize>| match axis {
            Some(axis) => (0..tiles[axis]).map(|i| Some(range_of(axis, i))).collect(),
            None => vec![None],
        };
        let held: Vec<_> = (0..sharding.mesh().len())
            .map(|position| sharding.block(rank, position))
            .collect();
        let holders = |block: &[usize]| {
            let devices = sharding.mesh().devices().iter().zip(&held);
            let holders = devices.filter(|(_, held)| *held == block);
            holders.map(|(device, _)| *device).collect()
        };
        let grid = |place: Vec<usize>| {
            let mut block = place;
            let (rows, columns) = (ranges(row), ranges(column));
            let index = (0..rank).map(|axis| match others.contains(&axis) {
                true => text::range(&range_of(axis, block[axis])),
                false => ":".to_owned(),
            });
            let index = index.collect::<Vec<_>>().join(", ");
            let mut cells = Vec::new();
            for r in 0..rows.len() {
                row.into_iter().for_each(|axis| block[axis] = r);
                cells.push(
                    (0..columns.len())
                        .map(|c| {
                            column.into_iter().for_each(|axis| block[axis] = c);
                            holders(&block)
                        })
                        .collect(),
                );
            }
            Grid {
                place: (!others.is_empty()).then(|| format!("[{index}]")),
                rows,
                columns,
                cells,
            }
        };
        Picture {
            title: format!("{shape:?} as {sharding}"),
            grids: places(&tiles, &others).into_iter().map(grid).collect(),
        }
    }
}

/// The axes that are drawn as rows and as columns.
fn drawn(tiles: &[usize]) -> (Option<usize>, Option<usize>) {
    let last = tiles.len().checked_sub(1);
    let mut split = (0..tiles.len()).filter(|axis| tiles[*axis] > 1);
    match (split.next(), split.next()) {
        (Some(first), Some(second)) => (Some(first), Some(second)),
        (Some(only), None) if Some(only) == last => (only.checked_sub(1), Some(only)),
        (Some(only), None) => (Some(only), last),
        (None, _) => (last.and_then(|last| last.checked_sub(1)), last),
    }
}

/// Every block along these axes, at the first one along the others.
fn places(tiles: &[usize], axes: &[usize]) -> Vec<Vec<usize>> {
    let mut places = vec![vec![0; tiles.len()]];
    for &axis in axes {
        let along = |place: Vec<usize>| {
            (0..tiles[axis]).map(move |i| {
                let mut place = place.clone();
                place[axis] = i;
                place
            })
        };
        places = places.into_iter().flat_map(along).collect();
    }
    places
}
