//! Selection and writes by `bool` tensors.

use super::{index_type, prefix_sums};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operand, Operator, Saves};
use crate::ops::only;
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{DType, Error, Result};

/// The first operand where the mask is false, else the third.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct MaskedFill;

impl Operator for MaskedFill {
    const NAME: &'static str = "masked_fill";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |_, vjp| {
            let mask = vjp.input(1)?;
            vjp.each(|i| match i {
                0 => vjp.reduce(0, &vjp.grad().masked_fill(mask, 0)?),
                _ => {
                    let filled = vjp.grad().masked_fill(&mask.logical_not()?, 0)?;
                    vjp.reduce(i, &filled)
                }
            })
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let x = inputs[0].tensor(Self::NAME)?;
        let mask = inputs[1].tensor(Self::NAME)?;
        if mask.dtype() != DType::Bool {
            return Err(Error::dtype(Self::NAME, "a bool mask", mask.dtype()));
        }
        if let InputType::Tensor(value) = inputs[2]
            && value.rank() > 0
        {
            return Err(Error::shape(
                Self::NAME,
                "a number or a scalar",
                value.shape(),
            ));
        }
        let shape = x.shape().broadcast(Self::NAME, mask.shape())?;
        Ok(ty(x.dtype(), &shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.broadcast_to(inputs[0], out.shape())?;
        let mask = f.broadcast_to(inputs[1], out.shape())?;
        let value = f.convert(inputs[2], out.dtype());
        let value = f.broadcast_to(value, out.shape())?;
        Ok(f.select(mask, value, x))
    }
}

/// For each element of a mask how many before it are true.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Ranks;

impl Operator for Ranks {
    const NAME: &'static str = "mask_ranks";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        Ok(ty(DType::I64, only(Self::NAME, inputs)?.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let ones = f.convert(inputs[0], out.dtype());
        let sums = prefix_sums(f, ones);
        Ok(f.binary("subtract", sums, ones))
    }
}

/// For each place in the order of an axis of `len` the element whose run it lies in, given how long
/// each element's run is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Runs {
    len: usize,
}

impl Operator for Runs {
    const NAME: &'static str = "repeat_interleave";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        index_type(Self::NAME, inputs[0])?;
        Ok(ty(DType::I64, &xla_core::Shape::new(&[self.len])))
    }

    /// A run ends where the sum of the lengths up to it lies; a place's element is the number of
    /// runs that end up to there.
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let zero = f.constant(out.dtype(), &xla_core::Shape::scalar(), 0.0);
        let zeros = f.broadcast_in_dim(zero, out.shape(), &[]);
        if inputs[0].shape().numel() == 0 || self.len == 0 {
            return Ok(zeros);
        }
        let lengths = f.convert(inputs[0], out.dtype());
        let ends = prefix_sums(f, lengths);
        let ones = f.constant(out.dtype(), ends.shape(), 1.0);
        let sum = Some(crate::stablehlo::Reduction::Sum);
        let ended = f.scatter_slices(sum, zeros, ends, ones, 0);
        Ok(prefix_sums(f, ended))
    }
}

/// For a vector of lengths that sum to `len`, the elements of `0..` each repeated so often.
pub(in crate::ops) fn runs(lengths: &Tensor, len: usize) -> Result<Tensor> {
    record_op(Runs { len }, &[lengths.into()])
}

/// For each element of a mask, in row-major order, how many before it are true.
pub(super) fn ranks(mask: &Tensor) -> Result<Tensor> {
    record_op(Ranks, &[(&mask.reshape([-1])?).into()])
}

/// The positions of the true elements of a mask, one vector an axis. They are read to the host.
#[track_caller]
pub(super) fn places(mask: &Tensor) -> Result<Vec<Vec<i64>>> {
    let set = mask.to_vec::<bool>()?;
    let strides = mask.shape().strides();
    let hits: Vec<usize> = (0..set.len()).filter(|&i| set[i]).collect();
    let along = |axis: usize| {
        let position = |&i: &usize| (i / strides[axis] % mask.dims()[axis]) as i64;
        hits.iter().map(position).collect()
    };
    Ok((0..mask.rank()).map(along).collect())
}

impl Tensor {
    /// This tensor with `value`, a number (which is data) or a scalar tensor, where the `bool` mask
    /// is true. Tensor and mask broadcast; the dtype stays.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for another mask than a `bool` one, [`Error::Broadcast`],
    /// [`Error::ShapeMismatch`] for a value with axes.
    #[track_caller]
    pub fn masked_fill<'a>(&self, mask: &Tensor, value: impl Into<Operand<'a>>) -> Result<Tensor> {
        record_op(MaskedFill, &[self.into(), mask.into(), value.into()])
    }

    /// This tensor with the elements of `source`, in their order, where the `bool` mask is true.
    /// Tensor and mask broadcast. The source needs as many elements as the mask has true ones;
    /// where it has fewer, the result is that of an index out of range.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for another mask than a `bool` one, or a source of another dtype;
    /// [`Error::Broadcast`].
    #[track_caller]
    pub fn masked_scatter(&self, mask: &Tensor, source: &Tensor) -> Result<Tensor> {
        const OP: &str = "masked_scatter";
        let at = Location::caller();
        let mask = self.spread_mask(OP, mask, at)?;
        self.same_dtype(OP, source, at)?;
        let values = source
            .reshape([-1])?
            .index_select(0, &ranks(&mask)?.clamp_min(0)?)?;
        mask.select_from(&values.reshape(mask.shape())?, self)
    }

    /// The elements where the `bool` mask is true, as a vector. Its length depends on the mask,
    /// which is therefore read to the host.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for another mask than a `bool` one; [`Error::Broadcast`]; the error
    /// of computing the mask.
    #[track_caller]
    pub fn masked_select(&self, mask: &Tensor) -> Result<Tensor> {
        const OP: &str = "masked_select";
        let mask = self.spread_mask(OP, mask, Location::caller())?;
        let places = places(&mask.reshape([-1])?)?.pop().unwrap_or_default();
        let count = places.len();
        let places = Tensor::from_vec(places, [count], self.device())?;
        self.expand(mask.shape())?
            .reshape([-1])?
            .index_select(0, &places)
    }

    /// The mask in the shape that it and this tensor broadcast to.
    #[track_caller]
    fn spread_mask(
        &self,
        op: &'static str,
        mask: &Tensor,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        if mask.dtype() != DType::Bool {
            return Err(Error::dtype(op, "a bool mask", mask.dtype()).at(at));
        }
        let shape = self.shape().broadcast(op, mask.shape());
        mask.expand(shape.map_err(|e| e.at(at))?)
    }
}
