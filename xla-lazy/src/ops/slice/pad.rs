//! Tensors made longer, or shorter, at their ends.

use crate::Tensor;
use crate::autocast::full;
use crate::op::{Derivative, InputType, Number, Operand, Operator, Saves};
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use smallvec::SmallVec;
use std::panic::Location;
use xla_core::{Dims, Error, IntoDims, Result, Shape};

/// What [`Tensor::pad`] puts around a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PadMode {
    /// A number, which is data.
    Constant(Number),
    /// The tensor mirrored at its first and last element, which are not repeated.
    Reflect,
    /// The first and the last element.
    Replicate,
    /// The tensor's other end.
    Circular,
}

impl<T: Into<Number>> From<T> for PadMode {
    fn from(value: T) -> Self {
        PadMode::Constant(value.into())
    }
}

/// A number around the tensor; negative lengths crop.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pad {
    low: SmallVec<[i64; 6]>,
    high: SmallVec<[i64; 6]>,
}

impl Operator for Pad {
    const NAME: &'static str = "pad";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let opposite = |edge: &[i64]| edge.iter().map(|&n| -n).collect();
            let crop = Pad {
                low: opposite(&op.low),
                high: opposite(&op.high),
            };
            let zero = Operand::Number(Number::Int(0));
            let grad = record_op(crop, &[vjp.grad().into(), zero])?;
            Ok(smallvec::smallvec![Some(grad), None])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = inputs[0].tensor(Self::NAME)?;
        let mut dims: Dims = input.shape().dims().into();
        for (axis, size) in dims.iter_mut().enumerate() {
            *size = padded(Self::NAME, axis, *size, self.low[axis], self.high[axis])?;
        }
        Ok(ty(input.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let value = f.convert(inputs[1], out.dtype());
        let interior = vec![0; out.rank()];
        Ok(f.pad(inputs[0], value, &self.low, &self.high, &interior))
    }
}

/// The length of a padded axis. An edge may crop what is there, not what the other edge adds.
fn padded(op: &'static str, axis: usize, size: usize, low: i64, high: i64) -> Result<usize> {
    let cropped = size as i128 + i128::from(low.min(0)) + i128::from(high.min(0));
    if cropped < 0 {
        let expected = format!("to crop at most {size} elements of axis {axis}");
        return Err(Error::argument(
            op,
            "pad",
            expected,
            format!("{low} and {high}"),
        ));
    }
    let longer = cropped + i128::from(low.max(0)) + i128::from(high.max(0));
    Ok(usize::try_from(longer).unwrap_or(usize::MAX))
}

impl Tensor {
    /// The tensor with its last axes padded: `pad` holds, from the last axis on, how many elements
    /// come before and after it. Negative numbers crop. With a number as the mode that is the
    /// padding; it is data, so another one is the same program.
    ///
    /// # Errors
    /// [`Error::Argument`] for an odd number of lengths or more than two an axis, for cropping more
    /// than there is, for reflections as long as the axis, or circles longer than it, and where
    /// nothing can be replicated.
    ///
    /// ```no_run
    /// # use xla_lazy::{PadMode, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0], [3], ())?;
    /// assert_eq!(x.pad([1, 0], 0.5)?.to_vec::<f32>()?, [0.5, 1.0, 2.0, 3.0]);
    /// assert_eq!(x.pad([2, 0], PadMode::Reflect)?.to_vec::<f32>()?, [3.0, 2.0, 1.0, 2.0, 3.0]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn pad(&self, pad: impl IntoDims, mode: impl Into<PadMode>) -> Result<Tensor> {
        let at = Location::caller();
        let lengths = pad.into_dims();
        let most = 2 * self.rank();
        if !lengths.len().is_multiple_of(2) || lengths.len() > most {
            let expected = format!("two lengths an axis, at most {most}");
            return Err(Error::argument("pad", "pad", expected, format!("{lengths:?}")).at(at));
        }
        let mode = mode.into();
        let PadMode::Constant(value) = mode else {
            let padded = lengths.len() / 2;
            let mut x = match mode {
                PadMode::Reflect if padded < 3 => full(self)?.into_owned(),
                PadMode::Replicate => full(self)?.into_owned(),
                _ => self.clone(),
            };
            for (back, edges) in lengths.chunks_exact(2).enumerate() {
                let axis = self.rank() - 1 - back;
                x = x.pad_axis(axis, edges[0], edges[1], mode)?;
            }
            return Ok(x);
        };
        let (mut low, mut high) = (
            SmallVec::from_elem(0, self.rank()),
            SmallVec::from_elem(0, self.rank()),
        );
        for (back, edges) in lengths.chunks_exact(2).enumerate() {
            low[self.rank() - 1 - back] = edges[0];
            high[self.rank() - 1 - back] = edges[1];
        }
        record_op(Pad { low, high }, &[self.into(), Operand::Number(value)])
    }

    /// One axis with a part of itself at each end.
    #[track_caller]
    fn pad_axis(&self, axis: usize, low: i64, high: i64, mode: PadMode) -> Result<Tensor> {
        let at = Location::caller();
        let (size, dim) = (self.dims()[axis], axis as i64);
        let longer = padded("pad", axis, size, low, high).map_err(|e| e.at(at))?;
        let most = match mode {
            PadMode::Reflect => size.saturating_sub(1),
            PadMode::Circular => size,
            _ if size == 0 => 0,
            _ => usize::MAX,
        };
        let length = |edge: i64| usize::try_from(edge).unwrap_or(0);
        let (before, after) = (length(low), length(high));
        if before.max(after) > most {
            let expected =
                format!("at most {most} elements at an end of axis {axis} of size {size}");
            let got = before.max(after);
            return Err(Error::argument("pad", "pad", expected, got).at(at));
        }
        if low == 0 && high == 0 {
            return Ok(self.clone());
        }
        let kept = longer - before - after;
        let start = low.min(0).saturating_neg();
        let middle = self.narrow(dim, start, kept)?;
        let mut parts = Vec::with_capacity(3);
        let last = size as i64;
        if before > 0 {
            parts.push(match mode {
                PadMode::Reflect => self.narrow(dim, 1, before)?.flip(dim)?,
                PadMode::Circular => middle.narrow(dim, -low, before)?,
                _ => self.edge(dim, 0, before)?,
            });
        }
        parts.push(middle.clone());
        if after > 0 {
            parts.push(match mode {
                PadMode::Reflect => self.narrow(dim, last - 1 - high, after)?.flip(dim)?,
                PadMode::Circular => middle.narrow(dim, 0, after)?,
                _ => self.edge(dim, last - 1, after)?,
            });
        }
        Tensor::cat(&parts.iter().collect::<Vec<_>>(), dim)
    }

    /// One position of an axis, `times` times.
    #[track_caller]
    fn edge(&self, dim: i64, position: i64, times: usize) -> Result<Tensor> {
        let one = self.narrow(dim, position, 1)?;
        let mut dims: Dims = self.dims().into();
        dims[self.shape().axis("pad", dim)?] = times;
        one.expand(dims.as_slice())
    }
}
