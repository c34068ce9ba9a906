//! Random orders and random choices by weight.

use super::distributions::exponential;
use super::threefry::{joined, threefry, uniform};
use super::{Generator, float_input, wide};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operator};
use crate::stablehlo::{Compare, Func, Reduction, Value, tensor_type};
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{DType, Dims, Error, Result, Shape};

/// The positions along the last axis in the order of the keys there.
fn order_by(f: &mut Func, keys: Value, descending: bool) -> Value {
    let last = keys.shape().rank() - 1;
    let positions = f.iota(DType::I64, keys.shape(), last);
    let scalar = |dtype| tensor_type(dtype, &Shape::scalar());
    let (key, position, bool) = (
        scalar(keys.dtype()),
        scalar(DType::I64),
        scalar(DType::Bool),
    );
    let direction = if descending { "GT" } else { "LT" };
    let sorted = f.call_many(
        format_args!(
            "\"stablehlo.sort\"({keys}, {positions}) <{{dimension = {last} : i64, is_stable = true}}> ({{ ^bb0(%a: {key}, %b: {key}, %c: {position}, %d: {position}): %r = stablehlo.compare {direction}, %a, %b : ({key}, {key}) -> {bool} stablehlo.return %r : {bool} }})"
        ),
        &[keys, positions],
        &[keys.ty(), positions.ty()],
    );
    sorted[1]
}

/// The numbers from 0 to `len` in a random order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RandPerm {
    len: usize,
    dtype: DType,
}

impl Operator for RandPerm {
    const NAME: &'static str = "randperm";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(ty(self.dtype, &Shape::new(&[self.len])))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (high, low) = threefry(f, inputs[0], self.len);
        let keys = joined(f, high, low);
        let order = order_by(f, keys, false);
        Ok(f.convert(order, out.dtype()))
    }
}

/// Positions along the last axis, drawn with its elements as weights.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Multinomial {
    samples: usize,
    replacement: bool,
}

impl Operator for Multinomial {
    const NAME: &'static str = "multinomial";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let weights = float_input(Self::NAME, inputs[1])?;
        let mut dims: Dims = weights.shape().dims().into();
        let Some(categories) = dims.last_mut().filter(|_| weights.rank() <= 2) else {
            return Err(Error::shape(
                Self::NAME,
                "weights of 1 or 2 axes",
                weights.shape(),
            ));
        };
        if *categories == 0 {
            return Err(Error::shape(
                Self::NAME,
                "at least one weight",
                weights.shape(),
            ));
        }
        if self.samples == 0 || !self.replacement && self.samples > *categories {
            let most = match self.replacement {
                true => String::new(),
                false => format!(" and at most {categories} without replacement"),
            };
            let expected = format!("a number above 0{most}");
            return Err(Error::argument(
                Self::NAME,
                "num_samples",
                expected,
                self.samples,
            ));
        }
        *categories = self.samples;
        Ok(ty(DType::I64, &Shape::from(dims)))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        if self.replacement {
            return Ok(with_replacement(f, inputs[0], inputs[1], out));
        }
        // The order of `weight / exponential` is one of drawing without putting back (Efraimidis and
        // Spirakis, 2006); an element of weight 0 comes last.
        let dtype = wide(inputs[1].dtype());
        let weights = f.convert(inputs[1], dtype);
        let shape = weights.shape();
        let waits = exponential(f, inputs[0], shape.numel(), dtype);
        let waits = f.reshape(waits, shape);
        let keys = f.binary("divide", weights, waits);
        let order = order_by(f, keys, true);
        let start = vec![0; out.rank()];
        Ok(f.slice(order, &start, out.shape().dims(), &vec![1; out.rank()]))
    }
}

/// By the inverse of the distribution: as many sums of the first weights as a uniform number
/// reaches. In `f64`, so that rounding hides no weight.
fn with_replacement(f: &mut Func, state: Value, weights: Value, out: Ty) -> Value {
    let categories = weights.shape().dims().last().copied().unwrap_or(1);
    let rows = weights.shape().numel() / categories;
    let samples = out.shape().numel() / rows.max(1);
    let table = Shape::new(&[rows, categories]);
    let cells = Shape::new(&[rows, samples, categories]);
    let weights = f.convert(weights, DType::F64);
    let mut sums = f.reshape(weights, &table);
    let mut reach = 1;
    while reach < categories {
        let zero = f.constant(DType::F64, &Shape::scalar(), 0.0);
        let kept = f.slice(sums, &[0, 0], &[rows, categories - reach], &[1, 1]);
        let moved = f.pad(kept, zero, &[0, reach as i64], &[0, 0], &[0, 0]);
        sums = f.binary("add", sums, moved);
        reach *= 2;
    }
    let total = f.slice(sums, &[0, categories - 1], &[rows, categories], &[1, 1]);
    let total = f.reshape(total, &Shape::new(&[rows]));
    let total = f.broadcast_in_dim(total, &cells, &[0]);
    let u = uniform(f, state, rows * samples, DType::F64);
    let u = f.reshape(u, &Shape::new(&[rows, samples]));
    let u = f.broadcast_in_dim(u, &cells, &[0, 1]);
    let sums = f.broadcast_in_dim(sums, &cells, &[0, 2]);
    let point = f.binary("multiply", u, total);
    let passed = f.compare(Compare::Le, sums, point);
    let passed = f.convert(passed, DType::I64);
    let position = f.reduce(Reduction::Sum, passed, &[2]);
    f.reshape(position, out.shape())
}

impl Generator {
    /// The whole numbers from 0 to `n` in a random order.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for `bool`.
    #[track_caller]
    pub fn randperm(&self, n: usize, dtype: DType) -> Result<Tensor> {
        let at = Location::caller();
        if dtype == DType::Bool {
            return Err(Error::dtype("randperm", "a dtype of numbers", dtype).at(at));
        }
        self.draw(RandPerm { len: n, dtype }, n, &[], at)
    }

    /// `num_samples` positions along the last axis of `weights`, drawn with probabilities in
    /// proportion to its elements; `i64`. The weights have 1 or 2 axes, are not negative and not all 0.
    ///
    /// Without replacement a position is drawn at most once; those of weight 0 come after all others.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`], [`Error::DTypeMismatch`] for weights that are no floats;
    /// [`Error::Argument`] for no samples, or more without replacement than there are weights.
    #[track_caller]
    pub fn multinomial(
        &self,
        weights: &Tensor,
        num_samples: usize,
        replacement: bool,
    ) -> Result<Tensor> {
        let op = Multinomial {
            samples: num_samples,
            replacement,
        };
        let count = match replacement {
            true => weights.numel().saturating_mul(num_samples),
            false => weights.numel(),
        };
        self.draw(op, count, &[weights.into()], Location::caller())
    }
}
