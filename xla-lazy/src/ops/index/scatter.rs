//! Single elements put, added or combined along an axis.

use super::gather::{Gather, fits_but_for};
use super::{Outside, accumulator, in_range, widened};
use crate::op::{Derivative, InputType, Number, Operand, Operator, Saves};
use crate::stablehlo::{Compare, Func, Reduction, Value};
use crate::trace::record_op;
use crate::ty::Ty;
use crate::{Gradients, Tensor, Vjp};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

/// How [`Tensor::scatter_reduce`] combines what comes to one place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScatterReduce {
    /// The sum.
    Sum,
    /// The product.
    Prod,
    /// The mean; of integers rounded down.
    Mean,
    /// The largest.
    Amax,
    /// The smallest.
    Amin,
}

/// The place in row-major order of each element along an axis of a tensor of shape `x` that
/// `indices` names. With `drop` an index out of range has a place out of range.
pub(super) fn linear(f: &mut Func, indices: Value, x: &Shape, axis: usize, drop: bool) -> Value {
    let indices = widened(f, indices, x.numel());
    let shape = indices.shape();
    let constant =
        |f: &mut Func, value: usize| f.constant_int(indices.dtype(), shape, value as i64);
    let strides = x.strides();
    let mut place: Option<Value> = None;
    for (i, &stride) in strides.iter().enumerate() {
        let position = match i == axis {
            true => indices,
            false if shape[i] == 1 => continue,
            false => f.iota(indices.dtype(), shape, i),
        };
        let step = constant(f, stride);
        let term = f.binary("multiply", position, step);
        place = Some(match place {
            Some(sum) => f.binary("add", sum, term),
            None => term,
        });
    }
    let place = place.unwrap_or(indices);
    if !drop {
        return place;
    }
    f.watch_indices(indices, axis, x[axis]);
    let valid = in_range(f, indices, x[axis]);
    let none = constant(f, x.numel());
    f.select(valid, place, none)
}

/// Which elements of a tensor of shape `x` the indices name, where there is one index for all that
/// lie along the axis; `None` where there are several.
pub(super) fn hits(f: &mut Func, indices: Value, x: &Shape, axis: usize) -> Option<Value> {
    let shape = indices.shape();
    let one = shape[axis] == 1 && (0..x.rank()).all(|i| i == axis || shape[i] == x[i]);
    if !one {
        return None;
    }
    let indices = widened(f, indices, x[axis]);
    let axes: Dims = (0..x.rank()).collect();
    let positions = f.iota(indices.dtype(), x, axis);
    let indices = f.broadcast_in_dim(indices, x, &axes);
    Some(f.compare(Compare::Eq, positions, indices))
}

/// The first operand with single elements along an axis replaced, or added to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Scatter {
    pub(super) axis: usize,
    pub(super) add: bool,
}

impl Operator for Scatter {
    const NAME: &'static str = "scatter";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| {
            let part = at_places(vjp, op.axis, vjp.grad())?;
            let rest = match op.add {
                true => vjp.grad().clone(),
                false => with(op, vjp, vjp.grad(), &vjp.zeros(2)?)?,
            };
            Ok(smallvec::smallvec![Some(rest), None, Some(part)])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = inputs[0];
        let Some(hit) = hits(f, inputs[1], x.shape(), self.axis) else {
            let reduction = self.add.then_some(Reduction::Sum);
            return Ok(written(f, inputs, out, self.axis, reduction));
        };
        let axes: Dims = (0..out.rank()).collect();
        let spread = f.broadcast_in_dim(inputs[2], x.shape(), &axes);
        let updated = match self.add {
            true if out.dtype() == DType::Bool => f.binary("or", x, spread),
            true => f.binary("add", x, spread),
            false => spread,
        };
        Ok(f.select(hit, updated, x))
    }
}

/// What `value` holds at the places written to.
fn at_places(vjp: &Vjp<'_>, axis: usize, value: &Tensor) -> Result<Tensor> {
    let outside = Outside::Zero;
    record_op(Gather { axis, outside }, &[value.into(), vjp.operand(1)?])
}

/// A write to the same places.
fn with<O: Operator>(op: &O, vjp: &Vjp<'_>, x: &Tensor, source: &Tensor) -> Result<Tensor> {
    record_op(op.clone(), &[x.into(), vjp.operand(1)?, source.into()])
}

