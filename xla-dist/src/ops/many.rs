//! Many tensors by few collectives.

use super::separate::separate;
use super::{AllReduceOptions, ReduceOp, all_gather, reduce_scatter::part_of};
use crate::group::{ProcessGroup, fresh};
use std::panic::Location;
use xla_core::{DType, Error, Result};
use xla_lazy::{Tensor, recorded_by};

/// Bytes in a MiB.
const MIB: f64 = 1024.0 * 1024.0;

/// The tensors' positions in buckets: of one dtype and not larger than the cap, in the order given,
/// except that a tensor larger than the cap has a bucket of its own.
fn buckets(op: &'static str, tensors: &[&Tensor], cap_mb: Option<f64>) -> Result<Vec<Vec<usize>>> {
    let cap = match cap_mb {
        None => f64::INFINITY,
        Some(cap) if cap >= 0.0 => cap * MIB,
        Some(cap) => {
            let expected = "a size in MiB that is not negative";
            return Err(Error::argument(op, "bucket_cap_mb", expected, cap));
        }
    };
    let mut buckets = Vec::new();
    for dtype in DType::ALL {
        let (mut bucket, mut bytes) = (Vec::new(), 0.0);
        for (i, tensor) in tensors.iter().enumerate() {
            if tensor.dtype() != dtype {
                continue;
            }
            let size = tensor.numel() as f64 * dtype.size() as f64;
            if !bucket.is_empty() && bytes + size > cap {
                buckets.push(std::mem::take(&mut bucket));
                bytes = 0.0;
            }
            bucket.push(i);
            bytes += size;
        }
        if !bucket.is_empty() {
            buckets.push(bucket);
        }
    }
    Ok(buckets)
}

/// The tensors, each with `rows` rows, side by side.
fn joined(tensors: &[&Tensor], bucket: &[usize], rows: usize) -> Result<Tensor> {
    let mut parts = Vec::with_capacity(bucket.len());
    for &i in bucket {
        let columns = tensors[i].numel() / rows.max(1);
        parts.push(separate(&tensors[i].reshape([rows, columns])?)?);
    }
    Tensor::cat(&parts.iter().collect::<Vec<_>>(), 1)
}

/// Takes `bucket`, what became of [`joined`], apart: the result of tensor `i` has the shape
/// `shape(i)`.
fn parted(
    whole: &Tensor,
    bucket: &[usize],
    results: &mut [Option<Tensor>],
    shape: impl Fn(usize) -> Vec<usize>,
) -> Result<()> {
    let rows = whole.dims()[0].max(1);
    let mut start = 0;
    for &i in bucket {
        let dims = shape(i);
        let columns = dims.iter().product::<usize>() / rows;
        let part = whole.narrow(1, start, columns)?;
        start += columns as i64;
        results[i] = Some(part.reshape(dims)?);
    }
    Ok(())
}

/// The results of a collective that keeps shapes, called once a bucket.
fn by_bucket(
    tensors: &[&Tensor],
    buckets: Vec<Vec<usize>>,
    collective: impl Fn(&Tensor) -> Result<Tensor>,
) -> Result<Vec<Tensor>> {
    let mut results: Vec<Option<Tensor>> = vec![None; tensors.len()];
    for bucket in buckets {
        if let [only] = bucket[..] {
            results[only] = Some(collective(tensors[only])?);
            continue;
        }
        let whole = collective(&joined(tensors, &bucket, 1)?)?;
        let shape = |i: usize| tensors[i].dims().to_vec();
        parted(&whole, &bucket, &mut results, shape)?;
    }
    Ok(results.into_iter().flatten().collect())
}

impl ProcessGroup {
    /// [`ProcessGroup::all_reduce`] of many tensors by one collective for each dtype among them.
    /// The results are in the order given.
    ///
    /// The results are views of one flat tensor a dtype: writing to one in place does not copy the
    /// others.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`].
    #[track_caller]
    pub fn all_reduce_many(
        &self,
        tensors: &[&Tensor],
        options: impl Into<AllReduceOptions>,
    ) -> Result<Vec<Tensor>> {
        let options = options.into();
        recorded_by(Location::caller(), || {
            self.reduced_many("all_reduce_many", tensors, options, None)
        })
    }

    /// [`ProcessGroup::all_reduce_many`] by collectives of at most `bucket_cap_mb` MiB each, so that
    /// the first are under way while what the later ones reduce is still computed. With 0 every
    /// tensor travels by itself.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`]; [`Error::Argument`] for a size that is negative or not a
    /// number.
    #[track_caller]
    pub fn all_reduce_bucketed(
        &self,
        tensors: &[&Tensor],
        options: impl Into<AllReduceOptions>,
        bucket_cap_mb: f64,
    ) -> Result<Vec<Tensor>> {
        let options = options.into();
        recorded_by(Location::caller(), || {
            self.reduced_many("all_reduce_bucketed", tensors, options, Some(bucket_cap_mb))
        })
    }

    fn reduced_many(
        &self,
        op: &'static str,
        tensors: &[&Tensor],
        options: AllReduceOptions,
        cap_mb: Option<f64>,
    ) -> Result<Vec<Tensor>> {
        self.members(op, tensors.iter().copied())?;
        by_bucket(tensors, buckets(op, tensors, cap_mb)?, |tensor| {
            self.reduced(tensor, options)
        })
    }

    /// [`ProcessGroup::broadcast`] of many tensors by one collective for each dtype among them. The
    /// results are in the order given.
    ///
    /// # Errors
    /// As [`ProcessGroup::broadcast`].
    #[track_caller]
    pub fn broadcast_many(&self, tensors: &[&Tensor], source: usize) -> Result<Vec<Tensor>> {
        recorded_by(Location::caller(), || {
            self.received_many("broadcast_many", tensors, source, None)
        })
    }

