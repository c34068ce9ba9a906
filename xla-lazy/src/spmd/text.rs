//! Shardings as the compiler reads them: in Shardy's language and in GSPMD's.

use super::NamedSharding;
use super::sharding::Digit;
use super::spec::SpecAxes;

impl NamedSharding {
    /// The sharding of a tensor of this rank in Shardy's language, as it stands in a constraint or
    /// after `#sdy.sharding`: `<@mesh, [{"data"}, {}]>`.
    pub(crate) fn to_sdy(&self, rank: usize) -> String {
        let axes = (0..rank).map(|axis| {
            let parts = self
                .spec()
                .axes()
                .get(axis)
                .map_or(&[][..], SpecAxes::parts);
            let parts: Vec<_> = parts.iter().map(|part| part.to_string()).collect();
            format!("{{{}}}", parts.join(", "))
        });
        format!("<@mesh, [{}]>", axes.collect::<Vec<_>>().join(", "))
    }

    /// The sharding of a tensor of this rank as the value of an `mhlo.sharding` attribute:
    /// `{replicated}`, or `{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}`.
    ///
    /// The second form is an array of device numbers, one for each block (and, in a last axis, one
    /// for each replica of it): 0, 1, 2, … in the shape after `<=`, its axes permuted by `T`, and
    /// reshaped to the one after `devices=`.
    pub(crate) fn to_gspmd(&self, rank: usize) -> String {
        let mut tiles = self.tiles(rank);
        let blocks: usize = tiles.iter().product();
        if blocks == 1 {
            return "{replicated}".into();
        }
        let used: Vec<Digit> = self.digits(rank).into_iter().flatten().collect();
        let (grid, order) = self.grid(&used);
        let replicas = self.mesh().len() / blocks;
        let replicate = match replicas {
            1 => "",
            _ => {
                tiles.push(replicas);
                " last_tile_dim_replicate"
            }
        };
        let (grid, order) = merged(&grid, &order);
        let source = match order.as_slice() {
            [] | [_] => format!("[{}]", self.mesh().len()),
            _ => format!("[{}]T({})", list(&grid), list(&order)),
        };
        format!("{{devices=[{}]<={source}{replicate}}}", list(&tiles))
    }

    /// The mesh with each axis cut into the digits used and what is between them, and an order of
    /// these: the used ones as they come, then the others.
    fn grid(&self, used: &[Digit]) -> (Vec<usize>, Vec<usize>) {
        let mut grid = Vec::new();
        // By axis and the length of what is before it within the axis.
        let mut place = Vec::new();
        for (axis, &length) in self.mesh().shape().iter().enumerate() {
            let of_axis = used.iter().filter(|digit| digit.axis == axis);
            let mut cuts: Vec<usize> = of_axis
                .flat_map(|digit| [digit.before, digit.before * digit.size])
                .chain([1, length])
                .collect();
            cuts.sort_unstable();
            cuts.dedup();
            for pair in cuts.windows(2) {
                grid.push(pair[1] / pair[0]);
                place.push((axis, pair[0]));
            }
        }
        // A digit of one value has no place of its own, and none is missed.
        let mut order: Vec<usize> = used
            .iter()
            .filter(|digit| digit.size > 1)
            .filter_map(|digit| place.iter().position(|p| *p == (digit.axis, digit.before)))
            .collect();
        for i in 0..grid.len() {
            if !order.contains(&i) {
                order.push(i);
            }
        }
        (grid, order)
    }
}

/// The same permuted grid with as few axes as it can be written: neighbours that stay neighbours are
/// one.
fn merged(grid: &[usize], order: &[usize]) -> (Vec<usize>, Vec<usize>) {
    // Runs of consecutive axes, in the order in which they come out.
    let mut runs: Vec<std::ops::Range<usize>> = Vec::new();
    for &axis in order {
        match runs.last_mut() {
            Some(run) if run.end == axis => run.end += 1,
            _ => runs.push(axis..axis + 1),
        }
    }
    let mut sorted = runs.clone();
    sorted.sort_by_key(|run| run.start);
    let lengths = sorted.iter().map(|run| grid[run.clone()].iter().product());
    let number = |run| sorted.iter().position(|other| other == run);
    (lengths.collect(), runs.iter().filter_map(number).collect())
}

fn list(numbers: &[usize]) -> String {
    let numbers: Vec<_> = numbers.iter().map(|n| n.to_string()).collect();
    numbers.join(",")
}
