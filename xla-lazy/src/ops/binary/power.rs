//! Powers, and functions of two real numbers.

use super::*;
use crate::ops::unary::finish;
use std::f64::consts::{LN_2, LOG2_E};
use std::panic::Location;

/// The largest integer exponent that is part of the program: a power by repeated squaring.
const LARGEST_ATTRIBUTE: i64 = 64;

/// `a + b` on a scale where the larger of both is exact: of logarithms to base e or, scaled, 2.
fn log_add(f: &mut Func, a: Value, b: Value) -> Value {
    let larger = f.binary("maximum", a, b);
    let difference = f.binary("subtract", a, b);
    let size = f.unary("abs", difference);
    let below = f.unary("negate", size);
    let ratio = f.unary("exponential", below);
    let rest = f.unary("log_plus_one", ratio);
    let sum = f.binary("add", larger, rest);
    // Equal infinities differ by NaN; their sum is either.
    let size = f.unary("abs", a);
    let infinity = f.constant(a.dtype(), a.shape(), f64::INFINITY);
    let infinite = f.compare(Compare::Eq, size, infinity);
    let equal = f.compare(Compare::Eq, a, b);
    let same = f.binary("and", infinite, equal);
    f.select(same, a, sum)
}

/// The square root of the sum of squares, without squaring what is too large or too small for it.
fn hypotenuse(f: &mut Func, a: Value, b: Value) -> Value {
    let (a, b) = (f.unary("abs", a), f.unary("abs", b));
    let (larger, smaller) = (f.binary("maximum", a, b), f.binary("minimum", a, b));
    let ratio = f.binary("divide", smaller, larger);
    let squared = f.binary("multiply", ratio, ratio);
    let sum = with_constant(f, "add", squared, 1.0);
    let root = f.unary("sqrt", sum);
    let length = f.binary("multiply", larger, root);
    let zero = f.constant(a.dtype(), a.shape(), 0.0);
    let nothing = f.compare(Compare::Eq, larger, zero);
    let length = f.select(nothing, zero, length);
    // An infinite side makes it infinite, whatever the other is.
    let infinity = f.constant(a.dtype(), a.shape(), f64::INFINITY);
    let (a, b) = (
        f.compare(Compare::Eq, a, infinity),
        f.compare(Compare::Eq, b, infinity),
    );
    let infinite = f.binary("or", a, b);
    f.select(infinite, infinity, length)
}

/// A power by a tensor or by a number that is data.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Pow;

impl Operator for Pow {
    const NAME: &'static str = "pow";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS.and_output(),
        rule: |_, vjp| {
            both(
                vjp,
                || {
                    let (a, b) = (vjp.input(0)?, tensor_of(vjp, 1)?);
                    let slope = a.pow(&b.sub(1)?)?.mul(&b)?.mul(vjp.grad())?;
                    // x^0 is constant, also where x^-1 would be infinite.
                    b.eq(0)?.select_from(0, &slope)
                },
                || {
                    let (a, b) = (tensor_of(vjp, 0)?, vjp.input(1)?);
                    let slope = vjp.output()?.mul(&a.log()?)?.mul(vjp.grad())?;
                    // 0^y is constant for y >= 0, also where the logarithm is infinite.
                    let flat = a.eq(0)?.logical_and(&b.ge(0)?)?;
                    flat.select_from(0, &slope)
                },
            )
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        infer(Self::NAME, inputs, number)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let operands = f.align(inputs, wide(out.dtype()), out.shape())?;
        let power = f.binary("power", operands[0], operands[1]);
        Ok(f.convert(power, out.dtype()))
    }
}

/// A power by an integer that is part of the program.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PowInt {
    exponent: i64,
}

impl Operator for PowInt {
    const NAME: &'static str = "pow";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |op, vjp| match op.exponent {
            0 => vjp.only(vjp.zeros(0)),
            n => {
                let power = vjp.input(0)?.pow(n - 1)?;
                finish(vjp, vjp.grad().mul(&power)?.mul(n))
            }
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        let number = InputType::Number(xla_core::Category::Integer);
        infer(Self::NAME, &[inputs[0], number], any)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], wide(out.dtype()));
        let power = power_of(f, x, self.exponent.unsigned_abs());
        let power = if self.exponent < 0 {
            let one = f.constant(x.dtype(), x.shape(), 1.0);
            f.binary("divide", one, power)
        } else {
            power
        };
        Ok(f.convert(power, out.dtype()))
    }
}

/// `x` multiplied with itself, by squares.
fn power_of(f: &mut Func, x: Value, exponent: u64) -> Value {
    let mut product: Option<Value> = None;
    let (mut square, mut left) = (x, exponent);
    while left > 0 {
        if left % 2 == 1 {
            product = Some(match product {
                Some(product) => f.binary("multiply", product, square),
                None => square,
            });
        }
        left /= 2;
        if left > 0 {
            square = f.binary("multiply", square, square);
        }
    }
    product.unwrap_or_else(|| f.constant(x.dtype(), x.shape(), 1.0))
}

