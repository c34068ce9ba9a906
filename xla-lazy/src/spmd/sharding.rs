//! Which device of a mesh holds which block of a tensor.

use super::spec::{AxisPart, Part, SpecAxes};
use super::{Mesh, PartitionSpec};
use crate::intern::Interned;
use std::fmt;
use std::ops::Range;
use std::panic::Location;
use xla_core::{Error, Result, Shape, Site};

/// A mesh, and over which of its axes the axes of a tensor are split. As
/// `jax.sharding.NamedSharding`.
///
/// An axis of the tensor that is split into `n` is stored in blocks of equal length, its own length
/// divided by `n` and rounded up; what the last ones have too much is never seen. Along a mesh axis
/// that no axis of the tensor is split over, each device holds the same.
///
/// ```no_run
/// use xla_lazy::spmd::{Mesh, NamedSharding};
/// let mesh = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["data", "model"])?;
/// let sharding = NamedSharding::new(&mesh, ((), "model"))?;
/// let shape = xla_core::Shape::new(&[8, 6]);
/// assert_eq!(sharding.shard_shape(&shape).dims(), [8, 3]);
/// assert_eq!(sharding.shard_index(&shape, 3), [0..8, 3..6]);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct NamedSharding {
    mesh: Mesh,
    spec: PartitionSpec,
}

/// One digit of a place in the mesh: the axis is a grid of `before * size * after`, and this is the
/// place along `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digit {
    pub(super) axis: usize,
    pub(super) before: usize,
    pub(super) size: usize,
    pub(super) after: usize,
}

impl Digit {
    fn of(self, coordinates: &[usize]) -> usize {
        coordinates[self.axis] / self.after % self.size
    }
}

impl NamedSharding {
    /// The sharding of this mesh by this specification.
    ///
    /// # Errors
    /// [`Error::Sharding`] when the specification names an axis that the mesh does not have, or one
    /// twice.
    #[track_caller]
    pub fn new(mesh: &Mesh, spec: impl Into<PartitionSpec>) -> Result<Self> {
        let sharding = NamedSharding {
            mesh: *mesh,
            spec: spec.into(),
        };
        let at = Location::caller();
        sharding.check_axes().map_err(|e| e.at(at))?;
        Ok(sharding)
    }

