//! Shapes, axes and the rules for broadcasting them.

use crate::{Error, Result, Site};
use smallvec::SmallVec;
use std::fmt;

/// Axis lengths or axis numbers, kept inline up to rank 6.
pub type Dims = SmallVec<[usize; 6]>;

/// The lengths of a tensor's axes, outermost first. A scalar has none.
#[derive(Clone, PartialEq, Eq, Hash, Default, PartialOrd, Ord)]
pub struct Shape(Dims);

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Self {
        Self::default()
    }

    /// A shape with these axis lengths.
    pub fn new(dims: &[usize]) -> Self {
        Shape(Dims::from_slice(dims))
    }

    /// Axis lengths, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements: the product of the axis lengths, 1 for a scalar. Saturates at
    /// `usize::MAX`, which no allocation satisfies.
    pub fn numel(&self) -> usize {
        if self.0.contains(&0) {
            return 0;
        }
        self.0.iter().fold(1usize, |n, &d| n.saturating_mul(d))
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> Dims {
        let mut strides = Dims::from_elem(1, self.rank());
        for axis in (1..self.rank()).rev() {
            strides[axis - 1] = strides[axis].saturating_mul(self.0[axis].max(1));
        }
        strides
    }

    /// The axis that `axis` names, counted from the end when negative.
    ///
    /// # Errors
    /// [`Error::Axis`] when it is not in `-rank..rank` (a scalar accepts `-1` and `0`, which no
    /// axis answers to, only where the operator says so).
    pub fn axis(&self, op: &'static str, axis: i64) -> Result<usize> {
        resolve_axis(op, axis, self.rank())
    }

    /// The shape both operands are expanded to, by NumPy's rule: aligned at the last axis, each
    /// pair of lengths equal or one of them 1.
    ///
    /// # Errors
    /// [`Error::Broadcast`] with both shapes.
    ///
    /// ```
    /// use xla_core::Shape;
    /// let a = Shape::new(&[4, 1]);
    /// let b = Shape::new(&[3]);
    /// assert_eq!(a.broadcast("add", &b).unwrap().dims(), [4, 3]);
    /// ```
    pub fn broadcast(&self, op: &'static str, other: &Shape) -> Result<Shape> {
        if self == other {
            return Ok(self.clone());
        }
        let rank = self.rank().max(other.rank());
        let mut dims = Dims::from_elem(1, rank);
        for (back, slot) in dims.iter_mut().rev().enumerate() {
            let a = self.length_from_end(back);
            let b = other.length_from_end(back);
            *slot = match (a, b) {
                _ if a == b => a,
                (1, _) => b,
                (_, 1) => a,
                _ => {
                    return Err(Error::Broadcast {
                        op,
                        left: self.clone().into(),
                        right: other.clone().into(),
                        at: Site::NONE,
                    });
                }
            };
        }
        Ok(Shape(dims))
    }

    /// Whether a tensor of this shape can be expanded to `target`.
    pub fn expands_to(&self, target: &Shape) -> bool {
        self.rank() <= target.rank()
            && (0..self.rank()).all(|i| {
                let have = self.length_from_end(i);
                have == 1 || have == target.length_from_end(i)
            })
    }

    fn length_from_end(&self, i: usize) -> usize {
        if i < self.rank() {
            self.0[self.rank() - 1 - i]
        } else {
            1
        }
    }
}

/// The axis that `axis` names in a tensor of this rank.
fn resolve_axis(op: &'static str, axis: i64, rank: usize) -> Result<usize> {
    let signed = i64::try_from(rank).unwrap_or(i64::MAX);
    let resolved = if axis < 0 {
        axis.saturating_add(signed)
    } else {
        axis
    };
    match usize::try_from(resolved) {
        Ok(a) if a < rank => Ok(a),
        _ => Err(Error::Axis {
            op,
            axis,
            rank,
            at: Site::NONE,
        }),
    }
}

impl std::ops::Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.dims(), f)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.dims(), f)
    }
}

impl From<Dims> for Shape {
    fn from(dims: Dims) -> Self {
        Shape(dims)
    }
}

impl From<Shape> for Vec<usize> {
    fn from(shape: Shape) -> Self {
        shape.0.into_vec()
    }
}

