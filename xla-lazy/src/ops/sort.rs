//! Order along an axis: sorting, the largest elements, order statistics, and search.

use super::only;
use super::reduce::reduced;
use crate::Tensor;
use crate::op::{Derivative, InputType, Operand, Operator, Saves, promote};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

/// The elements in order along an axis, and where they were.
fn sorted(f: &mut Func, x: Value, axis: usize, descending: bool) -> (Value, Value) {
    let dtype = match i32::try_from(x.shape()[axis]) {
        Ok(_) => DType::I32,
        Err(_) => DType::I64,
    };
    let positions = f.iota(dtype, x.shape(), axis);
    f.sort_by_key(x, positions, axis, descending)
}

/// The first `len` of an axis.
fn first(f: &mut Func, x: Value, axis: usize, len: usize) -> Value {
    if len == x.shape()[axis] {
        return x;
    }
    let rank = x.shape().rank();
    let mut limit: Dims = x.shape().dims().into();
    limit[axis] = len;
    let (start, step) = (Dims::from_elem(0, rank), Dims::from_elem(1, rank));
    f.slice(x, &start, &limit, &step)
}

/// Where the first `len` elements are in the order along an axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ArgSort {
    axis: usize,
    descending: bool,
    len: usize,
}

impl Operator for ArgSort {
    const NAME: &'static str = "argsort";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        let mut dims: Dims = input.shape().dims().into();
        dims[self.axis] = self.len;
        Ok(ty(DType::I64, &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let (_, positions) = sorted(f, inputs[0], self.axis, self.descending);
        let positions = first(f, positions, self.axis, self.len);
        Ok(f.convert(positions, DType::I64))
    }
}

/// The elements that [`ArgSort`] finds; the second operand is its result. It is lowered likewise, so
/// that the compiler makes one sort of the two.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Sort {
    order: ArgSort,
}

impl Operator for Sort {
    const NAME: &'static str = "sort";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| super::index::add_along(vjp, op.order.axis),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let places = inputs[1].tensor(Self::NAME)?;
        Ok(ty(inputs[0].tensor(Self::NAME)?.dtype(), places.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        let ArgSort {
            axis,
            descending,
            len,
        } = self.order;
        let (values, _) = sorted(f, inputs[0], axis, descending);
        Ok(first(f, values, axis, len))
    }
}

/// Where in sorted sequences values belong.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct SearchSorted {
    right: bool,
}

impl Operator for SearchSorted {
    const NAME: &'static str = "searchsorted";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let sequence = inputs[0].tensor(Self::NAME)?;
        let shape = match inputs[1] {
            InputType::Tensor(values) => values.shape().clone(),
            InputType::Number(_) => Shape::scalar(),
        };
        let fits = match sequence.rank() {
            0 => false,
            1 => true,
            rank => shape.rank() == rank && shape[..rank - 1] == sequence.shape()[..rank - 1],
        };
        if !fits {
            let expected =
                "a sorted sequence of rank 1, or of the values' shape but for the last axis";
            let got = format!("{} for values {shape}", sequence.shape());
            return Err(Error::shape(Self::NAME, expected, got));
        }
        if promote(inputs) == DType::Bool {
            return Err(Error::dtype(Self::NAME, "numbers", DType::Bool));
        }
        Ok(ty(DType::I64, &shape))
    }

    /// Binary search, all values at once: from the largest power of two down, each step is taken
    /// where the element it reaches still lies before the value.
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let dtype = inputs[0].dtype().promote(inputs[1].dtype());
        let (sequence, values) = (f.convert(inputs[0], dtype), f.convert(inputs[1], dtype));
        let shape = values.shape();
        let rows: Dims = sequence.shape()[..sequence.shape().rank() - 1].into();
        let n = sequence.shape()[rows.len()];
        let index = match i32::try_from(sequence.shape().numel()) {
            Ok(_) if n < 1 << 30 => DType::I32,
            _ => DType::I64,
        };
        let mut found = f.constant_int(index, shape, 0);
        if n == 0 || shape.numel() == 0 {
            return Ok(f.convert(found, out.dtype()));
        }
        // Rows one after the other in one vector; each value's row starts at `base`.
        let flat = f.reshape(sequence, &Shape::new(&[sequence.shape().numel()]));
        let mut base = f.constant_int(index, shape, -1);
        let mut stride = n as i64;
        for axis in (0..rows.len()).rev() {
            let row = f.iota(index, shape, axis);
            let factor = f.constant_int(index, shape, stride);
            let offset = f.binary("multiply", row, factor);
            base = f.binary("add", base, offset);
            stride *= rows[axis] as i64;
        }
        let limit = f.constant_int(index, shape, n as i64);
        let beyond = if self.right { Compare::Gt } else { Compare::Ge };
        let mut step = 1usize << n.ilog2();
        while step > 0 {
            let by = f.constant_int(index, shape, step as i64);
            let next = f.binary("add", found, by);
            let place = f.binary("add", base, next);
            let element = f.take(flat, place, 0);
            // Written as a negation so that NaN, which no number lies beyond, is last.
            let past = f.compare(beyond, element, values);
            let before = f.unary("not", past);
            let inside = f.compare(Compare::Le, next, limit);
            let taken = f.binary("and", before, inside);
            found = f.select(taken, next, found);
            step /= 2;
        }
        Ok(f.convert(found, out.dtype()))
    }
}

