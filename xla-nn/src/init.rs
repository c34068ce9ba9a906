//! Initial values of parameters, by PyTorch's rules.

use xla_core::{Error, IntoShape, Result};
use xla_lazy::{Tensor, TensorOptions, no_grad};

/// A leaf tensor of independent values from the uniform distribution on `low..high`, of a float
/// dtype.
///
/// # Errors
/// [`Error::Argument`] when `low > high` or either is not finite; what `rand` returns.
#[track_caller]
pub fn uniform(
    shape: impl IntoShape,
    low: f64,
    high: f64,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    if !(low.is_finite() && high.is_finite() && low <= high) {
        return Err(Error::argument(
            "init::uniform",
            "low, high",
            "finite numbers, low at most high",
            format!("{low}, {high}"),
        )
        .at(std::panic::Location::caller()));
    }
    no_grad(|| Tensor::rand(shape, options)?.mul(high - low)?.add(low))
}

/// [`uniform`] on `-bound..bound` with `bound = sqrt(6 / ((1 + a²) fan_in))`: He's initialisation
/// for layers before a leaky ReLU of negative slope `a`.
///
/// `fan_in`, the number of inputs that one output sums over, is the product of all axes but the
/// first.
///
/// # Errors
/// [`Error::ShapeMismatch`] for a shape of fewer than two axes; what [`uniform`] returns.
#[track_caller]
pub fn kaiming_uniform(
    shape: impl IntoShape,
    a: f64,
    options: impl Into<TensorOptions>,
) -> Result<Tensor> {
    let shape = shape.into_shape("init::kaiming_uniform")?;
    let Some((_, inputs)) = shape.split_first().filter(|(_, inputs)| !inputs.is_empty()) else {
        return Err(Error::shape(
            "init::kaiming_uniform",
            "a shape of at least two axes",
            &shape,
        )
        .at(std::panic::Location::caller()));
    };
    let bound = kaiming_bound(inputs.iter().product(), a);
    uniform(&shape, -bound, bound, options)
}

fn kaiming_bound(fan_in: usize, a: f64) -> f64 {
    match fan_in {
        0 => 0.0,
        n => (6.0 / ((1.0 + a * a) * n as f64)).sqrt(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_of_linear_is_one_over_the_root_of_its_inputs() {
        // a = sqrt(5) makes 6 / (1 + 5) = 1.
        let bound = kaiming_bound(784, 5f64.sqrt());
        assert!((bound - 1.0 / 28.0).abs() < 1e-15, "{bound}");
        assert!((kaiming_bound(6, 0.0) - 1.0).abs() < 1e-15);
        assert_eq!(kaiming_bound(0, 0.0), 0.0);
    }
}
