//! Places: identity matrices, evenly spaced numbers, grids of coordinates, triangles of indices.

use crate::Tensor;
use crate::op::Number;
use crate::tensor::TensorOptions;
use std::panic::Location;
use xla_core::{DType, Error, Literal, Result};

/// Which axes of [`Tensor::meshgrid`] the first two tensors run along.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MeshgridIndexing {
    /// The first along the first: rows and columns of a matrix.
    #[default]
    Ij,
    /// The first along the second: horizontal and vertical coordinates.
    Xy,
}

impl Tensor {
    /// 1 on the main diagonal of `n` rows and `m` columns, else 0. `f32` unless the options name
    /// another dtype.
    ///
    /// # Errors
    /// [`Error::Argument`] for a length beyond any memory, [`Error::NoReplicaContext`].
    #[track_caller]
    pub fn eye(n: usize, m: usize, options: impl Into<TensorOptions>) -> Result<Tensor> {
        const OP: &str = "eye";
        let options = options.into();
        let device = options.device_or_current(OP)?;
        let count = |len| Tensor::arange(0, length(OP, "n", len)?, 1, device);
        let (rows, columns) = (count(n)?.unsqueeze(1)?, count(m)?);
        let diagonal = rows.eq(&columns).map_err(|e| e.named(OP))?;
        let made = diagonal.to_dtype(options.dtype().unwrap_or(DType::F32))?;
        options.spread(OP, made, Location::caller())
    }

    /// `steps` numbers from `start` to `end`, both included, at equal distances; `start` alone for
    /// one step. Both are data. `f32` unless the options name another dtype.
    ///
    /// # Errors
    /// [`Error::Argument`] for more steps than any memory holds, [`Error::NoReplicaContext`].
    #[track_caller]
    pub fn linspace(
        start: impl Into<Number>,
        end: impl Into<Number>,
        steps: usize,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        const OP: &str = "linspace";
        let options = options.into();
        let dtype = options.dtype().unwrap_or(DType::F32);
        let spaced = spaced(OP, start.into(), end.into(), steps, dtype, options)?;
        spaced.to_dtype(dtype)
    }

    /// `base` to the powers of [`Tensor::linspace`]: `steps` numbers from `base`^`start` to
    /// `base`^`end`. All three are data.
    ///
    /// # Errors
    /// As [`Tensor::linspace`].
    #[track_caller]
    pub fn logspace(
        start: impl Into<Number>,
        end: impl Into<Number>,
        steps: usize,
        base: impl Into<Number>,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        const OP: &str = "logspace";
        let options = options.into();
        let dtype = options.dtype().unwrap_or(DType::F32);
        let exponents = spaced(OP, start.into(), end.into(), steps, dtype, options)?;
        exponents
            .rpow(Number::Float(base.into().to_f64()))?
            .to_dtype(dtype)
    }

    /// The coordinates of a grid: as many tensors as are given, each of a shape with one axis a
    /// tensor, along which it runs. They are views of the given vectors; a number counts as a vector
    /// of one.
    ///
    /// # Errors
    /// [`Error::Argument`] for no tensor, [`Error::ShapeMismatch`] for one of more than one axis,
    /// [`Error::DTypeMismatch`] where the dtypes differ.
    #[track_caller]
    pub fn meshgrid(tensors: &[&Tensor], indexing: MeshgridIndexing) -> Result<Vec<Tensor>> {
        const OP: &str = "meshgrid";
        let at = Location::caller();
        let Some(first) = tensors.first() else {
            return Err(Error::argument(OP, "tensors", "at least one", "none").at(at));
        };
        for tensor in tensors {
            if tensor.rank() > 1 {
                return Err(Error::shape(OP, "vectors", tensor.shape()).at(at));
            }
            if tensor.dtype() != first.dtype() {
                return Err(Error::dtype(OP, first.dtype().name(), tensor.dtype()).at(at));
            }
        }
        let swapped = indexing == MeshgridIndexing::Xy && tensors.len() > 1;
        let axis = |i: usize| match i {
            0 | 1 if swapped => 1 - i,
            i => i,
        };
        let mut lengths = vec![1; tensors.len()];
        for (i, tensor) in tensors.iter().enumerate() {
            lengths[axis(i)] = tensor.numel();
        }
        let along = |(i, tensor): (usize, &&Tensor)| {
            let mut dims = vec![1; lengths.len()];
            dims[axis(i)] = tensor.numel();
            tensor.reshape(&dims[..])?.expand(&lengths[..])
        };
        tensors.iter().enumerate().map(along).collect()
    }

    /// Row and column of each element on or below the diagonal `offset` above the main one, row by
    /// row: `i64[2, n]`, made on the host.
    ///
    /// # Errors
    /// [`Error::NoReplicaContext`]; the runtime's.
    #[track_caller]
    pub fn tril_indices(
        row: usize,
        col: usize,
        offset: i64,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        triangle(row, col, options, |distance| distance <= offset)
    }

    /// As [`Tensor::tril_indices`], for the elements on or above the diagonal.
    ///
    /// # Errors
    /// As [`Tensor::tril_indices`].
    #[track_caller]
    pub fn triu_indices(
        row: usize,
        col: usize,
        offset: i64,
        options: impl Into<TensorOptions>,
    ) -> Result<Tensor> {
        triangle(row, col, options, |distance| distance >= offset)
    }
}

#[track_caller]
fn triangle(
    rows: usize,
    columns: usize,
    options: impl Into<TensorOptions>,
    within: impl Fn(i64) -> bool,
) -> Result<Tensor> {
    let options = options.into();
    let places = || {
        let all = (0..rows as i64).flat_map(|r| (0..columns as i64).map(move |c| (r, c)));
        all.filter(|(r, c)| within(c - r))
    };
    let indices: Vec<i64> = places()
        .map(|(r, _)| r)
        .chain(places().map(|(_, c)| c))
        .collect();
    let shape = [2, indices.len() / 2];
    Tensor::from_literal(Literal::from_vec(indices, shape)?, options)
}

/// A length as a number.
fn length(op: &'static str, argument: &'static str, len: usize) -> Result<i64> {
    i64::try_from(len).map_err(|_| Error::argument(op, argument, "a length below 2^63", len))
}

/// The numbers of `linspace`, not yet rounded to the dtype. Each half counts from its own end, so
/// that both ends are exact.
#[track_caller]
fn spaced(
    op: &'static str,
    start: Number,
    end: Number,
    steps: usize,
    dtype: DType,
    options: TensorOptions,
) -> Result<Tensor> {
    let wide = match dtype {
        DType::F16 | DType::BF16 | DType::F32 => DType::F32,
        _ => DType::F64,
    };
    let (start, end) = (start.to_f64(), end.to_f64());
    let device = options.device_or_current(op)?;
    let last = length(op, "steps", steps)?.saturating_sub(1).max(0);
    let step = match last {
        0 => 0.0,
        last => (end - start) / last as f64,
    };
    let places = Tensor::arange(0, length(op, "steps", steps)?, 1, device);
    let places = places.map_err(|e| e.named(op))?;
    let rising = places.to_dtype(wide)?.mul(step)?.add(start)?;
    let falling = places.rsub(last)?.to_dtype(wide)?.mul(step)?.rsub(end)?;
    places
        .lt(length(op, "steps", (steps / 2).max(1))?)?
        .select_from(&rising, &falling)
}