/// The number at position `k` (from 0) of the order along an axis.
#[derive(Debug, Clone, Copy)]
enum Rank {
    /// The position.
    At(usize),
    /// The lower of the middle ones; the first NaN where there is one.
    Median,
    /// The lower of the middle ones of those that are not NaN.
    NanMedian,
}

impl Tensor {
    #[track_caller]
    fn ordered(&self, axis: usize, descending: bool, len: usize) -> Result<(Tensor, Tensor)> {
        let order = ArgSort {
            axis,
            descending,
            len,
        };
        let indices = record_op(order.clone(), &[self.into()])?;
        let values = record_op(Sort { order }, &[self.into(), (&indices).into()])?;
        Ok((values, indices))
    }

    /// The elements in order along an axis, and where they were. Equal elements stay in their order;
    /// NaN counts as larger than any number. The sort is stable always, so PyTorch's `stable` is not
    /// an argument.
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn sort(&self, dim: i64, descending: bool) -> Result<(Tensor, Tensor)> {
        let Some(axis) = self.axis_or_scalar("sort", dim)? else {
            let (values, indices) = self.reshape([1])?.ordered(0, descending, 1)?;
            return Ok((values.reshape(())?, indices.reshape(())?));
        };
        self.ordered(axis, descending, self.dims()[axis])
    }

    /// Where the elements of [`Tensor::sort`] were; `i64`.
    ///
    /// # Errors
    /// [`Error::Axis`].
    #[track_caller]
    pub fn argsort(&self, dim: i64, descending: bool) -> Result<Tensor> {
        let Some(axis) = self.axis_or_scalar("argsort", dim)? else {
            return Tensor::zeros((), (DType::I64, self.device()));
        };
        let len = self.dims()[axis];
        record_op(
            ArgSort {
                axis,
                descending,
                len,
            },
            &[self.into()],
        )
    }

    /// The `k` largest elements along an axis (the smallest unless `largest`) and where they are, in
    /// order. Of equal elements the first come first; NaN counts as larger than any number.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] when `k` exceeds the axis.
    #[track_caller]
    pub fn topk(&self, k: usize, dim: i64, largest: bool) -> Result<(Tensor, Tensor)> {
        let at = Location::caller();
        let axis = self.axis_or_scalar("topk", dim)?;
        let length = axis.map_or(1, |axis| self.dims()[axis]);
        if k > length {
            let expected = format!("at most the axis' length {length}");
            return Err(Error::argument("topk", "k", expected, k).at(at));
        }
        let Some(axis) = axis else {
            return self.sort(0, largest);
        };
        self.ordered(axis, largest, k)
    }

