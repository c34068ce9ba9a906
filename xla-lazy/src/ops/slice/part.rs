//! A part of an axis whose place is no data: one of the parts that the axis is cut into.
//!
//! The compiler sees where such a part lies. Its gradient is the part with zeros around it, so that the
//! gradients of all parts are summed in one pass, while parts whose start is data are put into an array
//! of zeros one after the other.

use super::super::only;
use super::{Narrow, with_length};
use crate::Tensor;
use crate::op::{Derivative, InputType, Number, Operator, Saves, entry};
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::Ty;
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
    fn end(&self) -> usize {
        self.start + self.len
    }

    /// The same part with a start that is data, and the start.
    fn narrow(&self) -> (Narrow, Number) {
        let (axis, len) = (self.axis, self.len);
        let start = i64::try_from(self.start).unwrap_or(i64::MAX);
        (Narrow { axis, len }, Number::Int(start))
    }
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
        let x = inputs[0];
        let rank = x.shape().rank();
        let mut start = Dims::from_elem(0, rank);
        let mut limit: Dims = x.shape().dims().into();
        (start[self.axis], limit[self.axis]) = (self.start, self.end());
        Ok(f.slice(x, &start, &limit, &Dims::from_elem(1, rank)))
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Some(self)
    }
}

impl ViewRule for Part {
    fn write(&self, input: &Tensor, value: &Tensor, _: &[Number]) -> Result<Tensor> {
        let (narrow, start) = self.narrow();
        narrow.write(input, value, &[start])
    }

    fn strides(&self, _: &Shape, strides: &[i64], _: &Shape) -> Option<Strides> {
        Some(strides.into())
    }

    fn offset(&self, strides: &[i64], _: &[Number]) -> i64 {
        let (narrow, start) = self.narrow();
        narrow.offset(strides, &[start])
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

impl Tensor {
    /// The elements of an axis from `start` to before `end`, which are inside it. Another place is
    /// another program.
    #[track_caller]
    pub(super) fn part(&self, axis: usize, start: usize, end: usize) -> Result<Tensor> {
        let len = end - start;
        self.view_by(entry(Part { axis, start, len }), &[])
    }
}
