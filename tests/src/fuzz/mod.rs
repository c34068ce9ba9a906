//! Random shapes, dtypes and arguments thrown at every operator. Whatever comes, a call returns an
//! error or records something that compiles, runs, has the type that was promised, and, where an
//! independent computation on the host is at hand, the right value.

mod activation;
mod binary;
mod combine;
mod conv;
mod draw;
mod index;
mod inplace;
mod linalg;
mod loss;
mod norm;
mod pool;
mod random;
mod reduce;
mod run;
mod scan;
mod shape;
mod sort;
mod unary;

pub use draw::{Array, Draw};
pub use run::run;

use ndarray::ArrayD;
use std::panic::{AssertUnwindSafe, catch_unwind};
use xla::{DType, Error, GradOptions, Literal, Result, Tensor};

/// Draws arguments and calls an operator on them.
pub type Run = fn(&mut Draw<'_>) -> Result<Call>;

/// One operator on drawn arguments.
#[derive(Clone, Copy)]
pub struct Property {
    /// PyTorch's name of the operator.
    pub name: &'static str,
    /// Draws arguments and calls it.
    pub run: Run,
}

/// What was called and what it returned.
pub struct Call {
    /// The tensors it was called on.
    pub inputs: Vec<Tensor>,
    /// What it returned.
    pub outputs: Vec<Tensor>,
    /// The outputs' elements by other means, with the relative error allowed; of the first ones,
    /// where the host's value is at hand.
    pub expected: Vec<Option<(ArrayD<f64>, f64)>>,
}

impl Call {
    /// A call of which no value is known.
    pub fn new(inputs: Vec<Tensor>, outputs: Vec<Tensor>) -> Self {
        Call {
            inputs,
            outputs,
            expected: Vec::new(),
        }
    }

    /// Says what the next output holds, but for this error relative to the elements.
    #[must_use]
    pub fn expect(mut self, values: Option<ArrayD<f64>>, tolerance: f64) -> Self {
        self.expected.push(values.map(|values| (values, tolerance)));
        self
    }
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
pub const CHOICES: usize = 384;

/// Every operator's property.
pub fn properties() -> Vec<Property> {
    [
        unary::properties(),
        activation::properties(),
        binary::properties(),
        combine::properties(),
        reduce::properties(),
        scan::properties(),
        shape::properties(),
        sort::properties(),
        index::properties(),
        linalg::properties(),
        conv::properties(),
        pool::properties(),
        norm::properties(),
        loss::properties(),
        random::properties(),
        inplace::properties(),
    ]
    .concat()
}

/// Whether an operator keeps its word on these choices.
///
/// # Errors
/// What it did instead.
pub fn check(property: &Property, choices: &[u32], depth: Depth) -> Result<(), String> {
    match (record(property, choices, depth)?, depth) {
        (Some(case), Depth::Executed) => case.compare(),
        _ => Ok(()),
    }
}

/// The same for several choices, which are executed as one program.
///
/// # Errors
/// What happened instead in one of them.
pub fn hold_together(
    property: &Property,
    choices: &[Vec<u32>],
    depth: Depth,
) -> Result<(), String> {
    let record = |choices: &Vec<u32>| record(property, choices, depth);
    if depth == Depth::Recorded {
        return choices.iter().try_for_each(|one| record(one).map(drop));
    }
    let cases: Vec<_> = choices.iter().map(record).collect::<Result<_, _>>()?;
    xla::sync().map_err(|error| error.to_string())?;
    cases.iter().flatten().try_for_each(Case::compare)
}

/// A call that was not refused, and the gradients of its inputs.
struct Case {
    call: Call,
    grads: Vec<Tensor>,
}

/// Calls an operator and records its derivative; nothing where it refuses the arguments.
fn record(property: &Property, choices: &[u32], depth: Depth) -> Result<Option<Case>, String> {
    let recorded = || {
        let call = match (property.run)(&mut Draw::new(choices, depth)) {
            Ok(call) => call,
            Err(error) => return refused(&error).map(|()| None),
        };
        match gradients(&call) {
            Ok(grads) => Ok(Some(Case { call, grads })),
            // Of an empty tensor with a huge axis the reduced ones are too large.
            Err(Error::ShapeMismatch { .. }) if call.inputs.iter().any(is_huge) => Ok(None),
            Err(error) => Err(format!("the derivative of {}: {error}", describe(&call))),
        }
    };
    catch_unwind(AssertUnwindSafe(recorded)).unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panicked: {}", text.unwrap_or("without a message")))
    })
}

