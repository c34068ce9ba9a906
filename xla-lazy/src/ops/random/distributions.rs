//! Distributions of single numbers, and the generator's methods that draw from them.

use super::threefry::{joined, threefry, uniform};
use super::{Generator, flat, float_input, float_only, wide, within};
use crate::Tensor;
use crate::op::{Derivative, InputType, Number, Operand, Operator};
use crate::stablehlo::{Compare, Func, Value};
use crate::ty::{Ty, ty};
use std::panic::Location;
use xla_core::{DType, Error, IntoShape, Result, Shape};

/// What `draw` makes of inputs and a length, as the operator's result. A model's parameters are many
/// draws of few lengths, which share their functions so.
fn vector(
    f: &mut Func,
    name: &str,
    inputs: &[Value],
    out: Ty,
    draw: impl FnOnce(&mut Func, &[Value], usize) -> Result<Value>,
) -> Result<Value> {
    let count = out.shape().numel();
    let values = f.outlined(name, inputs, |f, inputs| {
        let values = draw(f, inputs, count)?;
        Ok(f.convert(values, out.dtype()))
    })?;
    Ok(f.reshape(values, out.shape()))
}

/// Uniform numbers in `[0, 1)`, or between two numbers after the state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Uniform {
    dtype: DType,
    shape: Shape,
}

impl Operator for Uniform {
    const NAME: &'static str = "rand";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        float_only(Self::NAME, self.dtype)?;
        Ok(ty(self.dtype, &self.shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        vector(f, Self::NAME, inputs, out, |f, inputs, count| {
            let &[state, low, high] = inputs else {
                return Ok(uniform(f, inputs[0], count, out.dtype()));
            };
            let dtype = wide(out.dtype());
            let shape = Shape::new(&[count]);
            let u = uniform(f, state, count, dtype);
            let low = flat(f, low, dtype, &shape)?;
            let high = flat(f, high, dtype, &shape)?;
            let range = f.binary("subtract", high, low);
            let scaled = f.binary("multiply", u, range);
            Ok(f.binary("add", scaled, low))
        })
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Normal {
    dtype: DType,
    shape: Shape,
}

impl Operator for Normal {
    const NAME: &'static str = "randn";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        float_only(Self::NAME, self.dtype)?;
        Ok(ty(self.dtype, &self.shape))
    }

    /// The inverse of the normal distribution: `sqrt(2) * erfinv(u)`, `u` uniform in (-1, 1).
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let wide = wide(out.dtype());
        vector(f, Self::NAME, inputs, out, |f, inputs, count| {
            let shape = Shape::new(&[count]);
            let u = uniform(f, inputs[0], count, wide);
            // Half a step up, so that neither end is reached.
            let half = if wide == DType::F64 {
                (-53f64).exp2()
            } else {
                (-24f64).exp2()
            };
            let two = f.constant(wide, &shape, 2.0);
            let start = f.constant(wide, &shape, half - 1.0);
            let doubled = f.binary("multiply", u, two);
            let symmetric = f.binary("add", doubled, start);
            let inverse = f.chlo_unary("erf_inv", symmetric);
            let scale = f.constant(wide, &shape, std::f64::consts::SQRT_2);
            Ok(f.binary("multiply", inverse, scale))
        })
    }
}

/// Normal numbers within bounds; after the state come mean, standard deviation and the bounds.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct TruncNormal {
    dtype: DType,
    shape: Shape,
}