fn written(
    f: &mut Func,
    inputs: &[Value],
    out: Ty,
    axis: usize,
    reduction: Option<Reduction>,
) -> Value {
    let (x, updates) = (inputs[0], inputs[2]);
    if updates.shape().numel() == 0 || out.shape().numel() == 0 {
        return x;
    }
    let wide = match reduction {
        Some(_) => accumulator(out.dtype()),
        None => out.dtype(),
    };
    let places = linear(f, inputs[1], x.shape(), axis, true);
    let places = f.reshape(places, &Shape::new(&[updates.shape().numel()]));
    let updates = f.convert(updates, wide);
    let updates = f.reshape(updates, places.shape());
    let flat = f.convert(x, wide);
    let flat = f.reshape(flat, &Shape::new(&[out.shape().numel()]));
    let written = f.scatter_slices(reduction, flat, places, updates, 0);
    let written = f.convert(written, out.dtype());
    f.reshape(written, out.shape())
}

/// The first operand with single elements along an axis multiplied by others, or with the larger or
/// smaller of them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Combine {
    axis: usize,
    reduction: Reduction,
    /// Whether what was there before counts.
    include_self: bool,
}

impl Operator for Combine {
    const NAME: &'static str = "scatter_reduce";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        rule: |op, vjp| match op.reduction {
            Reduction::Product => op.multiplied(vjp),
            _ => op.compared(vjp),
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let mut operands = [inputs[0], inputs[1], inputs[2]];
        if !self.include_self {
            let identity = f.identity(self.reduction, out.dtype());
            operands[2] = f.broadcast_in_dim(identity, inputs[2].shape(), &[]);
            operands = [
                written(f, &operands, out, self.axis, None),
                inputs[1],
                inputs[2],
            ];
        }
        let reduction = Some(self.reduction);
        Ok(written(f, &operands, out, self.axis, reduction))
    }
}

impl Combine {
    /// The gradient of what was there before: none where it does not count.
    fn before(&self, vjp: &Vjp<'_>, grad: Tensor) -> Result<Tensor> {
        let replace = Scatter {
            axis: self.axis,
            add: false,
        };
        match self.include_self {
            true => Ok(grad),
            false => with(&replace, vjp, &grad, &vjp.zeros(2)?),
        }
    }

    fn sum(&self) -> Scatter {
        Scatter {
            axis: self.axis,
            add: true,
        }
    }

    /// Shared evenly among equal elements.
    fn compared(&self, vjp: &Vjp<'_>) -> Result<Gradients> {
        let dtype = vjp.dtype(0);
        let best = vjp.output()?;
        let kept = vjp.input(0)?.eq(best)?.to_dtype(dtype)?;
        let taken = vjp
            .input(2)?
            .eq(&at_places(vjp, self.axis, best)?)?
            .to_dtype(dtype)?;
        let count = with(&self.sum(), vjp, &kept, &taken)?;
        let share = vjp.grad().div(&count)?;
        let source = taken.mul(&at_places(vjp, self.axis, &share)?)?;
        Ok(smallvec::smallvec![
            Some(self.before(vjp, kept.mul(&share)?)?),
            None,
            Some(source)
        ])
    }

    /// Each factor gets the product of the others. Where one factor is 0 that is not the product
    /// divided by it.
    fn multiplied(&self, vjp: &Vjp<'_>) -> Result<Gradients> {
        let (x, source, product) = (vjp.input(0)?, vjp.input(2)?, vjp.output()?);
        let grad = vjp.grad();
        let none = x.eq(0)?;
        let rest = x.masked_fill(&none, 1)?;
        let others = with(self, vjp, &rest, source)?.div(&rest)?;
        let zero = source.eq(0)?;
        let zeros = with(
            &self.sum(),
            vjp,
            &x.zeros_like()?,
            &zero.to_dtype(vjp.dtype(0))?,
        )?;
        let single = zero.logical_and(&at_places(vjp, self.axis, &zeros)?.eq(1)?)?;
        let without = with(self, vjp, x, &source.masked_fill(&single, 1)?)?;
        let alone = at_places(vjp, self.axis, &grad.mul(&without)?)?;
        let divided =
            at_places(vjp, self.axis, &grad.mul(product)?)?.div(&source.masked_fill(&zero, 1)?)?;
        let part = single.select_from(&alone, &divided)?;
        Ok(smallvec::smallvec![
            Some(self.before(vjp, grad.mul(&others)?)?),
            None,
            Some(part)
        ])
    }
}

/// How elements come together.
#[derive(Clone, Copy)]
struct How {
    reduction: Option<Reduction>,
    include_self: bool,
}

const REPLACE: How = How {
    reduction: None,
    include_self: true,
};

