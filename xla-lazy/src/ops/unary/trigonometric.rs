//! Circular and hyperbolic functions and their inverses.

use super::*;

/// `1 - x^2`.
fn below_one(x: &Tensor) -> Result<Tensor> {
    x.square()?.rsub(1)
}

real! {
    /// Sine, of radians.
    Sin sin: |f, x| f.unary("sine", x),
    from_input!(|g, x| g.mul(&x.cos()?));

    /// Cosine, of radians.
    Cos cos: |f, x| f.unary("cosine", x),
    from_input!(|g, x| g.mul(&x.sin()?)?.neg());

    /// Tangent, of radians.
    Tan tan: |f, x| f.chlo_unary("tan", x),
    from_output!(|g, y| g.mul(&y.square()?.add(1)?));

    /// The angle in -π/2..=π/2 with this sine; NaN outside -1..=1.
    Asin asin: |f, x| f.chlo_unary("asin", x),
    from_input!(|g, x| g.mul(&below_one(x)?.rsqrt()?));

    /// The angle in 0..=π with this cosine; NaN outside -1..=1.
    Acos acos: |f, x| f.chlo_unary("acos", x),
    from_input!(|g, x| g.mul(&below_one(x)?.rsqrt()?)?.neg());

    /// The angle in -π/2..=π/2 with this tangent.
    Atan atan: |f, x| f.chlo_unary("atan", x),
    from_input!(|g, x| g.div(&x.square()?.add(1)?));

    /// Hyperbolic sine.
    Sinh sinh: |f, x| f.chlo_unary("sinh", x),
    from_input!(|g, x| g.mul(&x.cosh()?));

    /// Hyperbolic cosine.
    Cosh cosh: |f, x| f.chlo_unary("cosh", x),
    from_input!(|g, x| g.mul(&x.sinh()?));

    /// Hyperbolic tangent.
    Tanh tanh: |f, x| f.unary("tanh", x),
    from_output!(|g, y| g.sub(&g.mul(y)?.mul(y)?));

    /// Inverse hyperbolic sine.
    Asinh asinh: |f, x| f.chlo_unary("asinh", x),
    from_input!(|g, x| g.mul(&x.square()?.add(1)?.rsqrt()?));

    /// Inverse hyperbolic cosine; NaN below 1.
    Acosh acosh: |f, x| f.chlo_unary("acosh", x),
    from_input!(|g, x| g.mul(&x.square()?.sub(1)?.rsqrt()?));

    /// Inverse hyperbolic tangent; infinite at -1 and 1, NaN beyond.
    Atanh atanh: |f, x| f.chlo_unary("atanh", x),
    from_input!(|g, x| g.div(&below_one(x)?));
}