impl From<&Shape> for Vec<usize> {
    fn from(shape: &Shape) -> Self {
        shape.dims().to_vec()
    }
}

impl PartialEq<[usize]> for Shape {
    fn eq(&self, other: &[usize]) -> bool {
        self.dims() == other
    }
}

impl<const N: usize> PartialEq<[usize; N]> for Shape {
    fn eq(&self, other: &[usize; N]) -> bool {
        self.dims() == other
    }
}

/// What can be given where a shape is wanted: arrays, slices and vectors of any of the usual
/// integer types, one length for a vector, `()` for a scalar, or a [`Shape`].
pub trait IntoShape {
    /// The shape.
    ///
    /// # Errors
    /// [`Error::Argument`] when a length is negative.
    fn into_shape(self, op: &'static str) -> Result<Shape>;
}

/// What can be given where axis lengths may hold one `-1` to be inferred (`reshape`, `expand`).
pub trait IntoDims {
    /// The lengths as given.
    fn into_dims(self) -> SmallVec<[i64; 6]>;
}

/// A choice of axes: all of them, or those listed (negative ones count from the end).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Axes {
    /// Every axis.
    All,
    /// The axes listed.
    List(SmallVec<[i64; 6]>),
}

impl Axes {
    /// The axes as sorted, distinct positions in a tensor of this rank. A scalar answers to `0` and
    /// `-1`, as in PyTorch.
    ///
    /// # Errors
    /// [`Error::Axis`] when one is out of range, [`Error::Argument`] when one is named twice.
    pub fn resolve(&self, op: &'static str, rank: usize) -> Result<Dims> {
        let list = match self {
            Axes::All => return Ok((0..rank).collect()),
            Axes::List(list) => list,
        };
        let mut out = Dims::new();
        for &axis in list {
            if rank == 0 && (axis == 0 || axis == -1) {
                continue;
            }
            let resolved = resolve_axis(op, axis, rank)?;
            if out.contains(&resolved) {
                return Err(Error::Argument {
                    op,
                    argument: "dim",
                    expected: "each axis once".into(),
                    got: format!("{list:?}"),
                    at: Site::NONE,
                });
            }
            out.push(resolved);
        }
        out.sort_unstable();
        Ok(out)
    }
}

/// What can be given where axes are wanted: `()` for all, one number, or several.
pub trait IntoAxes {
    /// The choice of axes.
    fn into_axes(self) -> Axes;
}

impl IntoAxes for () {
    fn into_axes(self) -> Axes {
        Axes::All
    }
}

impl IntoAxes for Axes {
    fn into_axes(self) -> Axes {
        self
    }
}

impl IntoShape for () {
    fn into_shape(self, _: &'static str) -> Result<Shape> {
        Ok(Shape::scalar())
    }
}

impl IntoShape for Shape {
    fn into_shape(self, _: &'static str) -> Result<Shape> {
        Ok(self)
    }
}

impl IntoShape for &Shape {
    fn into_shape(self, _: &'static str) -> Result<Shape> {
        Ok(self.clone())
    }
}

impl IntoDims for Shape {
    fn into_dims(self) -> SmallVec<[i64; 6]> {
        self.dims().into_dims()
    }
}

impl IntoDims for &Shape {
    fn into_dims(self) -> SmallVec<[i64; 6]> {
        self.dims().into_dims()
    }
}

impl IntoDims for () {
    fn into_dims(self) -> SmallVec<[i64; 6]> {
        SmallVec::new()
    }
}

fn shape_of(op: &'static str, dims: impl Iterator<Item = i64>) -> Result<Shape> {
    dims.map(|d| {
        usize::try_from(d).map_err(|_| Error::Argument {
            op,
            argument: "shape",
            expected: "lengths of at least 0".into(),
            got: d.to_string(),
            at: Site::NONE,
        })
    })
    .collect::<Result<Dims>>()
    .map(Shape)
}

