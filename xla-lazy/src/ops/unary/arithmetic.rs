//! Sign, size, squares and roots.

use super::*;
use crate::stablehlo::Compare;

unary! {
    /// `-x`.
    Neg neg: numeric,
    |f, x, _| f.unary("negate", x),
    Derivative::Rule { saves: Saves::NONE, rule: |_, vjp| vjp.only(vjp.grad().neg()) };

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

    /// `x * x`.
    Square square: numeric,
    |f, x, _| f.binary("multiply", x, x),
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
