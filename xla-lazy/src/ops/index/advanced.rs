//! Indexing as `x[…]` does in Python.

use super::select::{IndexAdd, IndexCopy, IndexSelect};
use super::{Outside, in_range, mask};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operand, Operator};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

/// One part of an index: what stands between the commas of `x[…]`.
///
/// Integers, ranges and references to tensors convert to it.
#[derive(Debug, Clone, Copy)]
pub enum Index<'a> {
    /// One position, negative from the end; its axis vanishes.
    At(i64),
    /// Every `step`-th position from `start` to before `end`, with Python's rules.
    Slice {
        /// The first position, by default the first there is.
        start: Option<i64>,
        /// The position to stop before, by default the end.
        end: Option<i64>,
        /// How far positions are apart.
        step: usize,
    },
    /// A new axis of length 1: Python's `None`.
    NewAxis,
    /// All axes that the other parts leave.
    Ellipsis,
    /// Positions (integers, negative from the end), or a `bool` mask over as many axes as it has.
    Tensor(&'a Tensor),
}

impl Index<'_> {
    /// A range's positions `step` apart; other parts as they are.
    #[must_use]
    pub fn step(self, step: usize) -> Self {
        match self {
            Index::Slice { start, end, .. } => Index::Slice { start, end, step },
            other => other,
        }
    }
}

fn slice<'a>(start: Option<i64>, end: Option<i64>) -> Index<'a> {
    let step = 1;
    Index::Slice { start, end, step }
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl From<$t> for Index<'_> {
            fn from(i: $t) -> Self { Index::At(i as i64) }
        }
        impl From<Range<$t>> for Index<'_> {
            fn from(r: Range<$t>) -> Self { slice(Some(r.start as i64), Some(r.end as i64)) }
        }
        impl From<RangeInclusive<$t>> for Index<'_> {
            fn from(r: RangeInclusive<$t>) -> Self {
                // Behind the last position there is no other to stop before.
                let end = (*r.end() as i64).checked_add(1).filter(|end| *end != 0);
                slice(Some(*r.start() as i64), end)
            }
        }
        impl From<RangeFrom<$t>> for Index<'_> {
            fn from(r: RangeFrom<$t>) -> Self { slice(Some(r.start as i64), None) }
        }
        impl From<RangeTo<$t>> for Index<'_> {
            fn from(r: RangeTo<$t>) -> Self { slice(None, Some(r.end as i64)) }
        }
    )*};
}

integers!(i32, i64, usize);

impl From<RangeFull> for Index<'_> {
    fn from(_: RangeFull) -> Self {
        slice(None, None)
    }
}

impl<'a> From<&'a Tensor> for Index<'a> {
    fn from(tensor: &'a Tensor) -> Self {
        Index::Tensor(tensor)
    }
}

/// The place, in row-major order of axes of these sizes, that index tensors name together; -1 where
/// one of them is out of range. Negative indices count from the end.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Positions {
    sizes: Dims,
    shape: Shape,
}

impl Operator for Positions {
    const NAME: &'static str = "index";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(ty(DType::I64, &Shape::new(&[self.shape.numel()])))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let constant = |f: &mut Func, n: i64| f.constant_int(DType::I64, &self.shape, n);
        let zero = constant(f, 0);
        let mut place = zero;
        let mut valid = f.constant(DType::Bool, &self.shape, 1.0);
        for (axis, (&index, &size)) in inputs.iter().zip(&self.sizes).enumerate() {
            let index = f.convert(index, DType::I64);
            let index = f.broadcast_to(index, &self.shape)?;
            let length = constant(f, size as i64);
            let negative = f.compare(Compare::Lt, index, zero);
            let from_end = f.binary("add", index, length);
            let index = f.select(negative, from_end, index);
            f.watch_indices(index, axis, size);
            let within = in_range(f, index, size);
            valid = f.binary("and", valid, within);
            let before = f.binary("multiply", place, length);
            place = f.binary("add", before, index);
        }
        let none = constant(f, -1);
        let place = f.select(valid, place, none);
        Ok(f.reshape(place, out.shape()))
    }
}

