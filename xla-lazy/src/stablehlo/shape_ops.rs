//! Operations that move, select and combine elements.

use super::func::{Func, Reduction, Value, join, text_of};
use crate::ty::ty;
use xla_core::{DType, Dims, Error, Result, Shape};

impl Func {
    /// `x` expanded to `shape` by NumPy's rule.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when it does not expand.
    pub fn broadcast_to(&mut self, x: Value, shape: &Shape) -> Result<Value> {
        if x.shape() == shape {
            return Ok(x);
        }
        if !x.shape().expands_to(shape) {
            return Err(Error::shape(
                "broadcast",
                format!("a shape that expands to {shape}"),
                x.shape(),
            ));
        }
        let offset = shape.rank() - x.shape().rank();
        let axes: Dims = (offset..shape.rank()).collect();
        Ok(self.broadcast_in_dim(x, shape, &axes))
    }

    /// `x` with its axis `i` at position `axes[i]` of `shape`; other axes repeat it.
    pub fn broadcast_in_dim(&mut self, x: Value, shape: &Shape, axes: &[usize]) -> Value {
        let out = ty(x.dtype(), shape);
        self.call(
            format_args!("stablehlo.broadcast_in_dim {x}, dims = {axes:?}"),
            &[x],
            out,
        )
    }

    /// The same elements, row-major, in another shape.
    pub fn reshape(&mut self, x: Value, shape: &Shape) -> Value {
        if x.shape() == shape {
            return x;
        }
        self.call(
            format_args!("stablehlo.reshape {x}"),
            &[x],
            ty(x.dtype(), shape),
        )
    }

    /// Axis `i` of the result is axis `permutation[i]` of `x`.
    pub fn transpose(&mut self, x: Value, permutation: &[usize]) -> Value {
        let dims: Dims = permutation.iter().map(|&i| x.shape()[i]).collect();
        let out = ty(x.dtype(), &Shape::from(dims));
        self.call(
            format_args!("stablehlo.transpose {x}, dims = {permutation:?}"),
            &[x],
            out,
        )
    }

    /// `x[start..limit by step]` on each axis.
    pub fn slice(&mut self, x: Value, start: &[usize], limit: &[usize], step: &[usize]) -> Value {
        let ranges = start.iter().zip(limit).zip(step);
        let dims: Dims = ranges
            .clone()
            .map(|((&s, &l), &by)| l.saturating_sub(s).div_ceil(by))
            .collect();
        let text = join(ranges.map(|((s, l), by)| format!("{s}:{l}:{by}")));
        let out = ty(x.dtype(), &Shape::from(dims));
        self.call(format_args!("stablehlo.slice {x} [{text}]"), &[x], out)
    }

    /// A window of `sizes` at scalar integer `starts`, one an axis; XLA clamps them.
    pub fn dynamic_slice(&mut self, x: Value, starts: &[Value], sizes: &[usize]) -> Value {
        let mut operands = vec![x];
        operands.extend(starts);
        let list = join(&operands);
        let out = ty(x.dtype(), &Shape::new(sizes));
        self.call(
            format_args!("stablehlo.dynamic_slice {list}, sizes = {sizes:?}"),
            &operands,
            out,
        )
    }

    /// `x` with the window at scalar integer `starts` replaced by `update`.
    pub fn dynamic_update_slice(&mut self, x: Value, update: Value, starts: &[Value]) -> Value {
        let mut operands = vec![x, update];
        operands.extend(starts);
        let list = join(&operands);
        self.call(
            format_args!("stablehlo.dynamic_update_slice {list}"),
            &operands,
            x.ty(),
        )
    }

    /// The operands one after the other along `axis`.
    pub fn concatenate(&mut self, inputs: &[Value], axis: usize) -> Value {
        let mut dims: Dims = inputs[0].shape().dims().into();
        dims[axis] = inputs.iter().map(|v| v.shape()[axis]).sum();
        let out = ty(inputs[0].dtype(), &Shape::from(dims));
        let list = join(inputs);
        self.call(
            format_args!("stablehlo.concatenate {list}, dim = {axis}"),
            inputs,
            out,
        )
    }

    /// `x` with `value` before, after and between its elements; negative edges crop.
    pub fn pad(
        &mut self,
        x: Value,
        value: Value,
        low: &[i64],
        high: &[i64],
        interior: &[i64],
    ) -> Value {
        let dims: Dims = (0..x.shape().rank())
            .map(|i| {
                let n = x.shape()[i] as i64;
                let inner = n + interior[i] * (n - 1).max(0);
                (inner + low[i] + high[i]).max(0) as usize
            })
            .collect();
        let out = ty(x.dtype(), &Shape::from(dims));
        self.call(
            format_args!(
                "stablehlo.pad {x}, {value}, low = {low:?}, high = {high:?}, interior = {interior:?}"
            ),
            &[x, value],
            out,
        )
    }

