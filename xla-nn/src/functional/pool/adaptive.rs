//! Pooling to a given size.

use super::avg::{AvgPoolOptions, avg_pool};
use super::cast;
use super::max::{MaxPoolOptions, MaxPoolPick, max_pool};
use crate::functional::floating;
use crate::functional::resample::{Axis, Filter, resample};
use crate::functional::window::{LIMIT, PerAxis, batched};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result};
use xla_lazy::{Tensor, record_op};

/// The sizes that adaptive pooling gives the spatial axes: one for all, or one for each; the
/// input's where `None`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct OutputSize(Sizes);

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Sizes {
    All(PerAxis),
    Some(Vec<Option<usize>>),
}

impl<T: Into<PerAxis>> From<T> for OutputSize {
    fn from(sizes: T) -> Self {
        OutputSize(Sizes::All(sizes.into()))
    }
}

impl<const N: usize> From<[Option<usize>; N]> for OutputSize {
    fn from(sizes: [Option<usize>; N]) -> Self {
        OutputSize(Sizes::Some(sizes.into()))
    }
}

impl From<Vec<Option<usize>>> for OutputSize {
    fn from(sizes: Vec<Option<usize>>) -> Self {
        OutputSize(Sizes::Some(sizes))
    }
}

/// The sizes of the spatial axes, before and after.
fn sizes<const N: usize>(
    op: &'static str,
    input: &Tensor,
    size: &OutputSize,
) -> Result<(Dims, Dims)> {
    batched::<N>(op, input)?;
    let before = Dims::from(&input.dims()[input.rank() - N..]);
    if before.iter().any(|n| !(1..LIMIT).contains(n)) {
        let expected = format!(
            "an input with 1 to {} elements on each spatial axis",
            LIMIT - 1
        );
        return Err(Error::shape(op, expected, input.shape()));
    }
    let after = match &size.0 {
        Sizes::All(sizes) => sizes.resolve(op, "output_size", N, 0)?,
        Sizes::Some(sizes) => {
            let given: Vec<usize> = (0..N)
                .map(|i| sizes.get(i).copied().flatten().unwrap_or(before[i]))
                .collect();
            if sizes.len() != N {
                let expected = format!("{N} sizes");
                return Err(Error::argument(
                    op,
                    "output_size",
                    expected,
                    format!("{sizes:?}"),
                ));
            }
            PerAxis::from(given).resolve(op, "output_size", N, 0)?
        }
    };
    Ok((before, after))
}

/// The lengths of the parts, where all parts of each axis are equally long.
fn equal_parts(before: &[usize], after: &[usize]) -> Option<PerAxis> {
    let mut lengths = Vec::new();
    for (&n, &parts) in before.iter().zip(after) {
        if parts == 0 || n % parts != 0 {
            return None;
        }
        lengths.push(n / parts);
    }
    Some(lengths.into())
}

#[track_caller]
pub(in crate::functional) fn adaptive_avg<const N: usize>(
    op: &'static str,
    input: &Tensor,
    size: &OutputSize,
) -> Result<Tensor> {
    let input = &*cast::<N>(input)?;
    let (before, after) = sizes::<N>(op, input, size)?;
    floating(op, "an input", input)?;
    let first = input.rank() - N;
    if after.iter().all(|&n| n == 1) {
        let axes: Vec<i64> = (first..input.rank()).map(|i| i as i64).collect();
        return input.mean(axes.as_slice(), true);
    }
    if let Some(parts) = equal_parts(&before, &after) {
        return avg_pool::<N>(op, input, &parts, &AvgPoolOptions::default());
    }
    let mut y = input.clone();
    for i in 0..N {
        let axis = Axis {
            axis: first + i,
            input: before[i],
            output: after[i],
            filter: Filter::Area,
            align_corners: false,
            antialias: false,
            scale: None,
        };
        y = resample(&y, axis)?;
    }
    Ok(y)
}

/// `x` with the parts of each spatial axis one after the other, all as long as the longest: shorter
/// ones repeat their last element.
#[track_caller]
fn laid_out(x: &Tensor, before: &[usize], after: &[usize]) -> Result<(Tensor, PerAxis)> {
    let mut x = x.clone();
    let mut lengths = Vec::new();
    for (i, (&n, &parts)) in before.iter().zip(after).enumerate() {
        let start = |o: usize| o * n / parts;
        let end = |o: usize| ((o + 1) * n).div_ceil(parts);
        let longest = (0..parts).map(|o| end(o) - start(o)).max().unwrap_or(1);
        let places: Vec<i64> = (0..parts)
            .flat_map(|o| (0..longest).map(move |k| (o, k)))
            .map(|(o, k)| (start(o) + k).min(end(o) - 1) as i64)
            .collect();
        let axis = (x.rank() - before.len() + i) as i64;
        let places = Tensor::from_slice(&places, [places.len()], x.device())?;
        x = x.index_select(axis, &places)?;
        lengths.push(longest);
    }
    Ok((x, lengths.into()))
}

