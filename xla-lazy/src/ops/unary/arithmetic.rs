//! Sign, size, squares and roots.

use super::*;
use crate::stablehlo::Compare;
use crate::ty::ty;

/// Powers of truth values are numbers.
fn squared(op: &'static str, inputs: &[InputType]) -> Result<Ty> {
    let input = only(op, inputs)?;
    match input.dtype() {
        DType::Bool => Ok(ty(DType::I64, input.shape())),
        _ => Ok(input),
    }
}

unary! {
    /// `-x`.
    Neg neg: numeric,
    |f, x, _| f.unary("negate", x),
    Derivative::Rule { saves: Saves::NONE, rule: |_, vjp| vjp.only(vjp.grad().neg()) };

    /// `|x|`. The gradient at 0 is 0.
    Abs abs: numeric,
    |f, x, _| if x.dtype().is_signed() { f.unary("abs", x) } else { x },
    from_input!(|g, x| g.mul(&x.sign()?));

    /// -1, 0 or 1; 0 for NaN, as in PyTorch.
    Sign sign: only,
    |f, x, out| {
        if x.dtype() == DType::Bool {
            return x;
        }
        let zero = f.constant(x.dtype(), x.shape(), 0.0);
        let above = f.compare(Compare::Gt, x, zero);
        let above = f.convert(above, out.dtype());
        if !x.dtype().is_signed() {
            return above;
        }
        let below = f.compare(Compare::Lt, x, zero);
        let below = f.convert(below, out.dtype());
        f.binary("subtract", above, below)
    },
    Derivative::Zero;

    /// `x * x`; `bool` becomes `i64`.
    Square square: squared,
    |f, x, out| {
        let x = f.convert(x, out.dtype());
        f.binary("multiply", x, x)
    },
    from_input!(|g, x| g.mul(x)?.mul(2));
}

real! {
    /// Square root; NaN below 0.
    Sqrt sqrt: |f, x| f.unary("sqrt", x),
    from_output!(|g, y| g.div(&y.mul(2)?));

    /// `1 / sqrt(x)`.
    Rsqrt rsqrt: |f, x| f.unary("rsqrt", x),
    from_output!(|g, y| g.mul(&y.mul(y)?.mul(y)?)?.mul(-0.5));

    /// `1 / x`.
    Reciprocal reciprocal: |f, x| {
        let one = f.constant(x.dtype(), x.shape(), 1.0);
        f.binary("divide", one, x)
    },
    from_output!(|g, y| g.mul(y)?.mul(y)?.neg());
}
