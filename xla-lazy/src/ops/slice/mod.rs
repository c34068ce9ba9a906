//! Parts of a tensor along an axis, and tensors put together from parts.

mod cat;
mod pad;
mod part;
mod split;

pub use pad::PadMode;

use super::{only, where_shown_and_beside};
use crate::Tensor;
use crate::op::{Derivative, InputType, Number, Operand, Operator, Saves, entry};
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::view::{Strides, ViewRule};
use std::panic::Location;
use xla_core::{Dims, Error, Result, Shape};

/// `input` with another length of one axis.
fn with_length(input: Ty, axis: usize, len: usize) -> Ty {
    let mut dims: Dims = input.shape().dims().into();
    dims[axis] = len;
    ty(input.dtype(), &Shape::from(dims))
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
            let zeros = vjp.zeros(0)?;
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
        Ok(with_length(input, self.axis, self.len))
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

    fn offset(&self, strides: &[i64], numbers: &[Number]) -> i64 {
        match numbers {
            [Number::Int(start)] => start.saturating_mul(strides[self.axis]),
            _ => 0,
        }
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
            let zeros = vjp.zeros(0)?;
            vjp.only(ViewRule::write(op, &zeros, vjp.grad(), &[]))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        let shown = input.shape()[self.axis].div_ceil(self.step);
        Ok(with_length(input, self.axis, shown))
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
                s.saturating_mul(i64::try_from(self.step).unwrap_or(i64::MAX))
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
        rule: |op, vjp| where_shown_and_beside(vjp, op.stride.clone(), op.clone()),
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

impl Tensor {
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
        // A longer step than the axis also shows the first element only.
        let step = step.min(self.dims()[axis].max(1));
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
}