    /// The `k`-th smallest element along an axis, from 1, and where it is.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::Argument`] when `k` is 0 or exceeds the axis.
    #[track_caller]
    pub fn kthvalue(&self, k: usize, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
        let at = Location::caller();
        let axis = self.axis_or_scalar("kthvalue", dim)?;
        let length = axis.map_or(1, |axis| self.dims()[axis]);
        if k == 0 || k > length {
            let expected = format!("1 to the axis' length {length}");
            return Err(Error::argument("kthvalue", "k", expected, k).at(at));
        }
        self.of_rank("kthvalue", dim, keepdim, Rank::At(k - 1))
    }

    /// The median along an axis, the lower one of two, and where it is; NaN where there is one.
    ///
    /// # Errors
    /// [`Error::Axis`]; [`Error::ShapeMismatch`] when there are no elements;
    /// [`Error::DTypeMismatch`] for `bool`.
    #[track_caller]
    pub fn median(&self, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
        self.of_rank("median", dim, keepdim, Rank::Median)
    }

    /// The median along an axis of the elements that are not NaN; as [`Tensor::median`].
    ///
    /// # Errors
    /// As [`Tensor::median`].
    #[track_caller]
    pub fn nanmedian(&self, dim: i64, keepdim: bool) -> Result<(Tensor, Tensor)> {
        self.of_rank("nanmedian", dim, keepdim, Rank::NanMedian)
    }

    #[track_caller]
    fn of_rank(
        &self,
        op: &'static str,
        dim: i64,
        keepdim: bool,
        rank: Rank,
    ) -> Result<(Tensor, Tensor)> {
        let at = Location::caller();
        if self.dtype() == DType::Bool {
            return Err(Error::dtype(op, "numbers", DType::Bool).at(at));
        }
        let Some(axis) = self.axis_or_scalar(op, dim)? else {
            return self.sort(0, false);
        };
        let n = self.dims()[axis];
        super::reduce::not_empty(op, self.shape(), &[axis]).map_err(|e| e.at(at))?;
        let order = self.argsort(axis as i64, false)?;
        let numbers = |tensor: &Tensor| tensor.isnan()?.logical_not()?.sum(axis, true);
        let index = match rank {
            Rank::At(k) => order.narrow(axis as i64, k as i64, 1)?,
            _ if !self.dtype().is_float() => order.narrow(axis as i64, (n as i64 - 1) / 2, 1)?,
            Rank::Median => {
                let numbers = numbers(self)?;
                let middle = numbers
                    .eq(n as i64)?
                    .select_from((n as i64 - 1) / 2, &numbers)?;
                order.gather(axis as i64, &middle)?
            }
            Rank::NanMedian => {
                let numbers = numbers(self)?;
                let middle = numbers.sub(1)?.maximum(0)?.to_dtype(DType::F64)?.mul(0.5)?;
                order.gather(axis as i64, &middle.floor()?.to_dtype(DType::I64)?)?
            }
        };
        let value = self.gather(axis as i64, &index)?;
        let shape = reduced(self.shape(), &[axis], keepdim);
        Ok((value.reshape(&shape)?, index.reshape(&shape)?))
    }

    /// Where each value would be put into this sorted sequence so that it stays sorted: before equal
    /// elements, or after them (`right`). The sequence is of rank 1 or has the shape of `values` but
    /// for the last axis, along which it is sorted. `i64`.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`]; [`Error::DTypeMismatch`] for `bool`.
    #[track_caller]
    pub fn searchsorted<'a>(&self, values: impl Into<Operand<'a>>, right: bool) -> Result<Tensor> {
        record_op(SearchSorted { right }, &[self.into(), values.into()])
    }

    /// The number of the interval between `boundaries` (sorted, of rank 1) that each element lies in:
    /// [`Tensor::searchsorted`] with the operands exchanged.
    ///
    /// # Errors
    /// As [`Tensor::searchsorted`].
    #[track_caller]
    pub fn bucketize(&self, boundaries: &Tensor, right: bool) -> Result<Tensor> {
        if boundaries.rank() != 1 {
            let error = Error::shape("bucketize", "boundaries of rank 1", boundaries.shape());
            return Err(error.at(Location::caller()));
        }
        boundaries.searchsorted(self, right)
    }
}
