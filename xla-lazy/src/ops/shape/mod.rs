//! The same elements in another arrangement.

mod diagonal;
mod rearrange;
mod repeat;
mod unfold;

use super::only;
use crate::Tensor;
use crate::op::{Derivative, InputType, Number, Operator, Saves, entry};
use crate::stablehlo::{Func, Value};
use crate::ty::{Ty, ty};
use crate::view::{Strides, ViewRule};
use smallvec::SmallVec;
use std::panic::Location;
use xla_core::{Axes, Dims, Error, IntoAxes, IntoDims, IntoShape, Result, Shape, Site};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Reshape {
    shape: Shape,
}

impl Operator for Reshape {
    const NAME: &'static str = "reshape";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |_, vjp| vjp.only(vjp.grad().reshape(vjp.shape(0))),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        if input.shape().numel() != self.shape.numel() {
            let expected = format!("{} elements for shape {}", self.shape.numel(), self.shape);
            return Err(Error::shape(Self::NAME, expected, input.shape()));
        }
        Ok(ty(input.dtype(), &self.shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        Ok(f.reshape(inputs[0], out.shape()))
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Some(self)
    }
}

impl ViewRule for Reshape {
    fn write(&self, input: &Tensor, value: &Tensor, _: &[Number]) -> Result<Tensor> {
        value.reshape(input.shape())
    }

