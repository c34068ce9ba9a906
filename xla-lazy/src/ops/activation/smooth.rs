//! Smooth activations.

use super::*;
use crate::ops::unary::{real, unary};

/// `log(1 + e^x)` for any `x`.
fn log_one_plus_exp(f: &mut Func, x: Value) -> Value {
    let zero = f.constant(x.dtype(), x.shape(), 0.0);
    let positive = f.binary("maximum", x, zero);
    let size = f.unary("abs", x);
    let below = f.unary("negate", size);
    let small = f.unary("exponential", below);
    let rest = f.unary("log_plus_one", small);
    f.binary("add", positive, rest)
}

unary! {
    /// `x * sigmoid(x)`, also called swish
    /// ([Hendrycks and Gimpel, 2016](https://arxiv.org/abs/1606.08415)).
    Silu silu: floating,
    |f, x, out| widened(f, x, out, |f, x| {
        let gate = f.unary("logistic", x);
        f.binary("multiply", x, gate)
    }),
    from_input!(|g, x| {
        let gate = x.sigmoid()?;
        let slope = gate.rsub(1)?.mul(x)?.add(1)?.mul(&gate)?;
        g.mul(&slope)
    });

    /// `x * tanh(softplus(x))` ([Misra, 2019](https://arxiv.org/abs/1908.08681)).
    Mish mish: floating,
    |f, x, out| widened(f, x, out, |f, x| {
        let softplus = log_one_plus_exp(f, x);
        let gate = f.unary("tanh", softplus);
        f.binary("multiply", x, gate)
    }),
    from_input!(|g, x| {
        let gate = x.softplus(1, 20)?.tanh()?;
        let curve = gate.square()?.rsub(1)?.mul(&x.sigmoid()?)?.mul(x)?;
        g.mul(&gate.add(&curve)?)
    });

    /// `log(sigmoid(x))`, exact where the sigmoid underflows.
    LogSigmoid logsigmoid: floating,
    |f, x, out| widened(f, x, out, |f, x| {
        let negated = f.unary("negate", x);
        let softplus = log_one_plus_exp(f, negated);
        f.unary("negate", softplus)
    }),
    from_input!(|g, x| g.mul(&x.neg()?.sigmoid()?));
}

real! {
    /// `x / (1 + |x|)`.
    Softsign softsign: |f, x| {
        let size = f.unary("abs", x);
        let size = with_constant(f, "add", size, 1.0);
        f.binary("divide", x, size)
    },
    from_input!(|g, x| g.div(&x.abs()?.add(1)?.square()?));

    /// `x - tanh(x)`.
    Tanhshrink tanhshrink: |f, x| {
        let tanh = f.unary("tanh", x);
        f.binary("subtract", x, tanh)
    },
    from_input!(|g, x| g.mul(&x.tanh()?.square()?));
}

with_numbers! {
    /// `log(1 + e^(beta * x)) / beta`, and `x` itself where `beta * x` is above `threshold`.
    /// PyTorch's defaults are 1 and 20.
    Softplus softplus(beta, threshold): floating,
    |f, x, numbers| {
        let scaled = f.binary("multiply", x, numbers[0]);
        let curve = log_one_plus_exp(f, scaled);
        let curve = f.binary("divide", curve, numbers[0]);
        let linear = f.compare(Compare::Gt, scaled, numbers[1]);
        f.select(linear, x, curve)
    },
    |g, x, numbers| {
        let scaled = x.mul(numbers[0])?;
        let curve = g.mul(&scaled.sigmoid()?)?;
        scaled.gt(numbers[1])?.select_from(g, &curve)
    };
}
