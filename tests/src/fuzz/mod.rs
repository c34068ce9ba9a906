//! Random shapes, dtypes and arguments thrown at every operator. Whatever comes, a call returns an
//! error or records something that compiles, runs, has the type that was promised, and, where an
//! independent computation on the host is at hand, the right value.

mod binary;
mod draw;
mod reduce;
mod run;
mod shape;
mod unary;

pub use draw::{Array, Draw};
pub use run::run;

use std::panic::{AssertUnwindSafe, catch_unwind};
use xla::{BackwardOptions, DType, Error, Result, Tensor};

/// One operator on drawn arguments.
#[derive(Clone, Copy)]
pub struct Property {
    /// PyTorch's name of the operator.
    pub name: &'static str,
    /// Draws arguments and calls it.
    pub run: fn(&mut Draw<'_>) -> Result<Call>,
}

/// What was called and what it returned.
pub struct Call {
    /// The tensors it was called on.
    pub inputs: Vec<Tensor>,
    /// What it returned.
    pub outputs: Vec<Tensor>,
    /// The first output's elements by other means, with the relative error allowed.
    pub expected: Option<(Vec<f64>, f64)>,
}

/// How far a case goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Recorded, with its derivative: shape rules and checks.
    Recorded,
    /// Also compiled, executed and compared.
    Executed,
}

/// How many choices a case has at most.
pub const CHOICES: usize = 256;

/// Every operator's property.
pub fn properties() -> Vec<Property> {
    [
        unary::properties(),
        binary::properties(),
        reduce::properties(),
        shape::properties(),
    ]
    .concat()
}

/// Whether an operator keeps its word on these choices.
///
/// # Errors
/// What it did instead.
pub fn check(property: &Property, choices: &[u32], depth: Depth) -> Result<(), String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| attempt(property, choices, depth)));
    outcome.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("without a message")))
    })
}

fn attempt(property: &Property, choices: &[u32], depth: Depth) -> Result<(), String> {
    let call = match (property.run)(&mut Draw::new(choices)) {
        Ok(call) => call,
        Err(error) => return refused(&error),
    };
    let described = describe(&call);
    let failed = |what: &str, error: &Error| format!("{what} of {described}: {error}");
    let grads = match gradients(&call) {
        Ok(grads) => grads,
        Err(error) => return Err(failed("the derivative", &error)),
    };
    if depth == Depth::Recorded {
        return Ok(());
    }
    for output in call.outputs.iter().chain(&grads) {
        let literal = output.to_literal().map_err(|e| failed("the value", &e))?;
        if literal.shape() != output.shape() || literal.dtype() != output.dtype() {
            let (got, promised) = (literal.shape(), output.shape());
            return Err(format!("{described}: promised {promised}, got {got}"));
        }
    }
    let Some((expected, tolerance)) = &call.expected else {
        return Ok(());
    };
    let literal = call.outputs[0].to_literal();
    let got: Vec<f64> = literal
        .and_then(|l| l.cast(DType::F64).to_vec())
        .map_err(|e| failed("the value", &e))?;
    if got.len() != expected.len() {
        return Err(format!(
            "{described}: expected {} elements, got {}",
            expected.len(),
            got.len()
        ));
    }
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let near = (g - e).abs() <= tolerance * e.abs().max(1.0);
        if !(g == e || near || (g.is_nan() && e.is_nan())) {
            return Err(format!("{described} [{i}]: expected {e:e}, got {g:e}"));
        }
    }
    Ok(())
}

/// An operator may refuse arguments; it may not fail inside.
fn refused(error: &Error) -> Result<(), String> {
    match error {
        Error::Internal { .. } | Error::Compile { .. } => Err(format!("refused with {error}")),
        _ => Ok(()),
    }
}

/// The gradients of the inputs that take part, of the inputs' types.
fn gradients(call: &Call) -> Result<Vec<Tensor>> {
    let Some(output) = call.outputs.first().filter(|o| o.requires_grad()) else {
        return Ok(Vec::new());
    };
    output.backward_with(BackwardOptions {
        gradient: Some(output.detach()?.ones_like()?),
        ..BackwardOptions::default()
    })?;
    let mut grads = Vec::new();
    for input in &call.inputs {
        let Some(grad) = input.grad() else { continue };
        if grad.shape() != input.shape() || grad.dtype() != input.dtype() {
            let expected = format!("a gradient of {}{}", input.dtype(), input.shape());
            let got = format!("{}{}", grad.dtype(), grad.shape());
            return Err(Error::argument("backward", "gradient", expected, got));
        }
        grads.push(grad);
    }
    Ok(grads)
}

fn describe(call: &Call) -> String {
    let types = |tensors: &[Tensor]| {
        let each = tensors
            .iter()
            .map(|t| format!("{}{}", t.dtype(), t.shape()));
        each.collect::<Vec<_>>().join(", ")
    };
    format!("({}) -> {}", types(&call.inputs), types(&call.outputs))
}