// Literals such as `[2, 3]` fall back to `i32`, lengths that a program computes are `usize`, and
// PyTorch's own are `i64`: taking all three is what lets `x.reshape([-1, 784])` and
// `x.reshape([batch, 784])` both compile without a cast.
macro_rules! integers {
    ($($t:ty),*) => {$(
        impl IntoShape for &[$t] {
            fn into_shape(self, op: &'static str) -> Result<Shape> {
                shape_of(op, self.iter().map(|&d| d as i64))
            }
        }
        impl<const N: usize> IntoShape for [$t; N] {
            fn into_shape(self, op: &'static str) -> Result<Shape> { self.as_slice().into_shape(op) }
        }
        impl<const N: usize> IntoShape for &[$t; N] {
            fn into_shape(self, op: &'static str) -> Result<Shape> { self.as_slice().into_shape(op) }
        }
        impl IntoShape for Vec<$t> {
            fn into_shape(self, op: &'static str) -> Result<Shape> { self.as_slice().into_shape(op) }
        }
        impl IntoShape for &Vec<$t> {
            fn into_shape(self, op: &'static str) -> Result<Shape> { self.as_slice().into_shape(op) }
        }
        impl IntoShape for $t {
            fn into_shape(self, op: &'static str) -> Result<Shape> { [self].into_shape(op) }
        }
        impl IntoDims for &[$t] {
            fn into_dims(self) -> SmallVec<[i64; 6]> { self.iter().map(|&d| d as i64).collect() }
        }
        impl<const N: usize> IntoDims for [$t; N] {
            fn into_dims(self) -> SmallVec<[i64; 6]> { self.as_slice().into_dims() }
        }
        impl<const N: usize> IntoDims for &[$t; N] {
            fn into_dims(self) -> SmallVec<[i64; 6]> { self.as_slice().into_dims() }
        }
        impl IntoDims for Vec<$t> {
            fn into_dims(self) -> SmallVec<[i64; 6]> { self.as_slice().into_dims() }
        }
        impl IntoDims for $t {
            fn into_dims(self) -> SmallVec<[i64; 6]> { [self].into_dims() }
        }
        impl IntoAxes for $t {
            fn into_axes(self) -> Axes { Axes::List([self].into_dims()) }
        }
        impl IntoAxes for &[$t] {
            fn into_axes(self) -> Axes { Axes::List(self.into_dims()) }
        }
        impl<const N: usize> IntoAxes for [$t; N] {
            fn into_axes(self) -> Axes { Axes::List(self.into_dims()) }
        }
    )*};
}

integers!(i32, i64, usize);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_is_numpys() {
        type Case<'a> = (&'a [usize], &'a [usize], Option<&'a [usize]>);
        let cases: [Case<'_>; 6] = [
            (&[2, 3], &[3], Some(&[2, 3])),
            (&[], &[2], Some(&[2])),
            (&[5, 1, 4], &[3, 1], Some(&[5, 3, 4])),
            (&[0, 1], &[1, 3], Some(&[0, 3])),
            (&[2], &[3], None),
            (&[2, 0], &[2, 2], None),
        ];
        for (a, b, expected) in cases {
            let got = Shape::new(a).broadcast("add", &Shape::new(b));
            assert_eq!(got.as_ref().ok().map(Shape::dims), expected, "{a:?} {b:?}");
        }
    }

    #[test]
    fn axes_count_from_the_end() {
        let shape = Shape::new(&[2, 3, 4]);
        assert_eq!(shape.axis("sum", -1).unwrap(), 2);
        assert!(matches!(
            shape.axis("sum", 3),
            Err(Error::Axis {
                axis: 3,
                rank: 3,
                ..
            })
        ));
        assert!(matches!(
            shape.axis("sum", i64::MIN),
            Err(Error::Axis { .. })
        ));
        assert_eq!(
            [-1, 0].into_axes().resolve("sum", 3).unwrap().as_slice(),
            [0, 2]
        );
        assert!([1, -2].into_axes().resolve("sum", 3).is_err());
    }

    #[test]
    fn numel_does_not_overflow() {
        assert_eq!(Shape::new(&[usize::MAX, 2]).numel(), usize::MAX);
        assert_eq!(Shape::new(&[usize::MAX, 2, 0]).numel(), 0);
        assert_eq!(Shape::scalar().numel(), 1);
    }
}
