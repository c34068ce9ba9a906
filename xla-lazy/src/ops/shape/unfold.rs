//! Sliding windows.

use crate::Tensor;
use crate::op::{Derivative, InputType, Number, Operator, Saves, entry};
use crate::ops::{only, where_shown_and_beside};
use crate::stablehlo::{Compare, Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use crate::view::{Strides, ViewRule};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

/// Up to so many positions in a window it is put together from slices, which compile to copies of
/// runs; beyond, elements are gathered.
const MOST_SLICES: usize = 64;

/// Windows of `size` elements, `step` apart along `axis`; the position in the window is a last axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Unfold {
    axis: usize,
    size: usize,
    step: usize,
}

impl Unfold {
    fn windows(&self, len: usize) -> usize {
        (len - self.size) / self.step + 1
    }

    /// The place of each element of each window on the axis: `[windows, size]`.
    fn places(&self, f: &mut Func, windows: usize) -> Value {
        let table = Shape::new(&[windows, self.size]);
        let window = f.iota(DType::I64, &table, 0);
        let step = f.constant_int(DType::I64, &table, self.step as i64);
        let start = f.binary("multiply", window, step);
        let offset = f.iota(DType::I64, &table, 1);
        f.binary("add", start, offset)
    }

    /// What the windows hold, added up at its places in zeros of the input's type.
    fn fold(&self, f: &mut Func, windows: Value, input: Ty) -> Value {
        let (rank, len) = (input.rank(), input.shape()[self.axis]);
        let count = windows.shape()[self.axis];
        let zero = f.constant(input.dtype(), &Shape::scalar(), 0.0);
        let zeros = f.broadcast_in_dim(zero, input.shape(), &[]);
        if self.size > MOST_SLICES {
            let places = self.places(f, count);
            // The window's axes next to each other.
            let mut order: Dims = (0..rank).collect();
            order.insert(self.axis + 1, rank);
            let updates = f.transpose(windows, &order);
            return f.scatter_slices(Some(Reduction::Sum), zeros, places, updates, self.axis);
        }
        let dims = windows.shape().dims();
        let on_axis = |value: usize| -> Vec<i64> {
            (0..rank)
                .map(|i| if i == self.axis { value as i64 } else { 0 })
                .collect()
        };
        let covered = (count - 1) * self.step + 1;
        let sum = if input.dtype() == DType::Bool {
            "or"
        } else {
            "add"
        };
        (0..self.size).fold(zeros, |total, offset| {
            let mut start = Dims::from_elem(0, rank + 1);
            start[rank] = offset;
            let mut limit: Dims = dims.into();
            limit[rank] = offset + 1;
            let part = f.slice(windows, &start, &limit, &Dims::from_elem(1, rank + 1));
            let part = f.reshape(part, &Shape::new(&dims[..rank]));
            let (low, high) = (on_axis(offset), on_axis(len - offset - covered));
            let spread = f.pad(part, zero, &low, &high, &on_axis(self.step - 1));
            f.binary(sum, total, spread)
        })
    }
}

impl Operator for Unfold {
    const NAME: &'static str = "unfold";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let unfold = op.clone();
            let len = vjp.shape(0)[op.axis];
            vjp.only(record_op(Fold { unfold, len }, &[vjp.grad().into()]))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        let mut dims: Dims = input.shape().dims().into();
        dims[self.axis] = self.windows(dims[self.axis]);
        dims.push(self.size);
        Ok(ty(input.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (x, rank) = (inputs[0], inputs[0].shape().rank());
        let count = out.shape()[self.axis];
        if out.shape().numel() == 0 {
            let zero = f.constant(out.dtype(), &Shape::scalar(), 0.0);
            return Ok(f.broadcast_in_dim(zero, out.shape(), &[]));
        }
        if self.size > MOST_SLICES {
            let places = self.places(f, count);
            let taken = f.take(x, places, self.axis);
            let mut order: Dims = (0..=rank).filter(|&i| i != self.axis + 1).collect();
            order.push(self.axis + 1);
            return Ok(f.transpose(taken, &order));
        }
        let mut steps = Dims::from_elem(1, rank);
        steps[self.axis] = self.step;
        let mut column: Dims = out.shape().dims().into();
        column[rank] = 1;
        let column = Shape::from(column);
        let columns: Vec<Value> = (0..self.size)
            .map(|offset| {
                let mut start = Dims::from_elem(0, rank);
                start[self.axis] = offset;
                let mut limit: Dims = x.shape().dims().into();
                limit[self.axis] = offset + (count - 1) * self.step + 1;
                let part = f.slice(x, &start, &limit, &steps);
                f.reshape(part, &column)
            })
            .collect();
        Ok(f.concatenate(&columns, rank))
    }

    fn view(&self) -> Option<&dyn ViewRule> {
        Some(self)
    }
}

impl ViewRule for Unfold {
    fn write(&self, input: &Tensor, value: &Tensor, _: &[Number]) -> Result<Tensor> {
        if value.dims()[self.axis] > 1 && self.step < self.size {
            return Err(Error::argument(
                "unfold",
                "in-place write",
                "windows that do not overlap; call copy() on the unfolded tensor first",
                format!("windows of {} elements {} apart", self.size, self.step),
            ));
        }
        let update = UnfoldUpdate {
            unfold: self.clone(),
        };
        record_op(update, &[input.into(), value.into()])
    }

