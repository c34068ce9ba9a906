//! Running sums, products and extremes along an axis.
//!
//! All are scans of an associative operation, lowered in `log2(n)` steps that each combine what is
//! there with itself, moved by a power of two (Hillis and Steele, "Data parallel algorithms", 1986).

use super::only;
use super::reduce::{accumulator, floating, summed};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operator, Saves};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::record_op;
use crate::ty::{Ty, ty};
use xla_core::{DType, Dims, Result, Shape};

/// The scan of an associative operation over elements of several parts. `reverse` starts at the
/// end of the axis. `combine` is given the part that the scan meets first.
fn scan<const N: usize>(
    f: &mut Func,
    mut parts: [Value; N],
    axis: usize,
    reverse: bool,
    combine: impl Fn(&mut Func, [Value; N], [Value; N]) -> [Value; N],
) -> [Value; N] {
    let shape = parts[0].shape();
    let n = shape[axis];
    let steps = Dims::from_elem(1, shape.rank());
    let range = |f: &mut Func, x: Value, from: usize, to: usize| {
        let mut start = Dims::from_elem(0, shape.rank());
        let mut limit: Dims = shape.dims().into();
        (start[axis], limit[axis]) = (from, to);
        f.slice(x, &start, &limit, &steps)
    };
    let mut distance = 1;
    while distance < n {
        let low = parts.map(|x| range(f, x, 0, n - distance));
        let high = parts.map(|x| range(f, x, distance, n));
        let (earlier, later) = if reverse { (high, low) } else { (low, high) };
        let combined = combine(f, earlier, later);
        let mut joined = parts;
        for (part, new) in joined.iter_mut().zip(combined) {
            *part = if reverse {
                let kept = range(f, *part, n - distance, n);
                f.concatenate(&[new, kept], axis)
            } else {
                let kept = range(f, *part, 0, distance);
                f.concatenate(&[kept, new], axis)
            };
        }
        parts = joined;
        distance *= 2;
    }
    parts
}

