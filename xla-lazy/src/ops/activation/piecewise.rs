//! Activations made of straight lines. A NaN stays NaN, and its gradient passes.

use super::*;
use crate::ops::unary::unary;
use xla_core::Error;

/// `x` limited to `low..=high`.
fn limited(f: &mut Func, x: Value, low: f64, high: f64) -> Value {
    let x = with_constant(f, "maximum", x, low);
    with_constant(f, "minimum", x, high)
}

/// The gradient, but 0 outside of `low < x < high`.
fn inside(g: &Tensor, x: &Tensor, low: Operand<'_>, high: Operand<'_>) -> Result<Tensor> {
    let outside = x.le(low)?.logical_or(&x.ge(high)?)?;
    outside.select_from(0, g)
}

unary! {
    /// `max(x, 0)`; NaN stays NaN. The gradient at 0 is 0.
    Relu relu: numeric,
    |f, x, _| with_constant(f, "maximum", x, 0.0),
    Derivative::Rule { saves: Saves::OUTPUT, rule: |_, vjp| {
        finish(vjp, vjp.output()?.le(0)?.select_from(0, vjp.grad()))
    } };

    /// `min(max(x, 0), 6)`. The gradient at 0 and 6 is 0.
    Relu6 relu6: numeric,
    |f, x, _| limited(f, x, 0.0, 6.0),
    from_input!(|g, x| inside(g, x, 0.into(), 6.into()));

    /// `min(max(x + 3, 0), 6) / 6`, a sigmoid of lines. The gradient at -3 and 3 is 0.
    Hardsigmoid hardsigmoid: floating,
    |f, x, out| widened(f, x, out, hard_sigmoid),
    from_input!(|g, x| {
        let slope = x.gt(-3)?.logical_and(&x.lt(3)?)?;
        slope.select_from(&g.div(6)?, 0)
    });

    /// `x * hardsigmoid(x)` ([Howard et al., 2019](https://arxiv.org/abs/1905.02244)).
    Hardswish hardswish: floating,
    |f, x, out| widened(f, x, out, |f, x| {
        let gate = hard_sigmoid(f, x);
        f.binary("multiply", x, gate)
    }),
    from_input!(|g, x| {
        let curved = x.div(3)?.add(0.5)?.mul(g)?;
        x.le(-3)?.select_from(0, &x.lt(3)?.select_from(&curved, g)?)
    });
}

fn hard_sigmoid(f: &mut Func, x: Value) -> Value {
    let moved = with_constant(f, "add", x, 3.0);
    let limited = limited(f, moved, 0.0, 6.0);
    with_constant(f, "divide", limited, 6.0)
}

fn not_negative(op: &'static str, lambd: &[Number], at: &'static Location<'static>) -> Result<()> {
    match lambd.iter().find(|lambd| lambd.to_f64() < 0.0) {
        Some(bad) => Err(Error::argument(op, "lambd", "at least 0", bad.to_f64()).at(at)),
        None => Ok(()),
    }
}

with_numbers! {
    /// `x` above 0, else `negative_slope * x`.
    LeakyRelu leaky_relu(negative_slope): floating,
    |f, x, numbers| {
        let positive = compared(f, Compare::Gt, x, 0.0);
        let scaled = f.binary("multiply", x, numbers[0]);
        f.select(positive, x, scaled)
    },
    |g, x, numbers| x.gt(0)?.select_from(g, &g.mul(numbers[0])?);

    /// `min(max(x, min_val), max_val)`. The gradient at both is 0, unlike that of
    /// [`Tensor::clamp`].
    Hardtanh hardtanh(min_val, max_val): numeric,
    |f, x, numbers| {
        let x = f.binary("maximum", x, numbers[0]);
        f.binary("minimum", x, numbers[1])
    },
    |g, x, numbers| inside(g, x, numbers[0], numbers[1]);

    /// `x` where it is above `threshold`, else `value`.
    Threshold threshold(threshold, value): numeric,
    |f, x, numbers| {
        let below = f.compare(Compare::Le, x, numbers[0]);
        f.select(below, numbers[1], x)
    },
    |g, x, numbers| x.le(numbers[0])?.select_from(0, g);

    /// `x`, but 0 in `-lambd..=lambd`.
    Hardshrink hardshrink(lambd): floating,
    |f, x, numbers| {
        let size = f.unary("abs", x);
        let small = f.compare(Compare::Le, size, numbers[0]);
        let zero = f.constant(x.dtype(), x.shape(), 0.0);
        f.select(small, zero, x)
    },
    |g, x, numbers| x.abs()?.le(numbers[0])?.select_from(0, g);

    /// `x` moved towards 0 by `lambd`, and 0 in `-lambd..=lambd`. A negative `lambd` is an
    /// [`Error::Argument`].
    Softshrink softshrink(lambd) if not_negative: floating,
    |f, x, numbers| {
        let low = f.unary("negate", numbers[0]);
        let nearest = f.binary("maximum", x, low);
        let nearest = f.binary("minimum", nearest, numbers[0]);
        f.binary("subtract", x, nearest)
    },
    |g, x, numbers| x.abs()?.le(numbers[0])?.select_from(0, g);
}