    /// Axes are grouped as long as they lie behind one another in memory; each group of the input
    /// must split into whole axes of the output.
    fn strides(&self, input: &Shape, strides: &[i64], output: &Shape) -> Option<Strides> {
        if input.numel() == 0 {
            return Some(crate::view::contiguous(output));
        }
        let mut out: Strides = SmallVec::from_elem(1, output.rank());
        let mut next = output.rank();
        let mut group = 1usize;
        let mut base = strides.last().copied().unwrap_or(1);
        for axis in (0..input.rank()).rev() {
            group *= input[axis];
            let ends = axis == 0
                || (input[axis - 1] != 1
                    && strides[axis - 1] != input[axis] as i64 * strides[axis]);
            if !ends {
                continue;
            }
            let mut filled = 1usize;
            while next > 0 && (filled < group || output[next - 1] == 1) {
                out[next - 1] = base * filled as i64;
                filled *= output[next - 1];
                next -= 1;
            }
            if filled != group {
                return None;
            }
            if axis > 0 {
                base = strides[axis - 1];
                group = 1;
            }
        }
        Some(out)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Permute {
    axes: Dims,
}

impl Permute {
    fn inverse(&self) -> Dims {
        let mut inverse = Dims::from_elem(0, self.axes.len());
        for (to, &from) in self.axes.iter().enumerate() {
            inverse[from] = to;
        }
        inverse
    }
}

impl Operator for Permute {
    const NAME: &'static str = "permute";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| vjp.only(vjp.grad().permute(op.inverse().as_slice())),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        let dims: Dims = self.axes.iter().map(|&a| input.shape()[a]).collect();
        Ok(ty(input.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(f.transpose(inputs[0], &self.axes))
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Some(self)
    }
}

impl ViewRule for Permute {
    fn write(&self, _: &Tensor, value: &Tensor, _: &[Number]) -> Result<Tensor> {
        value.permute(self.inverse().as_slice())
    }

    fn strides(&self, _: &Shape, strides: &[i64], _: &Shape) -> Option<Strides> {
        Some(self.axes.iter().map(|&a| strides[a]).collect())
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Expand {
    shape: Shape,
}

impl Operator for Expand {
    const NAME: &'static str = "expand";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |_, vjp| vjp.only(vjp.grad().sum_to_size(&vjp.shape(0))),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        if !input.shape().expands_to(&self.shape) {
            let expected = format!("a shape that expands to {}", self.shape);
            return Err(Error::shape(Self::NAME, expected, input.shape()));
        }
        Ok(ty(input.dtype(), &self.shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        f.broadcast_to(inputs[0], out.shape())
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Some(self)
    }
}

impl ViewRule for Expand {
    fn write(&self, input: &Tensor, value: &Tensor, _: &[Number]) -> Result<Tensor> {
        if input.numel() == value.numel() {
            return value.reshape(input.shape());
        }
        Err(Error::argument(
            "expand",
            "in-place write",
            "a tensor whose elements are all its own; call copy() on the expanded tensor first",
            format!("{} expanded to {}", input.shape(), value.shape()),
        ))
    }

    fn strides(&self, input: &Shape, strides: &[i64], output: &Shape) -> Option<Strides> {
        let added = output.rank() - input.rank();
        Some(
            (0..output.rank())
                .map(|i| match i.checked_sub(added) {
                    Some(axis) if input[axis] == output[i] => strides[axis],
                    _ => 0,
                })
                .collect(),
        )
    }
}

impl Tensor {
    /// The same elements, row-major, in another shape; one length may be -1. A view where the
    /// elements lie at constant strides, else a copy.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the element counts differ, [`Error::Argument`] for more than
    /// one -1.
    #[track_caller]
    pub fn reshape(&self, shape: impl IntoDims) -> Result<Tensor> {
        let here = Location::caller();
        let shape = self.resolve("reshape", shape).map_err(|e| e.at(here))?;
        if shape == *self.shape() {
            return Ok(self.clone());
        }
        self.view_by(entry(Reshape { shape }), &[])
    }

    /// [`Tensor::reshape`] that never copies.
    ///
    /// # Errors
    /// As [`Tensor::reshape`]; [`Error::ShapeMismatch`] where only a copy would do.
    #[track_caller]
    pub fn view(&self, shape: impl IntoDims) -> Result<Tensor> {
        let at = Location::caller();
        let shape = self.resolve("view", shape).map_err(|e| e.at(at))?;
        let strides = match &self.view {
            Some(view) => view.strides.clone(),
            None => crate::view::contiguous(self.shape()),
        };
        let op = Reshape { shape };
        if self.numel() != op.shape.numel() {
            let expected = format!("{} elements for shape {}", op.shape.numel(), op.shape);
            return Err(Error::shape("view", expected, self.shape()).at(at));
        }
        if op.strides(self.shape(), &strides, &op.shape).is_none() {
            let expected = format!(
                "elements at constant strides for {}; use reshape(), which copies",
                op.shape
            );
            return Err(Error::shape("view", expected, self.shape()).at(at));
        }
        self.reshape(op.shape)
    }

    /// Axes `start..=end` as one.
    ///
    /// # Errors
    /// [`Error::Axis`], or [`Error::Argument`] when `end` lies before `start`.
    #[track_caller]
    pub fn flatten(&self, start: i64, end: i64) -> Result<Tensor> {
        let at = Location::caller();
        // A scalar answers to the axes of a vector.
        if self.rank() == 0 {
            return self.reshape([1])?.flatten(start, end);
        }
        let resolve = |axis| self.shape().axis("flatten", axis).map_err(|e| e.at(at));
        let (start, end) = (resolve(start)?, resolve(end)?);
        if start > end {
            return Err(
                Error::argument("flatten", "end_dim", format!("at least {start}"), end).at(at),
            );
        }
        let mut dims: Dims = self.dims()[..start].into();
        let merged = self.dims()[start..=end].iter();
        dims.push(merged.fold(1, |n: usize, &d| n.saturating_mul(d)));
        dims.extend_from_slice(&self.dims()[end + 1..]);
        self.reshape(dims.as_slice())
    }

    /// One axis as several, whose lengths multiply to its own; one of them may be -1. A view.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::ShapeMismatch`] when the lengths do not multiply to the axis's.
    #[track_caller]
    pub fn unflatten(&self, dim: i64, sizes: impl IntoDims) -> Result<Tensor> {
        const OP: &str = "unflatten";
        let at = Location::caller();
        let axis = self.shape().axis(OP, dim).map_err(|e| e.at(at))?;
        let sizes = sizes.into_dims();
        let parts = infer_length(OP, &sizes, self.dims()[axis]).map_err(|e| e.at(at))?;
        if sizes.is_empty() || parts.numel() != self.dims()[axis] {
            let expected = format!("lengths that multiply to {}", self.dims()[axis]);
            return Err(Error::shape(OP, expected, format!("{sizes:?}")).at(at));
        }
        let mut dims: Dims = self.dims()[..axis].into();
        dims.extend_from_slice(&parts);
        dims.extend_from_slice(&self.dims()[axis + 1..]);
        self.reshape(dims.as_slice())
    }

    /// The axes in another order: axis `i` of the result is axis `dims[i]` of this tensor.
    ///
    /// # Errors
    /// [`Error::Argument`] unless every axis is named once, [`Error::Axis`].
    #[track_caller]
    pub fn permute(&self, dims: impl IntoAxes) -> Result<Tensor> {
        let at = Location::caller();
        let axes = dims.into_axes();
        let sorted = axes.resolve("permute", self.rank()).map_err(|e| e.at(at))?;
        let Axes::List(list) = axes else {
            return Ok(self.clone());
        };
        if sorted.len() != self.rank() {
            let expected = format!("all {} axes", self.rank());
            return Err(Error::argument("permute", "dims", expected, format!("{list:?}")).at(at));
        }
        let axes = list
            .iter()
            .map(|&a| self.shape().axis("permute", a))
            .collect::<Result<Dims>>()?;
        self.view_by(entry(Permute { axes }), &[])
    }

    /// Two axes exchanged.
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn transpose(&self, dim0: i64, dim1: i64) -> Result<Tensor> {
        let at = Location::caller();
        // A scalar answers to the axes of a vector.
        if self.rank() == 0 {
            (dim0.into_axes().resolve("transpose", 0)).map_err(|e| e.at(at))?;
            (dim1.into_axes().resolve("transpose", 0)).map_err(|e| e.at(at))?;
            return Ok(self.clone());
        }
        let resolve = |axis| self.shape().axis("transpose", axis).map_err(|e| e.at(at));
        let mut axes: Dims = (0..self.rank()).collect();
        axes.swap(resolve(dim0)?, resolve(dim1)?);
        self.view_by(entry(Permute { axes }), &[])
    }

    /// A matrix transposed; vectors and scalars as they are.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for more than two axes.
    #[track_caller]
    pub fn t(&self) -> Result<Tensor> {
        match self.rank() {
            0 | 1 => Ok(self.clone()),
            2 => self.transpose(0, 1),
            _ => Err(Error::shape("t", "at most two axes", self.shape()).at(Location::caller())),
        }
    }

    /// The tensor with axes of length 1 repeated, and new ones in front; -1 keeps a length.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when it does not expand to that.
    #[track_caller]
    pub fn expand(&self, shape: impl IntoDims) -> Result<Tensor> {
        let at = Location::caller();
        let wanted = shape.into_dims();
        let added = wanted.len().checked_sub(self.rank()).ok_or_else(|| {
            Error::shape(
                "expand",
                format!("at least {} axes", self.rank()),
                format!("{wanted:?}"),
            )
            .at(at)
        })?;
        let dims: Result<Dims> = wanted
            .iter()
            .enumerate()
            .map(|(i, &d)| match (d, i.checked_sub(added)) {
                (-1, Some(axis)) => Ok(self.dims()[axis]),
                (d, _) => usize::try_from(d).map_err(|_| {
                    Error::argument("expand", "shape", "lengths of at least 0, or -1", d).at(at)
                }),
            })
            .collect();
        let shape = Shape::from(dims?);
        if shape == *self.shape() {
            return Ok(self.clone());
        }
        self.view_by(entry(Expand { shape }), &[])
    }

    /// A new axis of length 1 at `dim`.
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn unsqueeze(&self, dim: i64) -> Result<Tensor> {
        let here = Location::caller();
        let mut dims: Dims = self.dims().into();
        // Counted in the result, which has one axis more.
        let longer = Shape::new(&vec![1; self.rank() + 1]);
        let axis = longer.axis("unsqueeze", dim).map_err(|e| e.at(here))?;
        dims.insert(axis, 1);
        self.reshape(dims.as_slice())
    }

    /// Without the axes listed, as far as their length is 1; `()` for all such axes.
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn squeeze(&self, dims: impl IntoAxes) -> Result<Tensor> {
        let here = Location::caller();
        let axes = dims
            .into_axes()
            .resolve("squeeze", self.rank())
            .map_err(|e| e.at(here))?;
        let kept: Dims = (0..self.rank())
            .filter(|i| !(axes.contains(i) && self.dims()[*i] == 1))
            .map(|i| self.dims()[i])
            .collect();
        self.reshape(kept.as_slice())
    }

    /// [`Tensor::expand`] to another tensor's shape.
    ///
    /// # Errors
    /// As [`Tensor::expand`].
    #[track_caller]
    pub fn expand_as(&self, other: &Tensor) -> Result<Tensor> {
        self.expand(other.shape())
    }

    /// [`Tensor::expand`], by NumPy's name.
    ///
    /// # Errors
    /// As [`Tensor::expand`].
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl IntoDims) -> Result<Tensor> {
        self.expand(shape)
    }

    fn resolve(&self, op: &'static str, shape: impl IntoDims) -> Result<Shape> {
        infer_length(op, &shape.into_dims(), self.numel())
    }
}

/// Lengths with at most one -1, which is what makes `numel` elements.
fn infer_length(op: &'static str, wanted: &[i64], numel: usize) -> Result<Shape> {
    if !wanted.contains(&-1) {
        return wanted.into_shape(op);
    }
    let known: i64 = wanted
        .iter()
        .filter(|d| **d != -1)
        .fold(1, |n, d| n.saturating_mul((*d).max(0)));
    let numel = numel as i64;
    let fits = wanted.iter().filter(|d| **d == -1).count() == 1 && known > 0 && numel % known == 0;
    if !fits {
        return Err(Error::ShapeMismatch {
            op,
            expected: format!("one -1 that makes {numel} elements"),
            got: format!("{wanted:?}"),
            at: Site::NONE,
        });
    }
    let filled: SmallVec<[i64; 6]> = wanted
        .iter()
        .map(|&d| if d == -1 { numel / known } else { d })
        .collect();
    filled.as_slice().into_shape(op)
}
