//! Views: operators that show the same elements in another arrangement, or some of them.

use super::only;
use crate::Tensor;
use crate::op::{Derivative, InputType, Number, Operand, Operator, Saves, entry};
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
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

/// `len` elements of one axis from a start that is data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Narrow {
    axis: usize,
    len: usize,
}

impl Narrow {
    /// The start on every axis, as scalars.
    fn starts(&self, f: &mut Func, rank: usize, start: Value) -> Vec<Value> {
        let zero = f.constant_int(start.dtype(), &Shape::scalar(), 0);
        (0..rank)
            .map(|i| if i == self.axis { start } else { zero })
            .collect()
    }
}

impl Operator for Narrow {
    const NAME: &'static str = "narrow";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let zeros = Tensor::zeros(vjp.shape(0), (vjp.dtype(0), vjp.grad().device()))?;
            let start = vjp.number(1).unwrap_or(Number::Int(0));
            let update = NarrowUpdate { narrow: op.clone() };
            let placed = record_op(
                update,
                &[
                    Operand::Tensor(&zeros),
                    Operand::Tensor(vjp.grad()),
                    Operand::Number(start),
                ],
            )?;
            Ok(smallvec::smallvec![Some(placed), None])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = inputs[0].tensor(Self::NAME)?;
        let mut dims: Dims = input.shape().dims().into();
        dims[self.axis] = self.len;
        Ok(ty(input.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let starts = self.starts(f, out.rank(), inputs[1]);
        Ok(f.dynamic_slice(inputs[0], &starts, out.shape().dims()))
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Some(self)
    }
}

impl ViewRule for Narrow {
    fn write(&self, input: &Tensor, value: &Tensor, numbers: &[Number]) -> Result<Tensor> {
        let update = NarrowUpdate {
            narrow: self.clone(),
        };
        record_op(
            update,
            &[
                Operand::Tensor(input),
                Operand::Tensor(value),
                Operand::Number(numbers[0]),
            ],
        )
    }

    fn strides(&self, _: &Shape, strides: &[i64], _: &Shape) -> Option<Strides> {
        Some(strides.into())
    }
}

/// The first operand with the part that `narrow` shows replaced by the second.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct NarrowUpdate {
    narrow: Narrow,
}

impl Operator for NarrowUpdate {
    const NAME: &'static str = "narrow_update";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let start = Operand::Number(vjp.number(2).unwrap_or(Number::Int(0)));
            let part = record_op(op.narrow.clone(), &[Operand::Tensor(vjp.grad()), start])?;
            let zeros = part.zeros_like()?;
            let rest = record_op(
                op.clone(),
                &[Operand::Tensor(vjp.grad()), Operand::Tensor(&zeros), start],
            )?;
            Ok(smallvec::smallvec![Some(rest), Some(part), None])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let starts = self.narrow.starts(f, out.rank(), inputs[2]);
        Ok(f.dynamic_update_slice(inputs[0], inputs[1], &starts))
    }
}

/// Every `step`-th element of one axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Stride {
    axis: usize,
    step: usize,
}

impl Operator for Stride {
    const NAME: &'static str = "slice";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let zeros = Tensor::zeros(vjp.shape(0), (vjp.dtype(0), vjp.grad().device()))?;
            vjp.only(ViewRule::write(op, &zeros, vjp.grad(), &[]))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        let mut dims: Dims = input.shape().dims().into();
        dims[self.axis] = dims[self.axis].div_ceil(self.step);
        Ok(ty(input.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let x = inputs[0];
        let rank = x.shape().rank();
        let steps: Dims = (0..rank)
            .map(|i| if i == self.axis { self.step } else { 1 })
            .collect();
        Ok(f.slice(x, &Dims::from_elem(0, rank), x.shape().dims(), &steps))
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Some(self)
    }
}

impl ViewRule for Stride {
    fn write(&self, input: &Tensor, value: &Tensor, _: &[Number]) -> Result<Tensor> {
        record_op(
            StrideUpdate {
                stride: self.clone(),
            },
            &[input.into(), value.into()],
        )
    }

