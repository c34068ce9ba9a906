//! Elementwise operators of one tensor.

use super::{float_of, numeric, only};
use crate::op::{Derivative, InputType, OpEntry, Operator, Saves};
use crate::stablehlo::{Compare, Func, Value};
use crate::trace::record;
use crate::ty::{Ty, ty};
use crate::{Gradients, Tensor, Vjp};
use xla_core::{DType, Result};

/// One elementwise operator of one operand:
/// `Type "name" (shape rule), |f, x| lowering, derivative; docs`.
macro_rules! unary {
    ($(
        $(#[$doc:meta])*
        $op:ident $method:ident: $infer:path,
        $lower:expr,
        $derivative:expr;
    )*) => {$(
        #[derive(Debug, Clone, PartialEq, Eq, Hash)]
        struct $op;

        impl Operator for $op {
            const NAME: &'static str = stringify!($method);
            const DERIVATIVE: Derivative<Self> = $derivative;

            fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
                $infer(Self::NAME, inputs)
            }

            fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
                let lower: fn(&mut Func, Value, Ty) -> Value = $lower;
                Ok(lower(f, inputs[0], out))
            }
        }

        impl Tensor {
            $(#[$doc])*
            ///
            /// # Errors
            /// The dtype's, where the operator has no meaning for it.
            #[track_caller]
            #[inline]
            pub fn $method(&self) -> Result<Tensor> {
                static ENTRY: OpEntry = OpEntry::of(&$op);
                record(&ENTRY, &[self.into()])
            }
        }
    )*};
}

/// A rule that reads the output `y`: from `(gradient, y)`.
macro_rules! from_output {
    ($rule:expr) => {
        Derivative::Rule {
            saves: Saves::OUTPUT,
            rule: |_, vjp: &Vjp<'_>| {
                let rule: fn(&Tensor, &Tensor) -> Result<Tensor> = $rule;
                finish(vjp, rule(vjp.grad(), vjp.output()?))
            },
        }
    };
}

/// A rule that reads the input `x`: from `(gradient, x)`.
macro_rules! from_input {
    ($rule:expr) => {
        Derivative::Rule {
            saves: Saves::INPUTS,
            rule: |_, vjp: &Vjp<'_>| {
                let rule: fn(&Tensor, &Tensor) -> Result<Tensor> = $rule;
                finish(vjp, rule(vjp.grad(), vjp.input(0)?))
            },
        }
    };
}

/// The gradient in the input's dtype.
fn finish(vjp: &Vjp<'_>, gradient: Result<Tensor>) -> Result<Gradients> {
    vjp.only(gradient?.to_dtype(vjp.dtype(0)))
}

/// The operand as the output's dtype, to compute in.
fn as_out(f: &mut Func, x: Value, out: Ty) -> Value {
    f.convert(x, out.dtype())
}

fn boolean(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    Ok(ty(DType::Bool, only(op, inputs)?.shape()))
}

/// Rounding leaves integers as they are.
fn rounded(f: &mut Func, x: Value, mnemonic: &str) -> Value {
    if x.dtype().is_float() {
        f.unary(mnemonic, x)
    } else {
        x
    }
}