    /// [`ProcessGroup::broadcast_many`] by collectives of at most `bucket_cap_mb` MiB each; with 0
    /// every tensor travels by itself.
    ///
    /// # Errors
    /// As [`ProcessGroup::broadcast`]; [`Error::Argument`] for a size that is negative or not a
    /// number.
    #[track_caller]
    pub fn broadcast_bucketed(
        &self,
        tensors: &[&Tensor],
        source: usize,
        bucket_cap_mb: f64,
    ) -> Result<Vec<Tensor>> {
        recorded_by(Location::caller(), || {
            self.received_many("broadcast_bucketed", tensors, source, Some(bucket_cap_mb))
        })
    }

    fn received_many(
        &self,
        op: &'static str,
        tensors: &[&Tensor],
        source: usize,
        cap_mb: Option<f64>,
    ) -> Result<Vec<Tensor>> {
        self.members(op, tensors.iter().copied())?;
        self.position_of(op, "source", source)?;
        by_bucket(tensors, buckets(op, tensors, cap_mb)?, |tensor| {
            self.received(tensor, source)
        })
    }

    /// [`ProcessGroup::all_gather_into_tensor`] along the first axis of many tensors, by one
    /// collective for each dtype among them. The results are in the order given.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather_into_tensor`].
    #[track_caller]
    pub fn all_gather_many(&self, tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
        recorded_by(Location::caller(), || {
            self.gathered_many("all_gather_many", tensors, None)
        })
    }

    /// [`ProcessGroup::all_gather_many`] by collectives that each send at most `bucket_cap_mb` MiB;
    /// with 0 every tensor travels by itself.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_gather_into_tensor`]; [`Error::Argument`] for a size that is negative
    /// or not a number.
    #[track_caller]
    pub fn all_gather_bucketed(
        &self,
        tensors: &[&Tensor],
        bucket_cap_mb: f64,
    ) -> Result<Vec<Tensor>> {
        recorded_by(Location::caller(), || {
            self.gathered_many("all_gather_bucketed", tensors, Some(bucket_cap_mb))
        })
    }

    fn gathered_many(
        &self,
        op: &'static str,
        tensors: &[&Tensor],
        cap_mb: Option<f64>,
    ) -> Result<Vec<Tensor>> {
        let members = self.members(op, tensors.iter().copied())?;
        let buckets = buckets(op, tensors, cap_mb)?;
        for tensor in tensors {
            tensor.shape().axis(op, 0)?;
        }
        let Some(members) = members else {
            return tensors.iter().map(|tensor| fresh(tensor)).collect();
        };
        let mut results: Vec<Option<Tensor>> = vec![None; tensors.len()];
        for bucket in buckets {
            let whole = all_gather::record(members, &joined(tensors, &bucket, 1)?, 0)?;
            parted(&whole, &bucket, &mut results, |i| {
                let mut dims = tensors[i].dims().to_vec();
                dims[0] *= self.size();
                dims
            })?;
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// [`ProcessGroup::reduce_scatter_tensor`] along the first axis of many tensors, by one
    /// collective for each dtype among them. The results are in the order given.
    ///
    /// # Errors
    /// As [`ProcessGroup::reduce_scatter_tensor`].
    #[track_caller]
    pub fn reduce_scatter_many(
        &self,
        tensors: &[&Tensor],
        options: impl Into<AllReduceOptions>,
    ) -> Result<Vec<Tensor>> {
        let options = options.into();
        recorded_by(Location::caller(), || {
            self.scattered_many("reduce_scatter_many", tensors, options, None)
        })
    }

    /// [`ProcessGroup::reduce_scatter_many`] by collectives of at most `bucket_cap_mb` MiB each;
    /// with 0 every tensor travels by itself.
    ///
    /// # Errors
    /// As [`ProcessGroup::reduce_scatter_tensor`]; [`Error::Argument`] for a size that is negative
    /// or not a number.
    #[track_caller]
    pub fn reduce_scatter_bucketed(
        &self,
        tensors: &[&Tensor],
        options: impl Into<AllReduceOptions>,
        bucket_cap_mb: f64,
    ) -> Result<Vec<Tensor>> {
        let options = options.into();
        recorded_by(Location::caller(), || {
            let op = "reduce_scatter_bucketed";
            self.scattered_many(op, tensors, options, Some(bucket_cap_mb))
        })
    }

    fn scattered_many(
        &self,
        op: &'static str,
        tensors: &[&Tensor],
        options: AllReduceOptions,
        cap_mb: Option<f64>,
    ) -> Result<Vec<Tensor>> {
        self.members(op, tensors.iter().copied())?;
        let size = self.size();
        for tensor in tensors {
            let axis = tensor.shape().axis(op, 0)?;
            part_of(op, tensor.shape(), axis, size)?;
        }
        let mut results: Vec<Option<Tensor>> = vec![None; tensors.len()];
        for bucket in buckets(op, tensors, cap_mb)? {
            let whole = self.scattered(&joined(tensors, &bucket, size)?, 0, options)?;
            parted(&whole, &bucket, &mut results, |i| {
                let mut dims = tensors[i].dims().to_vec();
                dims[0] /= size;
                dims
            })?;
        }
        Ok(results.into_iter().flatten().collect())
    }

    /// Waits until every member has come here and everything recorded before is computed.
    ///
    /// # Errors
    /// As [`ProcessGroup::all_reduce`], and the error of an earlier step that failed.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        recorded_by(Location::caller(), || {
            let token = Tensor::zeros((), (DType::I32, self.device()))?;
            // Held until the sync, so that it is a value somebody needs.
            let _all = self.reduced(&token, ReduceOp::Sum.into())?;
            xla_lazy::sync()?.wait()
        })
    }
}
