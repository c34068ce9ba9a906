//! Exponentials and logarithms.

use super::*;
use std::f64::consts::{LN_2, LN_10};

real! {
    /// `e^x`.
    Exp exp: |f, x| f.unary("exponential", x),
    from_output!(|g, y| g.mul(y));

    /// `2^x`.
    Exp2 exp2: |f, x| {
        let two = f.constant(x.dtype(), x.shape(), 2.0);
        f.binary("power", two, x)
    },
    from_output!(|g, y| g.mul(y)?.mul(LN_2));

    /// `e^x - 1`, exact near 0.
    Expm1 expm1: |f, x| f.unary("exponential_minus_one", x),
    from_output!(|g, y| g.mul(&y.add(1)?));

    /// Natural logarithm; NaN below 0, -inf at 0.
    Log log: |f, x| f.unary("log", x),
    from_input!(|g, x| g.div(x));

    /// Logarithm to base 2; NaN below 0, -inf at 0.
    Log2 log2: |f, x| {
        let log = f.unary("log", x);
        with_constant(f, "divide", log, LN_2)
    },
    from_input!(|g, x| g.div(&x.mul(LN_2)?));

    /// Logarithm to base 10; NaN below 0, -inf at 0.
    Log10 log10: |f, x| {
        let log = f.unary("log", x);
        with_constant(f, "divide", log, LN_10)
    },
    from_input!(|g, x| g.div(&x.mul(LN_10)?));

    /// `log(1 + x)`, exact near 0.
    Log1p log1p: |f, x| f.unary("log_plus_one", x),
    from_input!(|g, x| g.div(&x.add(1)?));

    /// The logistic function, `1 / (1 + e^-x)`.
    Sigmoid sigmoid: |f, x| f.unary("logistic", x),
    from_output!(|g, y| g.mul(&y.sub(&y.mul(y)?)?));
}