/// The places that index tensors, each for an axis of a size, name together, as a vector.
#[track_caller]
pub(super) fn positions(indices: &[(&Tensor, usize)]) -> Result<Tensor> {
    let at = Location::caller();
    let mut shape = Shape::scalar();
    for (index, _) in indices {
        shape = shape
            .broadcast("index", index.shape())
            .map_err(|e| e.at(at))?;
    }
    let sizes = indices.iter().map(|(_, size)| *size).collect();
    let operands: Vec<Operand<'_>> = indices.iter().map(|(t, _)| Operand::Tensor(t)).collect();
    record_op(Positions { sizes, shape }, &operands)
}

/// What the parts of an index leave to do.
struct Parts<'a> {
    /// What the parts without tensors show.
    view: Tensor,
    /// The tensors, with the axis of `view` that each begins at.
    picks: Vec<(usize, &'a Tensor)>,
}

/// Axes of a view that index tensors select from together, as one.
struct Picked {
    /// The view's axes in the order in which those picked lie next to each other.
    order: Dims,
    /// The first one picked, and how many are.
    first: usize,
    count: usize,
    /// The places on the axes picked, and the shape the index tensors broadcast to.
    places: Tensor,
    shape: Shape,
    outside: Outside,
}

impl Picked {
    /// Dims of `view`, permuted, with those of the picked axes replaced by `with`.
    fn dims(&self, view: &Tensor, with: &[usize]) -> Dims {
        let dim = |&axis: &usize| view.dims()[axis];
        let mut dims: Dims = self.order[..self.first].iter().map(dim).collect();
        dims.extend_from_slice(with);
        dims.extend(self.order[self.first + self.count..].iter().map(dim));
        dims
    }

    /// `view` with the picked axes as one.
    #[track_caller]
    fn merged(&self, view: &Tensor) -> Result<Tensor> {
        let picked = &self.order[self.first..self.first + self.count];
        let len = picked.iter().map(|&axis| view.dims()[axis]).product();
        let dims = self.dims(view, &[len]);
        view.permute(self.order.as_slice())?
            .reshape(dims.as_slice())
    }
}

impl Tensor {
    /// The parts of an index that need no tensor, applied.
    #[track_caller]
    fn parts<'a>(&self, op: &'static str, indices: &[Index<'a>]) -> Result<Parts<'a>> {
        let at = Location::caller();
        let taken = |index: &Index<'_>| match index {
            Index::NewAxis | Index::Ellipsis => 0,
            Index::Tensor(mask) if mask.dtype() == DType::Bool => mask.rank(),
            _ => 1,
        };
        let named: usize = indices.iter().map(taken).sum();
        let dots = indices.iter().filter(|i| matches!(i, Index::Ellipsis));
        if named > self.rank() || dots.count() > 1 {
            let expected = format!("at most {} axes and one ellipsis", self.rank());
            return Err(Error::argument(op, "indices", expected, format!("{indices:?}")).at(at));
        }
        let (mut view, mut axis, mut picks) = (self.clone(), 0, Vec::new());
        for index in indices {
            let dim = axis as i64;
            match *index {
                Index::At(position) => {
                    let selected = view.select(dim, position);
                    view = selected.map_err(|error| renamed(error, op))?;
                }
                Index::Slice { start, end, step } => {
                    let (start, end) = (start.unwrap_or(0), end.unwrap_or(i64::MAX));
                    let part = view.slice(dim, start, end, step);
                    view = part.map_err(|error| renamed(error, op))?;
                    axis += 1;
                }
                Index::NewAxis => {
                    view = view.unsqueeze(dim)?;
                    axis += 1;
                }
                Index::Ellipsis => axis += self.rank() - named,
                Index::Tensor(tensor) => {
                    picks.push((axis, tensor));
                    axis += taken(index);
                }
            }
        }
        for &(axis, tensor) in &picks {
            let mask = tensor.dtype() == DType::Bool;
            if mask && (tensor.rank() == 0 || !view.dims()[axis..].starts_with(tensor.dims())) {
                let expected = format!("a mask of the axes of {} from {axis} on", view.shape());
                return Err(Error::shape(op, expected, tensor.shape()).at(at));
            }
            if !mask && !tensor.dtype().is_integer() {
                let expected = "indices of an integer dtype or bool";
                return Err(Error::dtype(op, expected, tensor.dtype()).at(at));
            }
        }
        Ok(Parts { view, picks })
    }

