//! The error function, the gamma function and their relatives.

use super::*;
use crate::stablehlo::Compare;
use crate::trace::record_op;
use std::f64::consts::{FRAC_2_SQRT_PI, PI};

real! {
    /// The error function.
    Erf erf: |f, x| f.chlo_unary("erf", x),
    from_input!(|g, x| g.mul(&x.square()?.neg()?.exp()?)?.mul(FRAC_2_SQRT_PI));

    /// The complementary error function, `1 - erf(x)`, exact where that is small.
    Erfc erfc: |f, x| f.chlo_unary("erfc", x),
    from_input!(|g, x| g.mul(&x.square()?.neg()?.exp()?)?.mul(-FRAC_2_SQRT_PI));

    /// The inverse of [`Tensor::erf`]; infinite at -1 and 1, NaN beyond.
    Erfinv erfinv: |f, x| f.chlo_unary("erf_inv", x),
    from_output!(|g, y| g.mul(&y.square()?.exp()?)?.div(FRAC_2_SQRT_PI));

    /// The logarithm of the gamma function's absolute value.
    Lgamma lgamma: |f, x| f.chlo_unary("lgamma", x),
    from_input!(|g, x| g.mul(&x.digamma()?));

    /// The derivative of [`Tensor::lgamma`]; infinite at 0, NaN at negative whole numbers.
    Digamma digamma: |f, x| {
        let digamma = f.chlo_unary("digamma", x);
        // The pole at 0 has opposite signs on its two sides.
        let zero = f.constant(x.dtype(), x.shape(), 0.0);
        let at_pole = f.compare(Compare::Eq, x, zero);
        let minus_one = f.constant(x.dtype(), x.shape(), -1.0);
        let pole = f.binary("divide", minus_one, x);
        f.select(at_pole, pole, digamma)
    },
    from_input!(|g, x| g.mul(&x.polygamma(1)?));
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Polygamma {
    n: u32,
}

impl Operator for Polygamma {
    const NAME: &'static str = "polygamma";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::INPUTS,
        rule: |op, vjp| {
            let next = vjp.input(0)?.polygamma(op.n.saturating_add(1))?;
            finish(vjp, vjp.grad().mul(&next))
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        float_of(Self::NAME, inputs)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let x = f.convert(inputs[0], wide(out.dtype()));
        let y = match self.n {
            1 => trigamma(f, x),
            n => polygamma(f, n, x),
        };
        Ok(f.convert(y, out.dtype()))
    }
}

/// `chlo.polygamma`, which has no values below 0.
fn polygamma(f: &mut Func, n: u32, x: Value) -> Value {
    let order = f.constant(x.dtype(), x.shape(), f64::from(n));
    let t = crate::stablehlo::tensor_type(x.dtype(), x.shape());
    f.emit(
        format_args!("chlo.polygamma {order}, {x}"),
        format_args!("{t}, {t} -> {t}"),
        x.ty(),
    )
}

/// The first derivative of digamma, below 1/2 by reflection:
/// `ψ'(x) = π² / sin²(πx) - ψ'(1 - x)`.
fn trigamma(f: &mut Func, x: Value) -> Value {
    let half = f.constant(x.dtype(), x.shape(), 0.5);
    let one = f.constant(x.dtype(), x.shape(), 1.0);
    let left = f.compare(Compare::Lt, x, half);
    let mirrored = f.binary("subtract", one, x);
    let right = f.select(left, mirrored, x);
    let right = polygamma(f, 1, right);
    let angle = with_constant(f, "multiply", x, PI);
    let sine = f.unary("sine", angle);
    let pi = f.constant(x.dtype(), x.shape(), PI);
    let ratio = f.binary("divide", pi, sine);
    let squared = f.binary("multiply", ratio, ratio);
    let reflected = f.binary("subtract", squared, right);
    f.select(left, reflected, right)
}

impl Tensor {
    /// The `n`-th derivative of [`Tensor::digamma`]. Integers become `f32`.
    ///
    /// # Errors
    /// The error of this tensor's own program, if that failed.
    #[track_caller]
    pub fn polygamma(&self, n: u32) -> Result<Tensor> {
        match n {
            0 => self.digamma(),
            n => record_op(Polygamma { n }, &[self.into()]),
        }
    }
}

impl Tensor {
    /// The inverse of [`Tensor::sigmoid`], `log(x / (1 - x))`: infinite at 0 and 1, NaN beyond. With
    /// `eps` the elements are first limited to `eps ..= 1 - eps`.
    ///
    /// # Errors
    /// [`xla_core::Error::DTypeMismatch`] for `bool` with `eps`.
    #[track_caller]
    pub fn logit(&self, eps: impl Into<Option<f64>>) -> Result<Tensor> {
        let x = match eps.into() {
            Some(eps) => self.clamp(Some(eps), Some(1.0 - eps))?,
            None => self.clone(),
        };
        x.div(&x.rsub(1.0)?)?.log()
    }

    /// `sin(πx) / πx`, elementwise, and 1 at 0.
    ///
    /// # Errors
    /// The error of this tensor's own program, if that failed.
    #[track_caller]
    pub fn sinc(&self) -> Result<Tensor> {
        // The derivative of the quotient at 0 is NaN, also where its value is not taken.
        let zero = self.eq(0)?;
        let angle = zero.select_from(1.0, self)?.mul(std::f64::consts::PI)?;
        zero.select_from(1.0, &angle.sin()?.div(&angle)?)
    }
}