/// The largest elements and, if wanted, their places.
#[track_caller]
fn adaptive_max<const N: usize>(
    op: &'static str,
    input: &Tensor,
    size: &OutputSize,
    indices: bool,
) -> Result<(Tensor, Option<Tensor>)> {
    let input = &*cast::<N>(input)?;
    let (before, after) = sizes::<N>(op, input, size)?;
    let options = MaxPoolOptions::default();
    if after.contains(&0) {
        let mut dims = Dims::from(&input.dims()[..input.rank() - N]);
        dims.extend_from_slice(&after);
        let empty = |dtype: DType| Tensor::zeros(dims.as_slice(), (dtype, input.device()));
        let places = indices.then(|| empty(DType::I64)).transpose()?;
        return Ok((empty(input.dtype())?, places));
    }
    let (x, lengths) = match equal_parts(&before, &after) {
        Some(lengths) => (input.clone(), lengths),
        None => laid_out(input, &before, &after)?,
    };
    let (pooled, window) = max_pool::<N>(op, &x, &lengths, &options)?;
    if !indices {
        return Ok((pooled, None));
    }
    let count: usize = before.iter().product();
    let places = Tensor::arange(0, count as i64, 1, (DType::I64, input.device()))?;
    let mut places = places.reshape(before.as_slice())?;
    if equal_parts(&before, &after).is_none() {
        places = laid_out(&places, &before, &after)?.0;
    }
    let places = places.expand(x.shape())?;
    let picked = record_op(MaxPoolPick(window), &[(&x).into(), (&places).into()])?;
    Ok((pooled, Some(picked)))
}

macro_rules! adaptive_pools {
    ($($axes:literal $shape:literal: $avg:ident $max:ident $with_indices:ident;)*) => {$(
        #[doc = concat!("The means of as many parts of the spatial axes of `", $shape, "` as `output_size` says.")]
        ///
        /// Part `i` of `n` covers the elements from `floor(i * length / n)` to before
        /// `ceil((i + 1) * length / n)`. As in PyTorch, an input without the batch axis gives an
        /// output without it.
        ///
        /// # Errors
        /// [`Error::ShapeMismatch`] for another rank or an empty spatial axis; [`Error::Argument`]
        /// for a size that is negative; [`Error::DTypeMismatch`] for a dtype that is not
        /// floating-point.
        #[track_caller]
        pub fn $avg(input: &Tensor, output_size: impl Into<OutputSize>) -> Result<Tensor> {
            let here = Location::caller();
            adaptive_avg::<$axes>(stringify!($avg), input, &output_size.into())
                .map_err(|e| e.at(here))
        }

        #[doc = concat!("The largest elements of the parts that [`", stringify!($avg), "`] averages.")]
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($avg), "`]; integers are allowed, `bool` is not.")]
        #[track_caller]
        pub fn $max(input: &Tensor, output_size: impl Into<OutputSize>) -> Result<Tensor> {
            let here = Location::caller();
            adaptive_max::<$axes>(stringify!($max), input, &output_size.into(), false)
                .map(|(pooled, _)| pooled)
                .map_err(|e| e.at(here))
        }

        #[doc = concat!("[`", stringify!($max), "`] and, as `i64`, the places of the elements")]
        /// taken, in the flattened spatial axes of the input.
        ///
        /// # Errors
        #[doc = concat!("As [`", stringify!($max), "`].")]
        #[track_caller]
        pub fn $with_indices(
            input: &Tensor,
            output_size: impl Into<OutputSize>,
        ) -> Result<(Tensor, Tensor)> {
            let here = Location::caller();
            match adaptive_max::<$axes>(stringify!($max), input, &output_size.into(), true) {
                Ok((pooled, Some(places))) => Ok((pooled, places)),
                Ok(_) => Err(Error::Internal {
                    what: stringify!($with_indices),
                    expected: "places".into(),
                }),
                Err(e) => Err(e.at(here)),
            }
        }
    )*};
}

adaptive_pools! {
    1 "[batch, channels, length]":
        adaptive_avg_pool1d adaptive_max_pool1d adaptive_max_pool1d_with_indices;
    2 "[batch, channels, height, width]":
        adaptive_avg_pool2d adaptive_max_pool2d adaptive_max_pool2d_with_indices;
    3 "[batch, channels, depth, height, width]":
        adaptive_avg_pool3d adaptive_max_pool3d adaptive_max_pool3d_with_indices;
}