impl Operator for TruncNormal {
    const NAME: &'static str = "trunc_normal";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        float_only(Self::NAME, self.dtype)?;
        Ok(ty(self.dtype, &self.shape))
    }

    /// The inverse of the distribution, at uniform numbers between its values at the bounds.
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let dtype = wide(out.dtype());
        vector(f, Self::NAME, inputs, out, |f, inputs, count| {
            let shape = Shape::new(&[count]);
            let u = uniform(f, inputs[0], count, dtype);
            let mut operands = [u; 4];
            for (operand, &input) in operands.iter_mut().zip(&inputs[1..]) {
                *operand = flat(f, input, dtype, &shape)?;
            }
            let [mean, std, low, high] = operands;
            let root = f.constant(dtype, &shape, std::f64::consts::SQRT_2);
            let scale = f.binary("multiply", std, root);
            let at = |f: &mut Func, bound: Value| {
                let distance = f.binary("subtract", bound, mean);
                let scaled = f.binary("divide", distance, scale);
                f.chlo_unary("erf", scaled)
            };
            let (first, last) = (at(f, low), at(f, high));
            let range = f.binary("subtract", last, first);
            let point = f.binary("multiply", u, range);
            let point = f.binary("add", first, point);
            let inverse = f.chlo_unary("erf_inv", point);
            let scaled = f.binary("multiply", inverse, scale);
            let value = f.binary("add", scaled, mean);
            // Where the tail is thinner than rounding the inverse is infinite.
            let value = f.binary("maximum", value, low);
            Ok(f.binary("minimum", value, high))
        })
    }
}

/// Exponential numbers of the rate after the state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Exponential {
    dtype: DType,
    shape: Shape,
}

impl Operator for Exponential {
    const NAME: &'static str = "exponential";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        float_only(Self::NAME, self.dtype)?;
        Ok(ty(self.dtype, &self.shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let dtype = wide(out.dtype());
        let values = exponential(f, inputs[0], out.shape().numel(), dtype);
        let rate = flat(f, inputs[1], dtype, out.shape())?;
        let values = f.binary("divide", values, rate);
        let values = f.convert(values, out.dtype());
        Ok(f.reshape(values, out.shape()))
    }
}

/// `-log(1 - u)`, never 0: numbers of the exponential distribution of rate 1, of rank 1.
pub(super) fn exponential(f: &mut Func, state: Value, count: usize, dtype: DType) -> Value {
    let u = uniform(f, state, count, dtype);
    let negative = f.unary("negate", u);
    let log = f.unary("log_plus_one", negative);
    let values = f.unary("negate", log);
    let least = f.constant(dtype, u.shape(), (-26f64).exp2());
    f.binary("maximum", values, least)
}

/// Whether a uniform number is below the probability after the state.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Bernoulli {
    dtype: DType,
    shape: Shape,
}

impl Operator for Bernoulli {
    const NAME: &'static str = "bernoulli";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        if let InputType::Tensor(_) = inputs[1] {
            let p = float_input(Self::NAME, inputs[1])?;
            if !p.shape().expands_to(&self.shape) {
                let expected = format!("probabilities that broadcast to {}", self.shape);
                return Err(Error::shape(Self::NAME, expected, p.shape()));
            }
        }
        Ok(ty(self.dtype, &self.shape))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let dtype = wide(inputs[1].dtype());
        let u = uniform(f, inputs[0], out.shape().numel(), dtype);
        let p = flat(f, inputs[1], dtype, out.shape())?;
        let hit = f.compare(Compare::Lt, u, p);
        let hit = f.convert(hit, out.dtype());
        Ok(f.reshape(hit, out.shape()))
    }
}

/// Whole numbers from the first number after the state up to, without, the second.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct RandInt {
    dtype: DType,
    shape: Shape,
}

impl Operator for RandInt {
    const NAME: &'static str = "randint";
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, _: &[InputType]) -> Result<Ty> {
        Ok(ty(self.dtype, &self.shape))
    }

    /// The remainder of 64 random bits, computed without sign: a range may be as long as 2^63.
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let (high, low) = threefry(f, inputs[0], out.shape().numel());
        let bits = joined(f, high, low);
        let first = flat(f, inputs[1], DType::U64, out.shape())?;
        let end = flat(f, inputs[2], DType::U64, out.shape())?;
        let range = f.binary("subtract", end, first);
        let offset = f.binary("remainder", bits, range);
        let value = f.binary("add", first, offset);
        let value = f.convert(value, DType::I64);
        let value = f.convert(value, out.dtype());
        Ok(f.reshape(value, out.shape()))
    }
}

