//! A part of an axis whose place is no data: one of the parts that the axis is cut into.
//!
//! The compiler sees where such a part lies. Its gradient is the part with zeros around it, so that the
//! gradients of all parts are summed in one pass, while parts whose start is data are put into an array
//! of zeros one after the other.

use super::super::{only, where_shown_and_beside};
use crate::Tensor;
use crate::op::{Derivative, InputType, Number, Operator, Saves, entry};
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::view::{Strides, ViewRule};
use xla_core::{Dims, Result, Shape};

/// `len` elements of one axis from `start` on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Part {
    axis: usize,
    start: usize,
    len: usize,
}

impl Part {
    /// The part of `x` from here to there.
    fn of(&self, f: &mut Func, x: Value, from: usize, to: usize) -> Value {
        let rank = x.shape().rank();
        let mut start = Dims::from_elem(0, rank);
        let mut limit: Dims = x.shape().dims().into();
        (start[self.axis], limit[self.axis]) = (from, to);
        f.slice(x, &start, &limit, &Dims::from_elem(1, rank))
    }

    fn end(&self) -> usize {
        self.start + self.len
    }
}

fn with_length(input: Ty, axis: usize, len: usize) -> Ty {
    let mut dims: Dims = input.shape().dims().into();
    dims[axis] = len;
    ty(input.dtype(), &Shape::from(dims))
}

impl Operator for Part {
    const NAME: &'static str = "part";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let placed = Placed {
                part: op.clone(),
                size: vjp.shape(0)[op.axis],
            };
            vjp.only(record_op(placed, &[vjp.grad().into()]))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        Ok(with_length(input, self.axis, self.len))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(self.of(f, inputs[0], self.start, self.end()))
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Some(self)
    }
}

impl ViewRule for Part {
    fn write(&self, input: &Tensor, value: &Tensor, _: &[Number]) -> Result<Tensor> {
        let update = PartUpdate { part: self.clone() };
        record_op(update, &[input.into(), value.into()])
    }

    fn strides(&self, _: &Shape, strides: &[i64], _: &Shape) -> Option<Strides> {
        Some(strides.into())
    }

    fn offset(&self, strides: &[i64], _: &[Number]) -> i64 {
        let start = i64::try_from(self.start).unwrap_or(i64::MAX);
        start.saturating_mul(strides[self.axis])
    }
}

/// The part with zeros around it: an axis of `size` elements.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Placed {
    part: Part,
    size: usize,
}

impl Operator for Placed {
    const NAME: &'static str = "part_placed";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| vjp.only(record_op(op.part.clone(), &[vjp.grad().into()])),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        Ok(with_length(input, self.part.axis, self.size))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let on_axis = |value: usize| -> Vec<i64> {
            let at = |i| if i == self.part.axis { value as i64 } else { 0 };
            (0..out.rank()).map(at).collect()
        };
        let zero = f.constant(out.dtype(), &Shape::scalar(), 0.0);
        let (low, high) = (
            on_axis(self.part.start),
            on_axis(self.size - self.part.end()),
        );
        Ok(f.pad(inputs[0], zero, &low, &high, &on_axis(0)))
    }
}

/// The first operand with its part replaced by the second.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PartUpdate {
    part: Part,
}

impl Operator for PartUpdate {
    const NAME: &'static str = "part_update";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| where_shown_and_beside(vjp, op.part.clone(), op.clone()),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let zero = f.constant_int(xla_core::DType::I64, &Shape::scalar(), 0);
        let start = f.constant_int(
            xla_core::DType::I64,
            &Shape::scalar(),
            self.part.start as i64,
        );
        let starts: Vec<Value> = (0..out.rank())
            .map(|i| if i == self.part.axis { start } else { zero })
            .collect();
        Ok(f.dynamic_update_slice(inputs[0], inputs[1], &starts))
    }
}

impl Tensor {
    /// The elements of an axis from `start` to before `end`, which are inside it. Another place is
    /// another program.
    #[track_caller]
    pub(super) fn part(&self, axis: usize, start: usize, end: usize) -> Result<Tensor> {
        let len = end - start;
        self.view_by(entry(Part { axis, start, len }), &[])
    }
}