unary! {
    /// `-x`.
    Neg neg: numeric,
    |f, x, _| f.unary("negate", x),
    Derivative::Rule { saves: Saves::NONE, rule: |_, vjp| vjp.only(vjp.grad().neg()) };

    /// `e^x`. Integers become `f32`.
    Exp exp: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.unary("exponential", x) },
    from_output!(|g, y| g.mul(y));

    /// Natural logarithm; NaN below 0, -inf at 0. Integers become `f32`.
    Log log: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.unary("log", x) },
    from_input!(|g, x| g.div(x));

    /// `log(1 + x)`, exact near 0. Integers become `f32`.
    Log1p log1p: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.unary("log_plus_one", x) },
    from_input!(|g, x| g.div(&x.add(1)?));

    /// `e^x - 1`, exact near 0. Integers become `f32`.
    Expm1 expm1: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.unary("exponential_minus_one", x) },
    from_output!(|g, y| g.mul(&y.add(1)?));

    /// Square root; NaN below 0. Integers become `f32`.
    Sqrt sqrt: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.unary("sqrt", x) },
    from_output!(|g, y| g.div(&y.mul(2)?));

    /// `1 / sqrt(x)`. Integers become `f32`.
    Rsqrt rsqrt: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.unary("rsqrt", x) },
    from_output!(|g, y| g.mul(&y.mul(y)?.mul(y)?)?.mul(-0.5));

    /// Hyperbolic tangent. Integers become `f32`.
    Tanh tanh: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.unary("tanh", x) },
    from_output!(|g, y| g.sub(&g.mul(y)?.mul(y)?));

    /// `1 / (1 + e^-x)`. Integers become `f32`.
    Sigmoid sigmoid: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.unary("logistic", x) },
    from_output!(|g, y| g.mul(&y.sub(&y.mul(y)?)?));

    /// Sine, of radians. Integers become `f32`.
    Sin sin: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.unary("sine", x) },
    from_input!(|g, x| g.mul(&x.cos()?));

    /// Cosine, of radians. Integers become `f32`.
    Cos cos: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.unary("cosine", x) },
    from_input!(|g, x| g.mul(&x.sin()?)?.neg());

    /// The error function. Integers become `f32`.
    Erf erf: float_of,
    |f, x, out| { let x = as_out(f, x, out); f.chlo_unary("erf", x) },
    from_input!(|g, x| {
        g.mul(&x.mul(x)?.neg()?.exp()?)?.mul(std::f64::consts::FRAC_2_SQRT_PI)
    });

    /// `max(x, 0)`; NaN stays NaN. The gradient at 0 is 0.
    Relu relu: numeric,
    |f, x, _| {
        let zero = f.constant(x.dtype(), x.shape(), 0.0);
        f.binary("maximum", x, zero)
    },
    from_output!(|g, y| y.gt(0)?.select_from(g, 0));

    /// `|x|`. The gradient at 0 is 0.
    Abs abs: numeric,
    |f, x, _| if x.dtype().is_signed() { f.unary("abs", x) } else { x },
    from_input!(|g, x| g.mul(&x.sign()?));

    /// -1, 0 or 1; NaN stays NaN.
    Sign sign: numeric,
    |f, x, _| if x.dtype().is_signed() { f.unary("sign", x) } else {
        let zero = f.constant(x.dtype(), x.shape(), 0.0);
        let positive = f.compare(Compare::Ne, x, zero);
        f.convert(positive, x.dtype())
    },
    Derivative::Zero;

    /// The largest whole number at most `x`.
    Floor floor: numeric,
    |f, x, _| rounded(f, x, "floor"),
    Derivative::Zero;

    /// The smallest whole number at least `x`.
    Ceil ceil: numeric,
    |f, x, _| rounded(f, x, "ceil"),
    Derivative::Zero;

    /// The nearest whole number, halves to even.
    Round round: numeric,
    |f, x, _| rounded(f, x, "round_nearest_even"),
    Derivative::Zero;

    /// `x * x`.
    Square square: numeric,
    |f, x, _| f.binary("multiply", x, x),
    from_input!(|g, x| g.mul(x)?.mul(2));

    /// `1 / x`. Integers become `f32`.
    Reciprocal reciprocal: float_of,
    |f, x, out| {
        let x = as_out(f, x, out);
        let one = f.constant(x.dtype(), x.shape(), 1.0);
        f.binary("divide", one, x)
    },
    from_output!(|g, y| g.mul(y)?.mul(y)?.neg());

    /// Whether each element is NaN.
    IsNan isnan: boolean,
    |f, x, _| f.compare(Compare::Ne, x, x),
    Derivative::NotDifferentiable;

    /// Whether each element is 0 (or false).
    LogicalNot logical_not: boolean,
    |f, x, _| {
        let zero = f.constant(x.dtype(), x.shape(), 0.0);
        f.compare(Compare::Eq, x, zero)
    },
    Derivative::NotDifferentiable;
}