    /// The elements in reverse order along these axes.
    pub fn reverse(&mut self, x: Value, axes: &[usize]) -> Value {
        self.emit(
            format_args!("stablehlo.reverse {x}, dims = {axes:?}"),
            text_of(x.ty()),
            x.ty(),
        )
    }

    /// Position along `axis`.
    pub fn iota(&mut self, dtype: DType, shape: &Shape, axis: usize) -> Value {
        let out = ty(dtype, shape);
        self.emit(
            format_args!("stablehlo.iota dim = {axis}"),
            text_of(out),
            out,
        )
    }

    /// Combines `x` along `axes`, which vanish.
    pub fn reduce(&mut self, reduction: Reduction, x: Value, axes: &[usize]) -> Value {
        let init = self.identity(reduction, x.dtype());
        let dims: Dims = (0..x.shape().rank())
            .filter(|i| !axes.contains(i))
            .map(|i| x.shape()[i])
            .collect();
        let out = ty(x.dtype(), &Shape::from(dims));
        self.call(
            format_args!(
                "stablehlo.reduce({x} init: {init}) applies stablehlo.{} across dimensions = {axes:?}",
                reduction.mnemonic()
            ),
            &[x, init],
            out,
        )
    }

    /// Whole slices of `x` along `axis`, chosen by an integer array: the result's axes are those of
    /// `x` with `axis` replaced by the axes of `indices`. XLA clamps the indices.
    pub fn take(&mut self, x: Value, indices: Value, axis: usize) -> Value {
        let rank = x.shape().rank();
        let mut dims: Dims = x.shape()[..axis].into();
        dims.extend_from_slice(indices.shape().dims());
        dims.extend_from_slice(&x.shape()[axis + 1..]);
        let offsets: Dims = (0..axis)
            .chain(axis + indices.shape().rank()..dims.len())
            .collect();
        let mut sizes: Dims = x.shape().dims().into();
        sizes[axis] = 1;
        debug_assert_eq!(offsets.len(), rank - 1);
        let out = ty(x.dtype(), &Shape::from(dims));
        let sizes = join(sizes.iter());
        self.call(
            format_args!(
                "\"stablehlo.gather\"({x}, {indices}) <{{dimension_numbers = #stablehlo.gather<offset_dims = {offsets:?}, collapsed_slice_dims = [{axis}], start_index_map = [{axis}], index_vector_dim = {}>, indices_are_sorted = false, slice_sizes = array<i64: {sizes}>}}>",
                indices.shape().rank()
            ),
            &[x, indices],
            out,
        )
    }

    /// `x` with each slice of `updates` combined into the place along `axis` that `indices` names;
    /// the inverse of [`Func::take`]. An index out of range is dropped.
    pub fn scatter_slices(
        &mut self,
        reduction: Option<Reduction>,
        x: Value,
        indices: Value,
        updates: Value,
        axis: usize,
    ) -> Value {
        let rank = updates.shape().rank();
        let windows: Dims = (0..axis)
            .chain(axis + indices.shape().rank()..rank)
            .collect();
        let numbers = format!(
            "update_window_dims = {windows:?}, inserted_window_dims = [{axis}], scatter_dims_to_operand_dims = [{axis}], index_vector_dim = {}",
            indices.shape().rank()
        );
        self.scatter(reduction, x, indices, updates, &numbers)
    }

    /// `stablehlo.scatter` with these dimension numbers; without a reduction the update replaces.
    pub fn scatter(
        &mut self,
        reduction: Option<Reduction>,
        x: Value,
        indices: Value,
        updates: Value,
        numbers: &str,
    ) -> Value {
        let element = text_of(ty(x.dtype(), &Shape::scalar()));
        let body = match reduction {
            Some(r) => format!(
                "%r = stablehlo.{} %a, %b : {element} stablehlo.return %r : {element}",
                r.mnemonic()
            ),
            None => format!("stablehlo.return %b : {element}"),
        };
        self.call(
            format_args!(
                "\"stablehlo.scatter\"({x}, {indices}, {updates}) <{{scatter_dimension_numbers = #stablehlo.scatter<{numbers}>, indices_are_sorted = false, unique_indices = false}}> ({{ ^bb0(%a: {element}, %b: {element}): {body} }})"
            ),
            &[x, indices, updates],
            x.ty(),
        )
    }
}
