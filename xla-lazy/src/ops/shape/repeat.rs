//! The same elements several times.

use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::ops::only;
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use smallvec::SmallVec;
use std::panic::Location;
use xla_core::{Dims, Error, IntoDims, Result, Shape};

/// The whole tensor, so many times along each axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Repeat {
    times: Dims,
}

impl Repeat {
    /// The output's shape with each axis split into repetition and position.
    fn split(&self, input: &Shape) -> Shape {
        let pairs = self.times.iter().zip(input.iter());
        Shape::from(pairs.flat_map(|(&t, &d)| [t, d]).collect::<Dims>())
    }
}

impl Operator for Repeat {
    const NAME: &'static str = "repeat";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let split = vjp.grad().reshape(op.split(&vjp.shape(0)))?;
            let times: Dims = (0..op.times.len()).map(|i| 2 * i).collect();
            vjp.only(split.sum(times.as_slice(), false))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        let pairs = self.times.iter().zip(input.shape().iter());
        let dims: Dims = pairs.map(|(&t, &d)| t.saturating_mul(d)).collect();
        Ok(ty(input.dtype(), &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let split = self.split(inputs[0].shape());
        let positions: Dims = (0..self.times.len()).map(|i| 2 * i + 1).collect();
        let spread = f.broadcast_in_dim(inputs[0], &split, &positions);
        Ok(f.reshape(spread, out.shape()))
    }
}

impl Tensor {
    /// The whole tensor `repeats[i]` times along axis `i`; further repeats make new axes in front.
    ///
    /// # Errors
    /// [`Error::Argument`] for fewer repeats than axes, or a negative one.
    ///
    /// ```no_run
    /// # use xla_lazy::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], ())?;
    /// assert_eq!(x.repeat([2, 2])?.to_vec::<f32>()?, [1., 2., 1., 2., 1., 2., 1., 2.]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn repeat(&self, repeats: impl IntoDims) -> Result<Tensor> {
        let repeats = repeats.into_dims();
        if repeats.len() < self.rank() {
            let expected = format!("at least {} of them, one an axis", self.rank());
            let got = format!("{repeats:?}");
            return Err(Error::argument("repeat", "repeats", expected, got).at(Location::caller()));
        }
        self.repeated("repeat", "repeats", &repeats)
    }

    /// [`Tensor::repeat`] where missing repeats, in front, are 1.
    ///
    /// # Errors
    /// [`Error::Argument`] for a negative one.
    #[track_caller]
    pub fn tile(&self, dims: impl IntoDims) -> Result<Tensor> {
        let dims = dims.into_dims();
        let missing = self.rank().saturating_sub(dims.len());
        let mut repeats: SmallVec<[i64; 6]> = SmallVec::from_elem(1, missing);
        repeats.extend(dims);
        self.repeated("tile", "dims", &repeats)
    }

    #[track_caller]
    fn repeated(
        &self,
        op: &'static str,
        argument: &'static str,
        repeats: &[i64],
    ) -> Result<Tensor> {
        let at = Location::caller();
        let times = lengths(op, argument, repeats).map_err(|e| e.at(at))?;
        let mut dims = Dims::from_elem(1, times.len() - self.rank());
        dims.extend_from_slice(self.dims());
        let whole = self.reshape(dims.as_slice())?;
        record_op(Repeat { times }, &[(&whole).into()])
    }

    /// Each element of an axis (of the flattened tensor for `None`) `repeats` times in a row.
    ///
    /// # Errors
    /// [`Error::Axis`].
    ///
    /// ```no_run
    /// # use xla_lazy::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0], [2], ())?;
    /// assert_eq!(x.repeat_interleave(2, Some(0))?.to_vec::<f32>()?, [1.0, 1.0, 2.0, 2.0]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn repeat_interleave(&self, repeats: usize, dim: Option<i64>) -> Result<Tensor> {
        const OP: &str = "repeat_interleave";
        let at = Location::caller();
        let (x, axis) = self.along(OP, dim, at)?;
        let mut dims: Dims = x.dims().into();
        dims.insert(axis + 1, repeats);
        let spread = x.unsqueeze(axis as i64 + 1)?.expand(dims.as_slice())?;
        let total = dims.remove(axis + 1).saturating_mul(dims[axis]);
        dims[axis] = total;
        let merged = spread.reshape(dims.as_slice())?;
        // A view where nothing was repeated, but the result is PyTorch's copy.
        if merged.view.is_some() {
            merged.copy()
        } else {
            Ok(merged)
        }
    }

    /// Element `i` of an axis (of the flattened tensor for `None`) `repeats[i]` times in a row.
    /// `output_size` is the sum of the repeats; without it that is read to the host.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::DTypeMismatch`] for repeats that are no integers;
    /// [`Error::ShapeMismatch`] for another number of them than elements (a single one serves for
    /// all); [`Error::Argument`] for a negative one that came from the host.
    #[track_caller]
    pub fn repeat_interleave_each(
        &self,
        repeats: &Tensor,
        dim: Option<i64>,
        output_size: Option<usize>,
    ) -> Result<Tensor> {
        const OP: &str = "repeat_interleave";
        let at = Location::caller();
        let (x, axis) = self.along(OP, dim, at)?;
        let size = x.dims()[axis];
        if !repeats.dtype().is_integer() {
            return Err(Error::dtype(OP, "integer repeats", repeats.dtype()).at(at));
        }
        if repeats.rank() > 1 || (repeats.numel() != size && repeats.numel() != 1) {
            let expected = format!("{size} repeats, one an element, or a single one");
            return Err(Error::shape(OP, expected, repeats.shape()).at(at));
        }
        let negative = |range: Option<(i64, i64)>| range.filter(|(low, _)| *low < 0);
        repeats
            .check_index_range(move |range| match negative(range) {
                None => Ok(()),
                Some((low, _)) => Err(Error::argument(OP, "repeats", "at least 0", low)),
            })
            .map_err(|e| e.at(at))?;
        let repeats = repeats.reshape([-1])?.expand([size])?;
        let len = match output_size {
            Some(len) => len,
            None => {
                let sum: i64 = repeats.sum((), false)?.item()?;
                usize::try_from(sum)
                    .map_err(|_| Error::argument(OP, "repeats", "at least 0", sum).at(at))?
            }
        };
        let sources = crate::ops::index::runs(&repeats, len)?;
        x.index_select(axis as i64, &sources)
    }

    /// The tensor and the axis that an optional axis names: without one that of the flattened
    /// tensor. A scalar answers to the axes of a vector.
    fn along(
        &self,
        op: &'static str,
        dim: Option<i64>,
        at: &'static Location<'static>,
    ) -> Result<(Tensor, usize)> {
        let x = match dim {
            Some(_) if self.rank() > 0 => self.clone(),
            _ => self.reshape([-1])?,
        };
        let axis = x.shape().axis(op, dim.unwrap_or(0)).map_err(|e| e.at(at))?;
        Ok((x, axis))
    }
}

/// Repetitions or lengths of at least 0.
fn lengths(op: &'static str, argument: &'static str, values: &[i64]) -> Result<Dims> {
    let length = |&v: &i64| {
        usize::try_from(v).map_err(|_| Error::argument(op, argument, "numbers of at least 0", v))
    };
    values.iter().map(length).collect()
}
