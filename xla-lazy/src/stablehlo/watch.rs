//! Watching values: what `XLA_DEBUG=index` and `XLA_DEBUG=nan` add to operators as they are lowered.
//!
//! An operator's indices are watched where it is lowered. Of values only those inside of a loop's body
//! are watched here, which nothing but the loop can tell of: it carries what was seen in any iteration.

use super::func::{Compare, Func, Reduction, Value};
use std::panic::Location;
use xla_core::{DType, Result, Shape};

/// The operator of a loop's body that is being lowered, with the line that recorded it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Origin {
    pub(crate) op: &'static str,
    pub(crate) at: &'static Location<'static>,
}

/// Indices of one operator that are watched.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchedIndex {
    /// One that is out of range, as a scalar `i64`; the least there is where none is.
    pub(crate) value: Value,
    pub(crate) axis: usize,
    pub(crate) size: usize,
    /// Which operator, inside of a loop's body.
    pub(crate) inside: Option<Origin>,
}

/// The result of an operator inside of a loop's body.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchedValue {
    /// Whether it held a NaN while no operand did, as a scalar `bool`.
    pub(crate) made_nan: Value,
    pub(crate) inside: Origin,
}

/// What was watched and is not told yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Watched {
    pub(crate) indices: Vec<WatchedIndex>,
    pub(crate) values: Vec<WatchedValue>,
}

impl Watched {
    pub(crate) fn is_empty(&self) -> bool {
        self.indices.is_empty() && self.values.is_empty()
    }
}

/// What is watched, and what was.
#[derive(Debug, Default)]
pub(super) struct Watch {
    indices: bool,
    values: bool,
    seen: Watched,
    inside: Option<Origin>,
}

impl Watch {
    /// For a block of its own, of the same things.
    pub(super) fn of_block(&self) -> Watch {
        Watch {
            indices: self.indices,
            values: self.values,
            ..Watch::default()
        }
    }
}

impl Func {
    /// Has the program tell when one of these indices of an axis is not in `0..size`, if indices are
    /// watched. For an operator that is being lowered.
    pub fn watch_indices(&mut self, indices: Value, axis: usize, size: usize) {
        if !self.watch.indices || indices.shape().numel() == 0 {
            return;
        }
        let indices = self.convert(indices, DType::I64);
        let shape = indices.shape();
        let zero = self.constant_int(DType::I64, shape, 0);
        let limit = self.constant_int(DType::I64, shape, size as i64);
        let none = self.constant_int(DType::I64, shape, NONE);
        let below = self.compare(Compare::Lt, indices, zero);
        let above = self.compare(Compare::Ge, indices, limit);
        let outside = self.binary("or", below, above);
        let told = self.select(outside, indices, none);
        let all: Vec<usize> = (0..shape.rank()).collect();
        let value = self.reduce(Reduction::Max, told, &all);
        let value = self.reshape(value, &Shape::scalar());
        let inside = self.watch.inside;
        self.watch.seen.indices.push(WatchedIndex {
            value,
            axis,
            size,
            inside,
        });
    }

    /// Lowers an operator of a loop's body, and watches its result.
    ///
    /// # Errors
    /// Those of `lower`.
    pub(crate) fn watch_inside(
        &mut self,
        inside: Origin,
        operands: &[Value],
        lower: impl FnOnce(&mut Func) -> Result<Value>,
    ) -> Result<Value> {
        let outer = self.watch.inside.replace(inside);
        let lowered = lower(self);
        self.watch.inside = outer;
        let value = lowered?;
        if self.watch.values && value.dtype().is_float() {
            let made_nan = self.made_nan(value, operands);
            let seen = &mut self.watch.seen.values;
            seen.push(WatchedValue { made_nan, inside });
        }
        Ok(value)
    }

    fn made_nan(&mut self, value: Value, operands: &[Value]) -> Value {
        let mut made = self.has_nan(value);
        for operand in operands.iter().filter(|o| o.dtype().is_float()) {
            let given = self.has_nan(*operand);
            let not_given = self.unary("not", given);
            made = self.binary("and", made, not_given);
        }
        made
    }

    /// Whether an element is a NaN, as a scalar `bool`.
    pub(crate) fn has_nan(&mut self, x: Value) -> Value {
        let all: Vec<usize> = (0..x.shape().rank()).collect();
        let nan = self.compare(Compare::Ne, x, x);
        self.reduce(Reduction::Or, nan, &all)
    }

    /// Watches indices, values, or both from now on.
    pub(crate) fn begin_watching(&mut self, indices: bool, values: bool) {
        (self.watch.indices, self.watch.values) = (indices, values);
    }

    /// What was watched since the last call.
    pub(crate) fn take_watched(&mut self) -> Watched {
        std::mem::take(&mut self.watch.seen)
    }

    /// Whether a block may see something that is to be told.
    pub(super) fn is_watching(&self) -> bool {
        self.watch.indices || self.watch.values
    }

    /// Scalars in which a loop carries what its body sees, as they are before the first iteration.
    pub(super) fn unseen(&mut self, body: &Watched) -> Vec<Value> {
        let scalar = Shape::scalar();
        let indices = body.indices.len();
        let mut all: Vec<Value> = Vec::with_capacity(indices + body.values.len());
        all.extend((0..indices).map(|_| self.constant_int(DType::I64, &scalar, NONE)));
        let values = body.values.iter();
        all.extend(values.map(|_| self.constant(DType::Bool, &scalar, 0.0)));
        all
    }

    /// What was seen in earlier iterations with what is seen in this one, in the order of
    /// [`Func::unseen`].
    pub(super) fn seen_so_far(&mut self, before: &[Value], now: &Watched) -> Vec<Value> {
        let indices = now.indices.iter().map(|w| ("maximum", w.value));
        let values = now.values.iter().map(|w| ("or", w.made_nan));
        let pairs = before.iter().zip(indices.chain(values));
        pairs
            .map(|(before, (both, now))| self.binary(both, *before, now))
            .collect()
    }

    /// Tells what a loop has seen in all its iterations as what this block sees.
    pub(super) fn tell(&mut self, body: &Watched, seen: &[Value]) {
        let (indices, values) = seen.split_at(body.indices.len().min(seen.len()));
        let all = &mut self.watch.seen;
        let indices = body.indices.iter().zip(indices);
        all.indices
            .extend(indices.map(|(w, &value)| WatchedIndex { value, ..*w }));
        let values = body.values.iter().zip(values);
        all.values
            .extend(values.map(|(w, &made_nan)| WatchedValue { made_nan, ..*w }));
    }
}

/// No index that is out of range.
const NONE: i64 = i64::MIN;