/// The elements moved by one along an axis, towards its end or (`back`) its start, with `fill` in the
/// place that becomes free.
pub(super) fn shift(x: &Tensor, axis: usize, back: bool, fill: f64) -> Result<Tensor> {
    let n = x.dims()[axis];
    if n == 0 {
        return Ok(x.clone());
    }
    let mut dims: Dims = x.dims().into();
    dims[axis] = 1;
    let edge = Tensor::full(Shape::from(dims), fill, (x.dtype(), x.device()))?;
    let dim = axis as i64;
    if back {
        Tensor::cat(&[&x.narrow(dim, 1, n - 1)?, &edge], dim)
    } else {
        Tensor::cat(&[&edge, &x.narrow(dim, 0, n - 1)?], dim)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CumSum {
    axis: usize,
    reverse: bool,
}

impl Operator for CumSum {
    const NAME: &'static str = "cumsum";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let back = CumSum {
                axis: op.axis,
                reverse: !op.reverse,
            };
            vjp.only(record_op(back, &[vjp.grad().into()]))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        Ok(ty(summed(input.dtype()), input.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], accumulator(out.dtype()));
        let [sums] = scan(f, [x], self.axis, self.reverse, |f, [a], [b]| {
            [f.binary("add", a, b)]
        });
        Ok(f.convert(sums, out.dtype()))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CumProd {
    axis: usize,
    reverse: bool,
}

impl Operator for CumProd {
    const NAME: &'static str = "cumprod";
    // Product i is that of the elements before j, times x[j], times those from there to i. So the
    // gradient at j is the first of these times `r[j] = g[j] + x[j + 1] * r[j + 1]`: no division,
    // and therefore exact at zeros.
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        rule: |op, vjp| {
            let before = shift(vjp.output()?, op.axis, op.reverse, 1.0)?;
            let next = shift(vjp.input(0)?, op.axis, !op.reverse, 0.0)?;
            let after = recurrence(&next, vjp.grad(), op.axis, !op.reverse)?;
            vjp.only(before.mul(&after))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let input = only(Self::NAME, inputs)?;
        Ok(ty(summed(input.dtype()), input.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], accumulator(out.dtype()));
        let [products] = scan(f, [x], self.axis, self.reverse, |f, [a], [b]| {
            [f.binary("multiply", a, b)]
        });
        Ok(f.convert(products, out.dtype()))
    }
}

/// [`Tensor::cumprod`] from either end.
pub(super) fn cumulative_product(x: &Tensor, axis: usize, reverse: bool) -> Result<Tensor> {
    record_op(CumProd { axis, reverse }, &[x.into()])
}

/// `y[i] = a[i] * y[i - 1] + b[i]`, with 0 before the first. The derivative is a recurrence too, so
/// the scans whose rules need it are differentiable to any order.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Recurrence {
    axis: usize,
    reverse: bool,
}

impl Operator for Recurrence {
    const NAME: &'static str = "recurrence";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(0).and_output(),
        rule: |op, vjp| {
            let next = shift(vjp.input(0)?, op.axis, !op.reverse, 0.0)?;
            let flow = recurrence(&next, vjp.grad(), op.axis, !op.reverse)?;
            let before = shift(vjp.output()?, op.axis, op.reverse, 0.0)?;
            Ok(smallvec::smallvec![Some(flow.mul(&before)?), Some(flow)])
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[1].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let wide = accumulator(out.dtype());
        let parts = [f.convert(inputs[0], wide), f.convert(inputs[1], wide)];
        let value = affine(f, parts, self.axis, self.reverse);
        Ok(f.convert(value, out.dtype()))
    }
}

fn recurrence(a: &Tensor, b: &Tensor, axis: usize, reverse: bool) -> Result<Tensor> {
    record_op(Recurrence { axis, reverse }, &[a.into(), b.into()])
}

/// The scan of `y -> a * y + b`.
fn affine(f: &mut Func, parts: [Value; 2], axis: usize, reverse: bool) -> Value {
    let [_, value] = scan(f, parts, axis, reverse, |f, [a0, b0], [a1, b1]| {
        let carried = f.binary("multiply", a1, b0);
        [f.binary("multiply", a1, a0), f.binary("add", carried, b1)]
    });
    value
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct LogCumSumExp {
    axis: usize,
}

impl Operator for LogCumSumExp {
    const NAME: &'static str = "logcumsumexp";
    // `sum over i >= j of g[i] * exp(x[j] - y[i])`. As y does not fall along the axis, no exponential
    // of `t[j] = g[j] + exp(y[j] - y[j + 1]) * t[j + 1]` exceeds 1.
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        rule: |op, vjp| {
            let (x, y) = (vjp.input(0)?, vjp.output()?);
            let decay = y.sub(&shift(y, op.axis, true, f64::INFINITY)?)?.exp()?;
            let total = recurrence(&decay, vjp.grad(), op.axis, true)?;
            vjp.only(x.sub(y)?.exp()?.mul(&total))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        floating(Self::NAME, inputs)
    }

    /// The running maximum `m`, then `s[i] = exp(m[i - 1] - m[i]) * s[i - 1] + exp(x[i] - m[i])`:
    /// two exponentials an element, none of them above 1.
    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let axis = self.axis;
        let x = f.convert(inputs[0], accumulator(out.dtype()));
        if x.shape().numel() == 0 {
            return Ok(inputs[0]);
        }
        let [highest] = scan(f, [x], axis, false, |f, [a], [b]| {
            [f.binary("maximum", a, b)]
        });
        // An infinite maximum would be subtracted from itself.
        let mask = ty(DType::Bool, x.shape());
        let finite = f.call(
            format_args!("stablehlo.is_finite {highest}"),
            &[highest],
            mask,
        );
        let zero = f.constant(x.dtype(), x.shape(), 0.0);
        let highest = f.select(finite, highest, zero);
        let rank = x.shape().rank();
        let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
        (low[axis], high[axis]) = (1, -1);
        let edge = f.constant(x.dtype(), &Shape::scalar(), 0.0);
        let before = f.pad(highest, edge, &low, &high, &vec![0; rank]);
        let fall = f.binary("subtract", before, highest);
        let fall = f.binary("minimum", fall, zero);
        let decay = f.unary("exponential", fall);
        let own = f.binary("subtract", x, highest);
        let own = f.unary("exponential", own);
        let sum = affine(f, [decay, own], axis, false);
        let log = f.unary("log", sum);
        let value = f.binary("add", log, highest);
        Ok(f.convert(value, out.dtype()))
    }
}

/// The running extreme and its position. Of equal elements the later one counts; a NaN is the
/// extreme, and the last of several counts.
fn running<const MAX: bool>(f: &mut Func, x: Value, axis: usize) -> (Value, Value) {
    let dtype = match i32::try_from(x.shape()[axis]) {
        Ok(_) => DType::I32,
        Err(_) => DType::I64,
    };
    let positions = f.iota(dtype, x.shape(), axis);
    let direction = if MAX { Compare::Ge } else { Compare::Le };
    let [values, positions] = scan(f, [x, positions], axis, false, |f, [v0, i0], [v1, i1]| {
        let mut takes = f.compare(direction, v1, v0);
        if v1.dtype().is_float() {
            let nan = f.compare(Compare::Ne, v1, v1);
            takes = f.binary("or", takes, nan);
        }
        [f.select(takes, v1, v0), f.select(takes, i1, i0)]
    });
    (values, f.convert(positions, DType::I64))
}

/// Where the running extreme is.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CumArg<const MAX: bool> {
    axis: usize,
}

