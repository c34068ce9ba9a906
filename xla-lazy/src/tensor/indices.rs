//! What is known on the host of the integers in a tensor, and the refusal of indices by it.

use super::Tensor;
use crate::compiled;
use crate::storage::Value;
use crate::trace;
use std::panic::Location;
use xla_core::{DType, Error, Result, Site};
use xla_runtime::metrics;

impl Tensor {
    /// Smallest and largest element, where they are known because the value came from the host and
    /// was only viewed or widened since.
    pub fn index_range(&self) -> Option<(i64, i64)> {
        let range = self.index_range_unnoted();
        if compiled::is_active() {
            // What is made of it may be part of the program.
            let same = move |tensor: &Tensor| Ok(tensor.index_range_unnoted() == range);
            compiled::check(self, same).ok()?;
        }
        range
    }

    /// Applies `rule` to [`Tensor::index_range`], for an operator that refuses indices but records
    /// the same program for all others. In a compiled function the rule is applied at each call.
    ///
    /// # Errors
    /// Those of `rule`.
    pub fn check_index_range(
        &self,
        rule: impl Fn(Option<(i64, i64)>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let rule = move |tensor: &Tensor| rule(tensor.index_range_unnoted()).map(|()| true);
        compiled::check(self, rule).map(drop)
    }

    pub(crate) fn index_range_unnoted(&self) -> Option<(i64, i64)> {
        let contents = self.storage.lock();
        let range = contents.range?;
        if self.shows_every_element() {
            return Some(range);
        }
        // A part need not hold the extremes of the whole.
        let Value::Ready(value) = &contents.value else {
            return None;
        };
        let value = value.clone();
        drop(contents);
        let whole = value.to_literal().ok()?.cast(DType::I64);
        self.view.as_ref()?.range_in(whole.as_slice().ok()?)
    }

    /// Whether no view in the chain leaves elements out.
    pub(crate) fn shows_every_element(&self) -> bool {
        let total = self.storage.ty().shape().numel();
        let mut view = self.view.as_deref();
        while let Some(step) = view {
            if step.ty.shape().numel() != total {
                return false;
            }
            view = step.parent.as_deref();
        }
        true
    }

    /// An error if an index that came from the host is outside `-size..size` (or `0..size` where
    /// negative ones have no meaning); otherwise whether all are known to be within.
    #[track_caller]
    pub(crate) fn check_indices(
        &self,
        op: &'static str,
        axis: usize,
        size: usize,
        negative: bool,
    ) -> Result<bool> {
        compiled::check(self, move |indices| {
            indices.indices_within(op, axis, size, negative)
        })
    }

    fn indices_within(
        &self,
        op: &'static str,
        axis: usize,
        size: usize,
        negative: bool,
    ) -> Result<bool> {
        let limit = i64::try_from(size).unwrap_or(i64::MAX);
        let floor = if negative { -limit } else { 0 };
        let outside = |(low, high): (i64, i64)| match (low < floor, high >= limit) {
            (true, _) => Some(low),
            (_, true) => Some(high),
            _ => None,
        };
        let Some(whole) = self.storage.lock().range else {
            return Ok(false);
        };
        // Where the whole is within, so is any part of it.
        if self.numel() == 0 || outside(whole).is_none() {
            return Ok(true);
        }
        let _attributed = metrics::attribute(op, trace::recorder(Location::caller()));
        let Some(range) = self.index_range_unnoted() else {
            return Ok(false);
        };
        match outside(range) {
            None => Ok(true),
            Some(index) => Err(Error::IndexOutOfRange {
                op,
                index,
                axis,
                size,
                at: Site::NONE,
            }),
        }
    }
}