fn is_huge(tensor: &Tensor) -> bool {
    let lengths = tensor.dims().iter().map(|&d| d.max(1) as f64);
    lengths.product::<f64>() > 2f64.powi(50)
}

impl Case {
    /// Executes what was recorded and compares it with what was promised.
    fn compare(&self) -> Result<(), String> {
        let described = describe(&self.call);
        for (i, output) in self.call.outputs.iter().chain(&self.grads).enumerate() {
            let literal = output
                .to_literal()
                .map_err(|error| format!("the value of {described}: {error}"))?;
            if literal.shape() != output.shape() || literal.dtype() != output.dtype() {
                let (got, promised) = (literal.shape(), output.shape());
                return Err(format!("{described}: promised {promised}, got {got}"));
            }
            if let Some(Some((expected, tolerance))) = self.call.expected.get(i) {
                compare(&literal, expected, *tolerance)
                    .map_err(|reason| format!("{described}, output {i}: {reason}"))?;
            }
        }
        Ok(())
    }
}

/// Whether a value has these elements, within an error relative to them.
fn compare(literal: &Literal, expected: &ArrayD<f64>, tolerance: f64) -> Result<(), String> {
    if literal.shape().dims() != expected.shape() {
        let (want, got) = (expected.shape(), literal.shape());
        return Err(format!("expected shape {want:?}, got {got}"));
    }
    let got: Vec<f64> = literal
        .cast(DType::F64)
        .to_vec()
        .map_err(|error| error.to_string())?;
    // Beyond this a number of 16 bits is infinite.
    let most = match literal.dtype() {
        DType::F16 => 6.5e4,
        _ => f64::INFINITY,
    };
    for (i, (&g, &e)) in got.iter().zip(expected).enumerate() {
        let near = (g - e).abs() <= tolerance * e.abs().max(1.0);
        let beyond = e.abs() > most && g.abs() > most && g.signum() == e.signum();
        if !(g == e || near || beyond || (g.is_nan() && e.is_nan())) {
            return Err(format!("element {i}: expected {e:e}, got {g:e}"));
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

/// The gradients of the inputs that take part, of the inputs' types. Nothing is accumulated: what a
/// leaf held would be executed with a later case, and may be too large for any memory.
fn gradients(call: &Call) -> Result<Vec<Tensor>> {
    let Some(output) = call.outputs.first().filter(|o| o.requires_grad()) else {
        return Ok(Vec::new());
    };
    let inputs: Vec<&Tensor> = call.inputs.iter().filter(|i| i.requires_grad()).collect();
    let options = GradOptions {
        grad_outputs: Some(vec![output.detach()?.ones_like()?]),
        allow_unused: true,
        ..GradOptions::default()
    };
    let grads = xla::grad(&[output], &inputs, options)?;
    for (input, grad) in inputs.iter().zip(&grads) {
        let Some(grad) = grad else { continue };
        if grad.shape() != input.shape() || grad.dtype() != input.dtype() {
            let expected = format!("a gradient of {}{}", input.dtype(), input.shape());
            let got = format!("{}{}", grad.dtype(), grad.shape());
            return Err(Error::argument("grad", "gradient", expected, got));
        }
    }
    Ok(grads.into_iter().flatten().collect())
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