/// An error unless every whole number of `low..=last` is one of the dtype.
fn holds(op: &'static str, dtype: DType, low: i64, last: i64) -> Result<()> {
    let (least, greatest) = match dtype {
        DType::Bool => (0, 1),
        DType::F16 => (-2048, 2048),
        DType::BF16 => (-256, 256),
        DType::F32 => (-(1 << 24), 1 << 24),
        DType::F64 => (-(1 << 53), 1 << 53),
        _ => integer_bounds(dtype),
    };
    if least <= low && last <= greatest {
        return Ok(());
    }
    let expected = format!("bounds within {least}..={greatest}, which {dtype} holds");
    Err(Error::argument(
        op,
        "low, high",
        expected,
        format!("{low}..={last}"),
    ))
}

/// Smallest and largest value of an integer dtype, as far as `i64` reaches.
fn integer_bounds(dtype: DType) -> (i64, i64) {
    let bits = 8 * dtype.size() as u32 - u32::from(dtype.is_signed());
    let greatest = 1i64
        .checked_shl(bits)
        .map_or(i64::MAX, |n| n.wrapping_sub(1));
    (if dtype.is_signed() { -greatest - 1 } else { 0 }, greatest)
}

impl Generator {
    /// Uniform numbers in `[0, 1)`.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for a dtype that is not floating-point, [`Error::Argument`] for a
    /// negative length.
    #[track_caller]
    pub fn rand(&self, shape: impl IntoShape, dtype: DType) -> Result<Tensor> {
        let at = Location::caller();
        let shape = shape.into_shape("rand").map_err(|e| e.at(at))?;
        let count = shape.numel();
        self.draw(Uniform { dtype, shape }, count, &[], at)
    }

    /// Uniform numbers in `[low, high)`; the bounds are data.
    ///
    /// # Errors
    /// [`Error::Argument`] for bounds in the wrong order or not finite; otherwise as
    /// [`Generator::rand`].
    #[track_caller]
    pub fn uniform(
        &self,
        low: impl Into<Number>,
        high: impl Into<Number>,
        shape: impl IntoShape,
        dtype: DType,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let (low, high) = (low.into(), high.into());
        let shape = shape.into_shape("uniform").map_err(|e| e.at(at))?;
        if !(high.to_f64() - low.to_f64()).is_finite() || low.to_f64() > high.to_f64() {
            let expected = "finite bounds, low at most high";
            let got = format!("{}, {}", low.to_f64(), high.to_f64());
            return Err(Error::argument("uniform", "low, high", expected, got).at(at));
        }
        let count = shape.numel();
        let bounds = [
            Operand::Number(Number::Float(low.to_f64())),
            Operand::Number(Number::Float(high.to_f64())),
        ];
        self.draw(Uniform { dtype, shape }, count, &bounds, at)
    }

    /// Numbers of the standard normal distribution.
    ///
    /// # Errors
    /// As [`Generator::rand`].
    #[track_caller]
    pub fn randn(&self, shape: impl IntoShape, dtype: DType) -> Result<Tensor> {
        let at = Location::caller();
        let shape = shape.into_shape("randn").map_err(|e| e.at(at))?;
        let count = shape.numel();
        self.draw(Normal { dtype, shape }, count, &[], at)
    }

    /// Numbers of the normal distribution of this mean and standard deviation restricted to the bounds
    /// after them; all four are data.
    ///
    /// # Errors
    /// [`Error::Argument`] for a standard deviation that is not above 0 and for bounds in the wrong order
    /// or not finite; otherwise as [`Generator::rand`].
    #[track_caller]
    pub fn trunc_normal(
        &self,
        [mean, std, low, high]: [Number; 4],
        shape: impl IntoShape,
        dtype: DType,
    ) -> Result<Tensor> {
        const OP: &str = "trunc_normal";
        let at = Location::caller();
        let shape = shape.into_shape(OP).map_err(|e| e.at(at))?;
        within(OP, "mean", mean, f64::MIN, f64::MAX).map_err(|e| e.at(at))?;
        within(OP, "std", std, f64::MIN_POSITIVE, f64::MAX).map_err(|e| e.at(at))?;
        within(OP, "a", low, f64::MIN, f64::MAX).map_err(|e| e.at(at))?;
        within(OP, "b", high, low.to_f64(), f64::MAX).map_err(|e| e.at(at))?;
        let count = shape.numel();
        let float = |n: Number| Operand::Number(Number::Float(n.to_f64()));
        let operands = [mean, std, low, high].map(float);
        self.draw(TruncNormal { dtype, shape }, count, &operands, at)
    }