    /// The same for as long as the process lives; there are few.
    pub(crate) fn interned(&self) -> &'static NamedSharding {
        // Equal ones may differ in how many axes they speak of, which not every tensor has.
        let kept = Interned::new("NamedSharding", (self.clone(), self.spec.len()));
        &kept.get().0
    }

    /// The sharding by which each device of the mesh has the whole tensor.
    pub fn replicated(mesh: &Mesh) -> Self {
        NamedSharding {
            mesh: *mesh,
            spec: PartitionSpec::replicated(),
        }
    }

    /// The error of a call that this sharding is no good for: `target` is what it is to be applied to.
    pub(crate) fn refused(
        &self,
        op: &'static str,
        target: String,
        reason: impl Into<String>,
        at: impl Into<Site>,
    ) -> Error {
        Error::Sharding {
            op,
            sharding: self.spec.to_string(),
            target,
            reason: reason.into(),
            at: at.into(),
        }
    }

    /// For each axis of a tensor the digits that say which of its blocks a device holds, most
    /// significant first; they are digits of the mesh.
    pub(super) fn of_digits(mesh: &Mesh, axes: &[Vec<Digit>]) -> Self {
        let part = |digit: &Digit| AxisPart {
            name: mesh.axis_names()[digit.axis].into(),
            part: (digit.size != mesh.shape()[digit.axis]).then_some(Part {
                before: digit.before,
                size: digit.size,
            }),
        };
        let spec = axes
            .iter()
            .map(|digits| digits.iter().map(part).collect::<SpecAxes>());
        NamedSharding {
            mesh: *mesh,
            spec: PartitionSpec::new(spec),
        }
    }

    fn check_axes(&self) -> Result<()> {
        let bad = |reason: String| {
            let target = format!("the mesh of {}", self.mesh);
            Err(self.refused("NamedSharding::new", target, reason, Site::NONE))
        };
        let mut seen: Vec<&str> = Vec::new();
        for name in self.spec.axes().iter().flat_map(SpecAxes::names) {
            if self.mesh.axis(name).is_none() {
                return bad(format!("the mesh has no axis {name:?}"));
            }
            if seen.contains(&name) {
                return bad(format!("it uses the axis {name:?} twice"));
            }
            seen.push(name);
        }
        Ok(())
    }

    /// The mesh.
    pub fn mesh(&self) -> Mesh {
        self.mesh
    }

    /// Over which axes of the mesh the tensor's axes are split.
    pub fn spec(&self) -> &PartitionSpec {
        &self.spec
    }

    /// Whether each device has the whole tensor.
    pub fn is_replicated(&self) -> bool {
        let rank = self.spec.len();
        self.tiles(rank).iter().all(|tiles| *tiles == 1)
    }

    /// Refuses a tensor with fewer axes than the specification speaks of.
    pub(crate) fn check(&self, op: &'static str, shape: &Shape) -> Result<()> {
        if self.spec.len() <= shape.rank() {
            return Ok(());
        }
        let reason = format!(
            "it speaks of {} axes, the tensor has {}",
            self.spec.len(),
            shape.rank()
        );
        Err(self.refused(op, format!("shape {shape:?}"), reason, Site::NONE))
    }

    /// Into how many blocks each axis of a tensor of this rank is split.
    pub fn tiles(&self, rank: usize) -> Vec<usize> {
        let digits = self.digits(rank);
        digits
            .iter()
            .map(|d| d.iter().map(|d| d.size).product())
            .collect()
    }

    /// The shape of what each device stores of a tensor of this shape: the lengths of the blocks,
    /// rounded up.
    pub fn shard_shape(&self, shape: &Shape) -> Shape {
        let tiles = self.tiles(shape.rank());
        let lengths = shape.dims().iter().zip(tiles);
        Shape::new(
            &lengths
                .map(|(n, tiles)| n.div_ceil(tiles))
                .collect::<Vec<_>>(),
        )
    }

    /// The shape of what all devices store of a tensor of this shape, without replicas: its own
    /// where the axes split evenly.
    pub fn padded_shape(&self, shape: &Shape) -> Shape {
        let tiles = self.tiles(shape.rank());
        let lengths = shape.dims().iter().zip(tiles);
        let padded = lengths.map(|(n, tiles)| n.div_ceil(tiles) * tiles);
        Shape::new(&padded.collect::<Vec<_>>())
    }

    /// Which part of a tensor of this shape the device at this position of the mesh holds: a range
    /// of indices for each axis. Where an axis does not split evenly the last ranges are shorter, or
    /// empty.
    pub fn shard_index(&self, shape: &Shape, position: usize) -> Vec<Range<usize>> {
        let block = self.shard_shape(shape);
        let lengths = shape.dims().iter().zip(block.dims());
        let place = self.block(shape.rank(), position);
        lengths
            .zip(place)
            .map(|((&length, &block), place)| range(length, block, place))
            .collect()
    }

    /// How many devices before this position hold the same block of a tensor of this rank: 0 for the
    /// first that does. As `Shard.replica_id` of JAX.
    pub fn replica_id(&self, rank: usize, position: usize) -> usize {
        let block = self.block(rank, position);
        (0..position.min(self.mesh.len()))
            .filter(|before| self.block(rank, *before) == block)
            .count()
    }

    /// Which block the device at this position holds, along each axis.
    pub(super) fn block(&self, rank: usize, position: usize) -> Vec<usize> {
        let coordinates = self.mesh.coordinates(position);
        let place = |digits: &Vec<Digit>| {
            let digits = digits.iter();
            digits.fold(0, |place, digit| {
                place * digit.size + digit.of(&coordinates)
            })
        };
        self.digits(rank).iter().map(place).collect()
    }

    /// For each axis of a tensor of this rank, what it is split by, outermost first.
    pub(super) fn digits(&self, rank: usize) -> Vec<Vec<Digit>> {
        let digit = |axis: &AxisPart| {
            let index = self.mesh.axis(&axis.name)?;
            let length = self.mesh.shape()[index];
            let Part { before, size } = axis.part.unwrap_or(Part {
                before: 1,
                size: length,
            });
            Some(Digit {
                axis: index,
                before,
                size,
                after: length / (before * size),
            })
        };
        (0..rank)
            .map(|axis| {
                let axes = self.spec.axes().get(axis).map_or(&[][..], SpecAxes::parts);
                axes.iter().filter_map(digit).collect()
            })
            .collect()
    }
}

/// The indices of the block at this place along an axis of this length, when blocks are this long.
pub(super) fn range(length: usize, block: usize, place: usize) -> Range<usize> {
    let start = (place * block).min(length);
    start..(start + block).min(length)
}

impl fmt::Display for NamedSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} over {}", self.spec, self.mesh)
    }
}

impl fmt::Debug for NamedSharding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NamedSharding({self})")
    }
}
