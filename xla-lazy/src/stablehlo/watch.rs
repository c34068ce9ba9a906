//! Watching indices: what `XLA_DEBUG=index` adds to a program.

use super::func::{Compare, Func, Reduction, Value};
use xla_core::{DType, Shape};

/// Indices of one operator that are watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchedIndex {
    /// One that is out of range, as a scalar `i64`; the least there is where none is.
    pub(crate) value: Value,
    pub(crate) axis: usize,
    pub(crate) size: usize,
}

impl Func {
    /// Has the program tell when one of these indices of an axis is not in `0..size`, if indices are
    /// watched. For an operator that is being lowered; what a loop's body watches is not told.
    pub fn watch_indices(&mut self, indices: Value, axis: usize, size: usize) {
        if self.watched.is_none() || indices.shape().numel() == 0 {
            return;
        }
        let indices = self.convert(indices, DType::I64);
        let shape = indices.shape();
        let zero = self.constant_int(DType::I64, shape, 0);
        let limit = self.constant_int(DType::I64, shape, size as i64);
        let none = self.constant_int(DType::I64, shape, i64::MIN);
        let below = self.compare(Compare::Lt, indices, zero);
        let above = self.compare(Compare::Ge, indices, limit);
        let outside = self.binary("or", below, above);
        let told = self.select(outside, indices, none);
        let all: Vec<usize> = (0..shape.rank()).collect();
        let value = self.reduce(Reduction::Max, told, &all);
        let value = self.reshape(value, &Shape::scalar());
        if let Some(watched) = &mut self.watched {
            watched.push(WatchedIndex { value, axis, size });
        }
    }

    /// Watches indices from now on.
    pub(crate) fn begin_watching(&mut self) {
        self.watched = Some(Vec::new());
    }

    /// What was watched since the last call.
    pub(crate) fn take_watched(&mut self) -> Vec<WatchedIndex> {
        self.watched
            .as_mut()
            .map(std::mem::take)
            .unwrap_or_default()
    }
}