impl<const MAX: bool> Operator for CumArg<MAX> {
    const NAME: &'static str = if MAX { "cummax" } else { "cummin" };
    const DERIVATIVE: Derivative<Self> = Derivative::NotDifferentiable;

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        Ok(ty(DType::I64, only(Self::NAME, inputs)?.shape()))
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(running::<MAX>(f, inputs[0], self.axis).1)
    }
}

/// The running extreme; the second operand is where it is, to which the gradient goes. It is lowered
/// like its position, so that the compiler makes one computation of the two.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct CumExtreme<const MAX: bool> {
    axis: usize,
}

impl<const MAX: bool> Operator for CumExtreme<MAX> {
    const NAME: &'static str = if MAX { "cummax" } else { "cummin" };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE.and_input(1),
        rule: |op, vjp| super::index::add_along(vjp, op.axis),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(running::<MAX>(f, inputs[0], self.axis).0)
    }
}

impl Tensor {
    /// The sum of the elements up to each along an axis. Integers and `bool` sum as `i64`; half
    /// precision is accumulated in `f32`. PyTorch's `dtype` argument is [`Tensor::to_dtype`] before.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn cumsum(&self, dim: i64) -> Result<Tensor> {
        match self.axis_or_scalar("cumsum", dim)? {
            None => self.reshape([1])?.cumsum(0)?.reshape(()),
            Some(axis) => {
                let reverse = false;
                record_op(CumSum { axis, reverse }, &[self.into()])
            }
        }
    }

    /// The product of the elements up to each along an axis; dtypes as [`Tensor::cumsum`]. The
    /// gradient is exact with any number of zeros.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn cumprod(&self, dim: i64) -> Result<Tensor> {
        match self.axis_or_scalar("cumprod", dim)? {
            None => self.reshape([1])?.cumprod(0)?.reshape(()),
            Some(axis) => cumulative_product(self, axis, false),
        }
    }

    /// `log(cumsum(exp(x)))` along an axis, exact where the exponentials overflow or underflow.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`]; [`xla_core::Error::DTypeMismatch`] for a dtype that is not
    /// floating-point.
    #[track_caller]
    pub fn logcumsumexp(&self, dim: i64) -> Result<Tensor> {
        match self.axis_or_scalar("logcumsumexp", dim)? {
            None => self.reshape([1])?.logcumsumexp(0)?.reshape(()),
            Some(axis) => record_op(LogCumSumExp { axis }, &[self.into()]),
        }
    }

    /// The largest element up to each along an axis, and its position: the last of equal ones, and a
    /// NaN counts as largest. The gradient goes to that position.
    ///
    /// # Errors
    /// [`xla_core::Error::Axis`].
    #[track_caller]
    pub fn cummax(&self, dim: i64) -> Result<(Tensor, Tensor)> {
        self.cumulative_extreme::<true>(dim)
    }

    /// The smallest element up to each along an axis, and its position; as [`Tensor::cummax`].
    ///
    /// # Errors
    /// As [`Tensor::cummax`].
    #[track_caller]
    pub fn cummin(&self, dim: i64) -> Result<(Tensor, Tensor)> {
        self.cumulative_extreme::<false>(dim)
    }

    #[track_caller]
    fn cumulative_extreme<const MAX: bool>(&self, dim: i64) -> Result<(Tensor, Tensor)> {
        let Some(axis) = self.axis_or_scalar(CumExtreme::<MAX>::NAME, dim)? else {
            let (value, index) = self.reshape([1])?.cumulative_extreme::<MAX>(0)?;
            return Ok((value.reshape(())?, index.reshape(())?));
        };
        let indices = record_op(CumArg::<MAX> { axis }, &[self.into()])?;
        let values = record_op(
            CumExtreme::<MAX> { axis },
            &[self.into(), (&indices).into()],
        )?;
        Ok((values, indices))
    }
}
