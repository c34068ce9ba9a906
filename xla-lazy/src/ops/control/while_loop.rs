//! Loops that end when a condition does.

use super::hub::Kind;
use super::run::Plan;
use super::scan::device;
use crate::Tensor;
use std::panic::Location;
use xla_core::{Error, Result};

/// How [`while_loop_with`] runs.
#[derive(Debug, Clone, Default)]
pub struct WhileOptions {
    /// Most iterations: the loop ends after them even if the condition holds. The carries of so many
    /// are kept for gradients, which a loop without a bound has none of.
    pub max_iterations: Option<usize>,
}

/// As long as `condition(carry)` is true, a `bool` of one element, `carry = body(carry)`: the carry at
/// the end. As PyTorch's `while_loop` and `jax.lax.while_loop`.
///
/// Both functions are recorded once and run on the device as one loop, under the rules of
/// [`scan`](crate::scan()). How often they run is decided there.
///
/// No gradient can flow through a loop that may go on for ever, as in JAX: [`while_loop_with`] takes
/// a bound, with which it does.
///
/// # Errors
/// As [`scan`](crate::scan()); [`Error::ShapeMismatch`] for a condition that is not one `bool`;
/// [`Error::Argument`] for no carry, or a condition that changes a tensor in place. The backward pass
/// returns [`Error::Autograd`] for a loop without a bound.
///
/// ```no_run
/// # fn demo(x: &xla_lazy::Tensor) -> xla_core::Result<()> {
/// // Doubled until the largest element is at least 1000.
/// let grown = xla_lazy::while_loop(
///     &[x],
///     |carry| carry[0].amax((), false)?.lt(1000),
///     |carry| Ok(vec![carry[0].mul(2)?]),
/// )?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn while_loop(
    init: &[&Tensor],
    condition: impl FnMut(&[Tensor]) -> Result<Tensor>,
    body: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    while_loop_with(WhileOptions::default(), init, condition, body)
}

/// [`while_loop()`] with a bound, and then with gradients. As much memory as the bound allows for is
/// used where gradients are recorded, however many iterations there are.
///
/// # Errors
/// As [`while_loop()`].
#[track_caller]
pub fn while_loop_with(
    options: WhileOptions,
    init: &[&Tensor],
    mut condition: impl FnMut(&[Tensor]) -> Result<Tensor>,
    body: impl FnOnce(&[Tensor]) -> Result<Vec<Tensor>>,
) -> Result<Vec<Tensor>> {
    let at = Location::caller();
    if init.is_empty() {
        let error = Error::argument("while_loop", "init", "at least one tensor", "none");
        return Err(error.at(at));
    }
    let init: Vec<Tensor> = init.iter().map(|&t| t.clone()).collect();
    let plan = Plan {
        kind: Kind::While,
        length: options.max_iterations,
        reverse: false,
        device: device(init.iter().collect::<Vec<_>>().iter(), at)?,
        init: &init,
        sequences: &[],
        count: None,
        at,
    };
    let each = |carry: &[Tensor], _: &[Tensor]| Ok((body(carry)?, Vec::new()));
    let (carry, _) = plan.run(Some(&mut condition), each)?;
    Ok(carry)
}