impl Tensor {
    /// `x` to the power `exponent`. A power of integers is one (0 for a negative power of a number
    /// beyond -1 and 1).
    ///
    /// An exponent that is a number is data, except that a small integer is part of the program,
    /// which multiplies: `x.pow(3)` is as fast as `x * x * x`, and `x.pow(3.0)` is not.
    ///
    /// # Errors
    /// [`Error::Broadcast`]; [`Error::DTypeMismatch`] for `bool` operands; [`Error::Argument`] for
    /// integers to a negative number, whose powers are fractions.
    #[track_caller]
    pub fn pow<'a>(&self, exponent: impl Into<Operand<'a>>) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Pow);
        let at = Location::caller();
        match exponent.into() {
            Operand::Number(Number::Int(n)) if n < 0 && !self.dtype().is_float() => {
                let expected = "at least 0 for a tensor of integers";
                Err(Error::argument("pow", "exponent", expected, n).at(at))
            }
            Operand::Number(Number::Int(exponent))
                if exponent.unsigned_abs() <= LARGEST_ATTRIBUTE.unsigned_abs() =>
            {
                record_op(PowInt { exponent }, &[self.into()])
            }
            exponent => record(&ENTRY, &[self.into(), exponent]),
        }
    }

    /// `number` to the power `x`: PyTorch's `number ** x`.
    ///
    /// # Errors
    /// As [`Tensor::pow`].
    #[track_caller]
    pub fn rpow(&self, number: impl Into<Number>) -> Result<Tensor> {
        static ENTRY: OpEntry = OpEntry::of(&Pow);
        record(&ENTRY, &[Operand::Number(number.into()), self.into()])
    }
}

binary! {
    /// The angle in -π..=π of the point `(other, x)`. Integers become `f32`.
    Atan2 atan2: float,
    |f, y, x| f.binary("atan2", y, x),
    Derivative::Rule { saves: Saves::INPUTS, rule: |_, vjp| {
        let (y, x) = (tensor_of(vjp, 0)?, tensor_of(vjp, 1)?);
        let scaled = vjp.grad().div(&y.square()?.add(&x.square()?)?)?;
        both(vjp, || scaled.mul(&x), || scaled.mul(&y)?.neg())
    } };

    /// `sqrt(x^2 + other^2)`, without overflow on the way. The gradient where both are 0 is NaN, as
    /// in PyTorch.
    Hypot hypot: floating,
    |f, a, b| widened(f, a, b, hypotenuse),
    Derivative::Rule { saves: Saves::INPUTS.and_output(), rule: |_, vjp| {
        let part = |index| vjp.grad().mul(&tensor_of(vjp, index)?.div(vjp.output()?)?);
        both(vjp, || part(0), || part(1))
    } };

    /// `log(e^x + e^other)`, without overflow on the way.
    LogAddExp logaddexp: floating,
    |f, a, b| widened(f, a, b, log_add),
    Derivative::Rule { saves: Saves::INPUTS, rule: |_, vjp| {
        let (a, b) = (tensor_of(vjp, 0)?, tensor_of(vjp, 1)?);
        let difference = a.sub(&b)?;
        both(
            vjp,
            || vjp.grad().mul(&difference.sigmoid()?),
            || vjp.grad().mul(&difference.neg()?.sigmoid()?),
        )
    } };

    /// `log2(2^x + 2^other)`, without overflow on the way.
    LogAddExp2 logaddexp2: floating,
    |f, a, b| widened(f, a, b, |f, a, b| {
        let (a, b) = (with_constant(f, "multiply", a, LN_2), with_constant(f, "multiply", b, LN_2));
        let sum = log_add(f, a, b);
        with_constant(f, "multiply", sum, LOG2_E)
    }),
    Derivative::Rule { saves: Saves::INPUTS, rule: |_, vjp| {
        let (a, b) = (tensor_of(vjp, 0)?, tensor_of(vjp, 1)?);
        let difference = a.sub(&b)?.mul(LN_2)?;
        both(
            vjp,
            || vjp.grad().mul(&difference.sigmoid()?),
            || vjp.grad().mul(&difference.neg()?.sigmoid()?),
        )
    } };

    /// `x * log(other)`, and 0 where `x` is 0, unless `other` is NaN. Integers become `f32`.
    Xlogy xlogy: float,
    |f, a, b| widened(f, a, b, |f, a, b| {
        let log = f.unary("log", b);
        let product = f.binary("multiply", a, log);
        let zero = f.constant(a.dtype(), a.shape(), 0.0);
        let nothing = f.compare(Compare::Eq, a, zero);
        let product = f.select(nothing, zero, product);
        let nan = f.compare(Compare::Ne, b, b);
        f.select(nan, b, product)
    }),
    Derivative::Rule { saves: Saves::INPUTS, rule: |_, vjp| {
        let (a, b) = (tensor_of(vjp, 0)?, tensor_of(vjp, 1)?);
        both(
            vjp,
            || {
                let slope = vjp.grad().mul(&b.log()?)?;
                let flat = a.eq(0)?.logical_and(&b.le(0)?)?;
                flat.select_from(0, &slope)
            },
            || vjp.grad().mul(&a)?.div(&b),
        )
    } };
}