    fn strides(&self, _: &Shape, strides: &[i64], _: &Shape) -> Option<Strides> {
        let step = |(i, s): (usize, &i64)| {
            if i == self.axis {
                s * self.step as i64
            } else {
                *s
            }
        };
        Some(strides.iter().enumerate().map(step).collect())
    }
}

/// The first operand with the elements that `stride` shows replaced by the second.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct StrideUpdate {
    stride: Stride,
}

impl Operator for StrideUpdate {
    const NAME: &'static str = "slice_update";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let part = record_op(op.stride.clone(), &[vjp.grad().into()])?;
            let zeros = part.zeros_like()?;
            let rest = record_op(op.clone(), &[vjp.grad().into(), (&zeros).into()])?;
            Ok(smallvec::smallvec![Some(rest), Some(part)])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    /// The update is spread out by padding between its elements, and taken where a mask spread in
    /// the same way is set.
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let Stride { axis, step } = self.stride;
        let (rank, updates) = (out.rank(), inputs[1].shape()[axis]);
        let covered = if updates == 0 {
            0
        } else {
            (updates - 1) * step + 1
        };
        let on_axis = |value: i64| -> Vec<i64> {
            (0..rank)
                .map(|i| if i == axis { value } else { 0 })
                .collect()
        };
        let high = on_axis(out.shape()[axis] as i64 - covered as i64);
        let (low, interior) = (on_axis(0), on_axis(step as i64 - 1));
        let zero = f.constant(out.dtype(), &Shape::scalar(), 0.0);
        let spread = f.pad(inputs[1], zero, &low, &high, &interior);
        let no = f.constant(xla_core::DType::Bool, &Shape::scalar(), 0.0);
        let yes = f.constant(xla_core::DType::Bool, inputs[1].shape(), 1.0);
        let mask = f.pad(yes, no, &low, &high, &interior);
        Ok(f.select(mask, spread, inputs[0]))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Cat {
    axis: usize,
}

impl Operator for Cat {
    const NAME: &'static str = "cat";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let mut start = 0;
            (0..vjp.len())
                .map(|i| {
                    let len = vjp.shape(i)[op.axis];
                    let from = start;
                    start += len;
                    if !vjp.needs(i) {
                        return Ok(None);
                    }
                    let part = vjp.grad().narrow(op.axis as i64, from as i64, len)?;
                    part.to_dtype(vjp.dtype(i)).map(Some)
                })
                .collect()
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let first = inputs[0].tensor(Self::NAME)?;
        let mut dims: Dims = first.shape().dims().into();
        dims[self.axis] = 0;
        for input in inputs {
            let this = input.tensor(Self::NAME)?.shape();
            let fits = this.rank() == dims.len()
                && (0..dims.len()).all(|i| i == self.axis || this[i] == dims[i]);
            if !fits {
                let expected = format!("{} but for axis {}", first.shape(), self.axis);
                return Err(Error::shape(Self::NAME, expected, this));
            }
            dims[self.axis] += this[self.axis];
        }
        Ok(ty(crate::op::promote(inputs), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let converted: Vec<Value> = inputs.iter().map(|&x| f.convert(x, out.dtype())).collect();
        Ok(f.concatenate(&converted, self.axis))
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
        let shape = self
            .resolve("reshape", shape)
            .map_err(|e| e.at(here))?;
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
        if self.numel() == op.shape.numel()
            && op.strides(self.shape(), &strides, &op.shape).is_none()
        {
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
        if self.rank() == 0 {
            return self.reshape([1]);
        }
        let resolve = |axis| self.shape().axis("flatten", axis).map_err(|e| e.at(at));
        let (start, end) = (resolve(start)?, resolve(end)?);
        if start > end {
            return Err(
                Error::argument("flatten", "end_dim", format!("at least {start}"), end).at(at),
            );
        }
        let mut dims: Dims = self.dims()[..start].into();
        dims.push(self.dims()[start..=end].iter().product());
        dims.extend_from_slice(&self.dims()[end + 1..]);
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
        let axis = longer
            .axis("unsqueeze", dim)
            .map_err(|e| e.at(here))?;
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

    /// `len` elements of an axis from `start` on. The start is data: another one is the same
    /// program.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::IndexOutOfRange`] when it reaches beyond the axis.
    #[track_caller]
    pub fn narrow(&self, dim: i64, start: i64, len: usize) -> Result<Tensor> {
        let at = Location::caller();
        let axis = self.shape().axis("narrow", dim).map_err(|e| e.at(at))?;
        let size = self.dims()[axis];
        let first = if start < 0 {
            start.saturating_add(size as i64)
        } else {
            start
        };
        let end = first.saturating_add(i64::try_from(len).unwrap_or(i64::MAX));
        if first < 0 || end > size as i64 {
            return Err(Error::IndexOutOfRange {
                op: "narrow",
                index: if first < 0 { start } else { end - 1 },
                axis,
                size,
                at: at.into(),
            });
        }
        self.view_by(entry(Narrow { axis, len }), &[Number::Int(first)])
    }

    /// Every `step`-th element of an axis from `start` to before `end`, with Python's rules: both
    /// may be negative and are limited to the axis.
    ///
    /// # Errors
    /// [`Error::Axis`], [`Error::Argument`] for a step of 0.
    #[track_caller]
    pub fn slice(&self, dim: i64, start: i64, end: i64, step: usize) -> Result<Tensor> {
        let at = Location::caller();
        let axis = self.shape().axis("slice", dim).map_err(|e| e.at(at))?;
        if step == 0 {
            return Err(Error::argument("slice", "step", "at least 1", 0).at(at));
        }
        let size = self.dims()[axis] as i64;
        let limit = |i: i64| if i < 0 { i.saturating_add(size) } else { i }.clamp(0, size);
        let (start, end) = (limit(start), limit(end));
        let part = self.narrow(axis as i64, start, (end - start).max(0) as usize)?;
        if step == 1 {
            Ok(part)
        } else {
            part.view_by(entry(Stride { axis, step }), &[])
        }
    }

    /// One element of an axis, which vanishes. The index is data.
    ///
    /// # Errors
    /// [`Error::Axis`], [`Error::IndexOutOfRange`].
    #[track_caller]
    pub fn select(&self, dim: i64, index: i64) -> Result<Tensor> {
        let at = Location::caller();
        let axis = self.shape().axis("select", dim).map_err(|e| e.at(at))?;
        let size = self.dims()[axis];
        if index >= size as i64 || index < -(size as i64) {
            return Err(Error::IndexOutOfRange {
                op: "select",
                index,
                axis,
                size,
                at: at.into(),
            });
        }
        self.narrow(axis as i64, index, 1)?.squeeze(axis)
    }

    /// Tensors one after the other along an axis.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when other axes differ, [`Error::Argument`] for no tensors.
    #[track_caller]
    pub fn cat(tensors: &[&Tensor], dim: i64) -> Result<Tensor> {
        let at = Location::caller();
        let Some(first) = tensors.first() else {
            return Err(Error::argument("cat", "tensors", "at least one", "none").at(at));
        };
        let axis = first.shape().axis("cat", dim).map_err(|e| e.at(at))?;
        let operands: Vec<Operand<'_>> = tensors.iter().map(|t| Operand::Tensor(t)).collect();
        record_op(Cat { axis }, &operands)
    }

    /// Tensors of one shape along a new axis.
    ///
    /// # Errors
    /// As [`Tensor::cat`].
    #[track_caller]
    pub fn stack(tensors: &[&Tensor], dim: i64) -> Result<Tensor> {
        let longer = tensors
            .iter()
            .map(|t| t.unsqueeze(dim))
            .collect::<Result<Vec<_>>>()?;
        Tensor::cat(&longer.iter().collect::<Vec<_>>(), dim)
    }

    /// Lengths with at most one -1, which is inferred.
    fn resolve(&self, op: &'static str, shape: impl IntoDims) -> Result<Shape> {
        let wanted = shape.into_dims();
        if !wanted.contains(&-1) {
            return wanted.as_slice().into_shape(op);
        }
        let known: i64 = wanted
            .iter()
            .filter(|d| **d != -1)
            .fold(1, |n, d| n.saturating_mul((*d).max(0)));
        let numel = self.numel() as i64;
        let fits =
            wanted.iter().filter(|d| **d == -1).count() == 1 && known > 0 && numel % known == 0;
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
}