    /// Numbers of the exponential distribution `rate exp(-rate x)`; the rate is data.
    ///
    /// # Errors
    /// [`Error::Argument`] unless the rate is above 0; otherwise as [`Generator::rand`].
    #[track_caller]
    pub fn exponential(
        &self,
        rate: impl Into<Number>,
        shape: impl IntoShape,
        dtype: DType,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let rate = rate.into();
        let shape = shape.into_shape("exponential").map_err(|e| e.at(at))?;
        within("exponential", "lambd", rate, f64::MIN_POSITIVE, f64::MAX).map_err(|e| e.at(at))?;
        let count = shape.numel();
        self.draw(Exponential { dtype, shape }, count, &[rate.into()], at)
    }

    /// 1 with probability `p`, else 0, in any dtype. `p`, a number or a tensor that broadcasts to the
    /// shape, is data.
    ///
    /// # Errors
    /// [`Error::Argument`] for a number outside 0 to 1, [`Error::ShapeMismatch`],
    /// [`Error::DTypeMismatch`] for probabilities that are no floats. A probability outside 0 to 1 in
    /// a tensor counts as the nearer of the two.
    #[track_caller]
    pub fn bernoulli<'a>(
        &self,
        p: impl Into<Operand<'a>>,
        shape: impl IntoShape,
        dtype: DType,
    ) -> Result<Tensor> {
        let at = Location::caller();
        let p = p.into();
        let shape = shape.into_shape("bernoulli").map_err(|e| e.at(at))?;
        if let Operand::Number(p) = p {
            within("bernoulli", "p", p, 0.0, 1.0).map_err(|e| e.at(at))?;
        }
        let count = shape.numel();
        self.draw(Bernoulli { dtype, shape }, count, &[p], at)
    }

    /// Whole numbers in `low..high`, all equally likely, in any dtype that holds them. The bounds are
    /// data.
    ///
    /// # Errors
    /// [`Error::Argument`] unless `low < high`, and for bounds that the dtype cannot hold.
    #[track_caller]
    pub fn randint(
        &self,
        low: i64,
        high: i64,
        shape: impl IntoShape,
        dtype: DType,
    ) -> Result<Tensor> {
        let at = Location::caller();
        if low >= high {
            let got = format!("{low}, {high}");
            return Err(Error::argument("randint", "low, high", "low below high", got).at(at));
        }
        self.integers("randint", low, high - 1, shape, dtype, at)
    }

    /// Whole numbers in `low..=last`.
    pub(super) fn integers(
        &self,
        op: &'static str,
        low: i64,
        last: i64,
        shape: impl IntoShape,
        dtype: DType,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        let shape = shape.into_shape(op).map_err(|e| e.at(at))?;
        holds(op, dtype, low, last).map_err(|e| e.at(at))?;
        let count = shape.numel();
        // The end may wrap: so does the subtraction that makes a length of it.
        let bounds = [low.into(), last.wrapping_add(1).into()];
        self.draw(RandInt { dtype, shape }, count, &bounds, at)
    }

    /// The largest whole number that `random_` draws in a dtype: floats hold all up to it.
    pub(super) fn greatest(dtype: DType) -> i64 {
        match dtype {
            DType::Bool => 1,
            DType::F16 => 1 << 11,
            DType::BF16 => 1 << 8,
            DType::F32 => 1 << 24,
            DType::F64 => 1 << 53,
            _ => integer_bounds(dtype).1,
        }
    }
}