    fn strides(&self, _: &Shape, strides: &[i64], _: &Shape) -> Option<Strides> {
        let mut out: Strides = strides.into();
        let step = i64::try_from(self.step).unwrap_or(i64::MAX);
        out.push(strides[self.axis]);
        out[self.axis] = strides[self.axis].saturating_mul(step);
        Some(out)
    }
}

/// The transpose of `unfold`: what the windows hold, added up on an axis of `len`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Fold {
    unfold: Unfold,
    len: usize,
}

impl Operator for Fold {
    const NAME: &'static str = "unfold_backward";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| vjp.only(record_op(op.unfold.clone(), &[vjp.grad().into()])),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let windows = only(Self::NAME, inputs)?;
        let mut dims: Dims = windows.shape()[..windows.rank() - 1].into();
        dims[self.unfold.axis] = self.len;
        Ok(ty(windows.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        Ok(self.unfold.fold(f, inputs[0], out))
    }
}

/// The first operand with what windows that do not overlap show replaced by the second.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct UnfoldUpdate {
    unfold: Unfold,
}

impl Operator for UnfoldUpdate {
    const NAME: &'static str = "unfold_update";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| where_shown_and_beside(vjp, op.unfold.clone(), op.clone()),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let Unfold { axis, size, step } = self.unfold;
        let folded = self.unfold.fold(f, inputs[1], out);
        let places = Shape::new(&[out.shape()[axis]]);
        let place = f.iota(DType::I64, &places, 0);
        let by = f.constant_int(DType::I64, &places, step.min(i64::MAX as usize) as i64);
        let offset = f.binary("remainder", place, by);
        let limit = f.constant_int(DType::I64, &places, size as i64);
        let within = f.compare(Compare::Lt, offset, limit);
        // What a last, incomplete window would have held is not shown.
        let covered = (inputs[1].shape()[axis] - 1) * step + size;
        let covered = f.constant_int(DType::I64, &places, covered as i64);
        let shown = f.compare(Compare::Lt, place, covered);
        let hit = f.binary("and", within, shown);
        let hit = f.broadcast_in_dim(hit, out.shape(), &[axis]);
        Ok(f.select(hit, folded, inputs[0]))
    }
}

impl Tensor {
    /// All windows of `size` elements along an axis, `step` apart: the axis counts windows, and a
    /// new last axis the elements in each. A view; it can be written through where windows do not
    /// overlap.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] for a window longer than the axis, or a step of 0.
    ///
    /// ```no_run
    /// # use xla_lazy::Tensor;
    /// let x = Tensor::arange(0.0, 4.0, 1.0, ())?.unfold(0, 2, 1)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 1.0, 1.0, 2.0, 2.0, 3.0]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn unfold(&self, dim: i64, size: usize, step: usize) -> Result<Tensor> {
        let at = Location::caller();
        if self.rank() == 0 {
            let vector = self.reshape([1])?.unfold(dim, size, step)?;
            return vector.squeeze(0);
        }
        let axis = self.shape().axis("unfold", dim).map_err(|e| e.at(at))?;
        let len = self.dims()[axis];
        if size > len {
            let expected = format!("at most {len}, the length of axis {axis}");
            return Err(Error::argument("unfold", "size", expected, size).at(at));
        }
        if step == 0 {
            return Err(Error::argument("unfold", "step", "at least 1", 0).at(at));
        }
        // A longer step than the axis also makes one window only.
        let step = step.min(len.max(1));
        self.view_by(entry(Unfold { axis, size, step }), &[])
    }
}