    /// What index tensors pick of this view. Masks are read to the host: how many they pick is part
    /// of a shape.
    #[track_caller]
    fn picked(&self, op: &'static str, picks: &[(usize, &Tensor)]) -> Result<Picked> {
        let at = Location::caller();
        let mut tensors: Vec<(usize, Tensor)> = Vec::new();
        for &(axis, tensor) in picks {
            if tensor.dtype() != DType::Bool {
                tensors.push((axis, tensor.clone()));
                continue;
            }
            for (i, places) in mask::places(tensor)?.into_iter().enumerate() {
                let count = places.len();
                tensors.push((axis + i, Tensor::from_vec(places, [count], self.device())?));
            }
        }
        let mut outside = Outside::Never;
        let mut shape = Shape::scalar();
        for (axis, tensor) in &tensors {
            if self.outside(op, tensor, *axis, true, at)? != Outside::Never {
                outside = Outside::Fill;
            }
            shape = shape.broadcast(op, tensor.shape()).map_err(|e| e.at(at))?;
        }
        let axes: Dims = tensors.iter().map(|(axis, _)| *axis).collect();
        let adjacent = axes.windows(2).all(|pair| pair[0] + 1 == pair[1]);
        // Where other axes lie between those picked, the result's come first.
        let mut order: Dims = (0..self.rank()).filter(|a| !axes.contains(a)).collect();
        let first = if adjacent { axes[0] } else { 0 };
        order.insert_many(first, axes.iter().copied());
        let sized: Vec<(&Tensor, usize)> = tensors
            .iter()
            .map(|(axis, tensor)| (tensor, self.dims()[*axis]))
            .collect();
        Ok(Picked {
            order,
            first,
            count: axes.len(),
            places: positions(&sized)?,
            shape,
            outside,
        })
    }