impl Tensor {
    /// This tensor with single elements along an axis replaced: `x[indices[i][j]][j] =
    /// source[i][j]` for axis 0. The source is a tensor of the indices' shape, or a number, which
    /// is data. Of several elements for one place any may stay.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for indices that came from the host; [`Error::DTypeMismatch`],
    /// [`Error::ShapeMismatch`], [`Error::Axis`].
    #[track_caller]
    pub fn scatter<'a>(
        &self,
        dim: i64,
        indices: &Tensor,
        source: impl Into<Operand<'a>>,
    ) -> Result<Tensor> {
        self.scattered("scatter", dim, indices, source.into(), REPLACE)
    }

    /// This tensor with single elements added along an axis; those for one place are all added.
    ///
    /// # Errors
    /// As [`Tensor::scatter`].
    #[track_caller]
    pub fn scatter_add(&self, dim: i64, indices: &Tensor, source: &Tensor) -> Result<Tensor> {
        let sum = How {
            reduction: Some(Reduction::Sum),
            ..REPLACE
        };
        self.scattered("scatter_add", dim, indices, source.into(), sum)
    }

    /// This tensor with single elements along an axis combined with what comes to their place;
    /// without `include_self`, what was there before does not count. Equal extremes share the
    /// gradient evenly.
    ///
    /// # Errors
    /// As [`Tensor::scatter`].
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        dim: i64,
        indices: &Tensor,
        source: &Tensor,
        reduce: ScatterReduce,
        include_self: bool,
    ) -> Result<Tensor> {
        const OP: &str = "scatter_reduce";
        let how = |reduction| How {
            reduction: Some(reduction),
            include_self,
        };
        let source_operand = Operand::Tensor(source);
        let combined = match reduce {
            ScatterReduce::Prod => {
                self.scattered(OP, dim, indices, source_operand, how(Reduction::Product))
            }
            ScatterReduce::Amax => {
                self.scattered(OP, dim, indices, source_operand, how(Reduction::Max))
            }
            ScatterReduce::Amin => {
                self.scattered(OP, dim, indices, source_operand, how(Reduction::Min))
            }
            ScatterReduce::Sum | ScatterReduce::Mean => {
                let start = match include_self {
                    true => self.clone(),
                    false => self.scattered(OP, dim, indices, Number::Int(0).into(), REPLACE)?,
                };
                start.scattered(OP, dim, indices, source_operand, how(Reduction::Sum))
            }
        }?;
        if reduce != ScatterReduce::Mean {
            return Ok(combined);
        }
        let wide = match self.dtype() {
            d if d.is_float() => d,
            _ => DType::F64,
        };
        let mut counts = Tensor::ones(self.shape(), (wide, self.device()))?;
        if !include_self {
            counts = counts.scatter(dim, indices, 0)?;
        }
        let ones = Tensor::ones(indices.shape(), (wide, self.device()))?;
        // What no one came to stays as it is.
        let counts = counts.scatter_add(dim, indices, &ones)?;
        let mean = combined.to_dtype(wide)?.div(&counts)?;
        match self.dtype().is_float() {
            true => Ok(mean),
            false => mean.floor()?.to_dtype(self.dtype()),
        }
    }

    #[track_caller]
    fn scattered(
        &self,
        op: &'static str,
        dim: i64,
        indices: &Tensor,
        source: Operand<'_>,
        how: How,
    ) -> Result<Tensor> {
        let at = Location::caller();
        // A scalar answers to the axes of a vector.
        if self.rank() == 0 && indices.rank() == 0 {
            let vector = self.reshape([1])?;
            let column = indices.reshape([1])?;
            let written = match source {
                Operand::Tensor(source) => {
                    let source = source.reshape([-1])?;
                    vector.scattered(op, dim, &column, (&source).into(), how)
                }
                number => vector.scattered(op, dim, &column, number, how),
            };
            return written?.squeeze(0);
        }
        let axis = self.shape().axis(op, dim).map_err(|e| e.at(at))?;
        self.outside(op, indices, axis, false, at)?;
        fits_but_for(op, self.shape(), indices.shape(), axis).map_err(|e| e.at(at))?;
        let updates = match source {
            Operand::Number(value) => {
                Tensor::full(indices.shape(), value, (self.dtype(), self.device()))?
            }
            Operand::Tensor(source) => {
                self.same_dtype(op, source, at)?;
                let within = source.rank() == indices.rank()
                    && (0..source.rank()).all(|i| indices.dims()[i] <= source.dims()[i]);
                if !within {
                    let expected = format!("a source that covers the indices' {}", indices.shape());
                    return Err(Error::shape(op, expected, source.shape()).at(at));
                }
                let mut part = source.clone();
                for (i, &len) in indices.dims().iter().enumerate() {
                    if len < part.dims()[i] {
                        part = part.narrow(i as i64, 0, len)?;
                    }
                }
                part
            }
        };
        let operands = [self.into(), indices.into(), (&updates).into()];
        let How {
            reduction,
            include_self,
        } = how;
        match reduction {
            None => record_op(Scatter { axis, add: false }, &operands),
            Some(Reduction::Sum) => record_op(Scatter { axis, add: true }, &operands),
            Some(reduction) => record_op(
                Combine {
                    axis,
                    reduction,
                    include_self,
                },
                &operands,
            ),
        }
    }
}
