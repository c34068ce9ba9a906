//! Exponential linear units: the identity above 0, a saturating exponential below.

use super::*;
use crate::ops::unary::unary;
use xla_core::Error;

/// From [Klambauer et al., 2017](https://arxiv.org/abs/1706.02515), with the digits of PyTorch.
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

/// `x` above 0, `below` elsewhere.
fn positive_or(f: &mut Func, x: Value, below: Value) -> Value {
    let negative = compared(f, Compare::Le, x, 0.0);
    f.select(negative, below, x)
}

/// The exponential where `x` is not above 0, and 1 elsewhere, where it might be infinite.
fn exp_below(x: &Tensor) -> Result<Tensor> {
    x.minimum(0)?.exp()
}

fn not_zero(op: &'static str, alpha: &[Number], at: &'static Location<'static>) -> Result<()> {
    match alpha.iter().any(|alpha| alpha.to_f64() == 0.0) {
        true => Err(Error::argument(op, "alpha", "a number other than 0", 0).at(at)),
        false => Ok(()),
    }
}

unary! {
    /// `scale * (x above 0, else alpha * (e^x - 1))` with the constants that keep mean 0 and
    /// variance 1 ([Klambauer et al., 2017](https://arxiv.org/abs/1706.02515)).
    Selu selu: floating,
    |f, x, out| widened(f, x, out, |f, x| {
        let below = f.unary("exponential_minus_one", x);
        let below = with_constant(f, "multiply", below, SELU_ALPHA);
        let y = positive_or(f, x, below);
        with_constant(f, "multiply", y, SELU_SCALE)
    }),
    from_input!(|g, x| {
        let scaled = g.mul(SELU_SCALE)?;
        let below = exp_below(x)?.mul(SELU_ALPHA)?.mul(&scaled)?;
        x.le(0)?.select_from(&below, &scaled)
    });
}

with_numbers! {
    /// `x` above 0, else `alpha * (e^x - 1)`
    /// ([Clevert et al., 2015](https://arxiv.org/abs/1511.07289)).
    Elu elu(alpha): floating,
    |f, x, numbers| {
        let below = f.unary("exponential_minus_one", x);
        let below = f.binary("multiply", below, numbers[0]);
        positive_or(f, x, below)
    },
    |g, x, numbers| {
        let below = exp_below(x)?.mul(numbers[0])?.mul(g)?;
        x.le(0)?.select_from(&below, g)
    };

    /// `x` above 0, else `alpha * (e^(x / alpha) - 1)`, which has no kink at 0
    /// ([Barron, 2017](https://arxiv.org/abs/1704.07483)). An `alpha` of 0 is an
    /// [`Error::Argument`].
    Celu celu(alpha) if not_zero: floating,
    |f, x, numbers| {
        let scaled = f.binary("divide", x, numbers[0]);
        let below = f.unary("exponential_minus_one", scaled);
        let below = f.binary("multiply", below, numbers[0]);
        positive_or(f, x, below)
    },
    |g, x, numbers| {
        let below = x.minimum(0)?.div(numbers[0])?.exp()?.mul(g)?;
        x.le(0)?.select_from(&below, g)
    };
}