    /// What `x[…]` shows: one [`Index`] for each part between the commas. Without index tensors it
    /// is a view, else a copy. A `bool` mask is read to the host, because how many elements it
    /// selects is part of the result's shape.
    ///
    /// Index tensors broadcast; their axes take the place of those selected from, or come first
    /// where others lie between.
    ///
    /// # Errors
    /// [`Error::IndexOutOfRange`] for indices that came from the host; [`Error::Argument`] for more
    /// parts than axes or two ellipses; [`Error::ShapeMismatch`] for a mask of another shape;
    /// [`Error::Broadcast`]; [`Error::DTypeMismatch`].
    ///
    /// ```no_run
    /// # use xla_lazy::{Index, Tensor};
    /// let x = Tensor::arange(0.0, 12.0, 1.0, ())?.reshape([3, 4])?;
    /// let rows = Tensor::from_slice(&[2i64, -3], [2], ())?;
    /// assert_eq!(x.index(&[(&rows).into(), 1.into()])?.to_vec::<f32>()?, [9.0, 1.0]);
    /// assert_eq!(x.index(&[0.into(), Index::from(..).step(2)])?.to_vec::<f32>()?, [0.0, 2.0]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn index(&self, indices: &[Index<'_>]) -> Result<Tensor> {
        const OP: &str = "index";
        let Parts { view, picks } = self.parts(OP, indices)?;
        if picks.is_empty() {
            return Ok(view);
        }
        let picked = view.picked(OP, &picks)?;
        let select = IndexSelect {
            axis: picked.first,
            outside: picked.outside,
        };
        let merged = picked.merged(&view)?;
        let taken = record_op(select, &[(&merged).into(), (&picked.places).into()])?;
        taken.reshape(picked.dims(&view, &picked.shape).as_slice())
    }

    /// `x[…] = values`, or `x[…] += values` where `accumulate` is set, which then adds all values
    /// for one place. Values are a number (which is data) or a tensor that expands to what
    /// [`Tensor::index`] shows; they are converted to this tensor's dtype. Every handle on the
    /// tensor and every view of it sees the change.
    ///
    /// A mask alone, with values that do not depend on how many elements it selects or one value
    /// for each, is not read to the host.
    ///
    /// Returns a handle on this tensor.
    ///
    /// # Errors
    /// As [`Tensor::index`]; [`Error::ShapeMismatch`] for values that do not expand;
    /// [`Error::Autograd`] for a leaf that requires a gradient, outside [`crate::no_grad`].
    ///
    /// ```no_run
    /// # use xla_lazy::Tensor;
    /// let x = Tensor::arange(0.0, 4.0, 1.0, ())?;
    /// x.index_put_(&[(&x.gt(1.0)?).into()], -1.0, false)?;
    /// assert_eq!(x.to_vec::<f32>()?, [0.0, 1.0, -1.0, -1.0]);
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    #[track_caller]
    pub fn index_put_<'a>(
        &self,
        indices: &[Index<'_>],
        values: impl Into<Operand<'a>>,
        accumulate: bool,
    ) -> Result<Tensor> {
        const OP: &str = "index_put_";
        let Parts { view, picks } = self.parts(OP, indices)?;
        let values = match values.into() {
            Operand::Tensor(values) => values.to_dtype(self.dtype())?,
            Operand::Number(value) => Tensor::full((), value, (self.dtype(), self.device()))?,
        };
        let new = match picks.as_slice() {
            [] if accumulate => view.add(&values.expand(view.shape())?)?,
            [] => values.expand(view.shape())?,
            &[(axis, mask)] if mask.dtype() == DType::Bool => {
                match view.put_where(axis, mask, &values, accumulate)? {
                    Some(new) => new,
                    None => view.put_at(OP, &picks, &values, accumulate)?,
                }
            }
            picks => view.put_at(OP, picks, &values, accumulate)?,
        };
        view.assign(OP, new.to_dtype(self.dtype())?)?;
        Ok(self.clone())
    }

    /// This view with values where a mask of its axes from `axis` on is true; `None` where that
    /// takes knowing how many elements it selects.
    #[track_caller]
    fn put_where(
        &self,
        axis: usize,
        mask: &Tensor,
        values: &Tensor,
        accumulate: bool,
    ) -> Result<Option<Tensor>> {
        let behind = self.rank() - axis - mask.rank();
        let mut dims = Dims::from_elem(1, axis);
        dims.extend_from_slice(mask.dims());
        dims.extend(std::iter::repeat_n(1, behind));
        let spread = mask.reshape(dims.as_slice())?;
        let values = if values.rank() <= behind {
            values.clone()
        } else if values.rank() == behind + 1 && values.dims()[0] == 1 {
            values.squeeze(0)?
        } else if values.rank() == behind + 1 && axis == 0 && !accumulate {
            // One for each element selected: the next one at each that is.
            let rows = values.index_select(0, &mask::ranks(mask)?)?;
            let mut rows_as: Dims = mask.dims().into();
            rows_as.extend_from_slice(&rows.dims()[1..]);
            rows.reshape(rows_as.as_slice())?
        } else {
            return Ok(None);
        };
        let values = values.expand(self.shape())?;
        let there = match accumulate {
            true => self.add(&values)?,
            false => values,
        };
        spread.select_from(&there, self).map(Some)
    }

    /// This view with values at the places that index tensors name.
    #[track_caller]
    fn put_at(
        &self,
        op: &'static str,
        picks: &[(usize, &Tensor)],
        values: &Tensor,
        accumulate: bool,
    ) -> Result<Tensor> {
        let picked = self.picked(op, picks)?;
        let (axis, merged) = (picked.first, picked.merged(self)?);
        let shown = picked.dims(self, &picked.shape);
        let rows = picked.dims(self, &[picked.shape.numel()]);
        let values = values.expand(shown.as_slice())?.reshape(rows.as_slice())?;
        let operands = [(&merged).into(), (&picked.places).into(), (&values).into()];
        let written = match accumulate {
            true => record_op(IndexAdd { axis }, &operands)?,
            false => record_op(IndexCopy { axis }, &operands)?,
        };
        let permuted: Dims = picked.order.iter().map(|&a| self.dims()[a]).collect();
        let mut back = Dims::from_elem(0, self.rank());
        for (to, &from) in picked.order.iter().enumerate() {
            back[from] = to;
        }
        written
            .reshape(permuted.as_slice())?
            .permute(back.as_slice())
    }

    /// [`Tensor::index_put_`] on a copy.
    ///
    /// # Errors
    /// As [`Tensor::index_put_`], but for a leaf.
    #[track_caller]
    pub fn index_put<'a>(
        &self,
        indices: &[Index<'_>],
        values: impl Into<Operand<'a>>,
        accumulate: bool,
    ) -> Result<Tensor> {
        self.copy()?.index_put_(indices, values, accumulate)
    }
}

/// The error of a part under the name that the user called.
fn renamed(error: Error, op: &'static str) -> Error {
    match error {
        Error::IndexOutOfRange {
            index,
            axis,
            size,
            at,
            ..
        } => Error::IndexOutOfRange {
            op,
            index,
            axis,
            size,
            at,
        },
        other => other,
    }
}
