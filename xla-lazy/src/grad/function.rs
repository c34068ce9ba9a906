//! Nodes with a derivative of their own: what a user wrote as two functions, and what is computed
//! again in the backward pass.

use super::{Gradients, Vjp};
use crate::Tensor;
use crate::op::{Derivative, InputType, Operand, Operator, Saves, entry};
use crate::stablehlo::{Func, Value};
use crate::trace::{self, flag, is_grad_enabled, no_grad};
use crate::ty::Ty;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{Error, Result};

/// Where a node's gradient flows to.
pub(crate) enum Flow {
    /// To the node's operands, one gradient each.
    Inputs(Gradients),
    /// To this tensor, which has been recorded in the pass.
    Through(Tensor),
}

/// The derivative of one node.
pub(crate) trait Function: Send + Sync {
    /// From the output's gradient to where it flows. The operands have their history.
    ///
    /// # Errors
    /// Those of what is recorded.
    fn backward(&self, vjp: &Vjp<'_>) -> Result<Flow>;
}

/// The first operand, with the further ones as what it depends on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Apply<const OUTPUT: bool>;

/// Most operands after the first.
const MOST: usize = 31;

const OPERANDS: Saves = {
    let mut saves = Saves::NONE;
    let mut index = 1;
    while index <= MOST {
        saves = saves.and_input(index as u32);
        index += 1;
    }
    saves
};

impl<const OUTPUT: bool> Operator for Apply<OUTPUT> {
    const NAME: &'static str = if OUTPUT { "function" } else { "checkpoint" };
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: if OUTPUT {
            OPERANDS.and_output()
        } else {
            OPERANDS
        },
        rule: |_, _| {
            Err(Error::Internal {
                what: Self::NAME,
                expected: "the node's own derivative".into(),
            })
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        if inputs.len() > MOST + 1 {
            let expected = format!("at most {MOST} tensors");
            return Err(Error::argument(
                Self::NAME,
                "inputs",
                expected,
                inputs.len() - 1,
            ));
        }
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, _: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(inputs[0])
    }
}

/// `value`, which no gradient flows to, as a function of `inputs` with this derivative. `OUTPUT` says
/// whether the derivative reads the value.
pub(crate) fn apply<const OUTPUT: bool>(
    value: &Tensor,
    inputs: &[Tensor],
    function: Arc<dyn Function>,
    at: &'static Location<'static>,
) -> Result<Tensor> {
    let mut operands = vec![Operand::Tensor(value)];
    operands.extend(inputs.iter().map(Operand::Tensor));
    let result = trace::record_at(entry(Apply::<OUTPUT>), &operands, at)?;
    trace::with_node(Apply::<OUTPUT>::NAME, &result, at, |_, state, index| {
        state.recording.nodes[index as usize].flags |= flag::GRAD;
        state.recording.functions.insert(index, function);
    })?;
    Ok(result)
}

/// What the derivative of a [`function()`] is given.
#[derive(Debug)]
pub struct FunctionContext<'a> {
    /// The gradient of the output.
    pub grad: &'a Tensor,
    /// The inputs, in order.
    pub inputs: &'a [Tensor],
    /// The output.
    pub output: &'a Tensor,
}

struct Custom<F>(F);

impl<F> Function for Custom<F>
where
    F: Fn(&FunctionContext<'_>) -> Result<Vec<Option<Tensor>>> + Send + Sync,
{
    fn backward(&self, vjp: &Vjp<'_>) -> Result<Flow> {
        let inputs = vjp.tensors(1)?;
        let gradients = (self.0)(&FunctionContext {
            grad: vjp.grad(),
            inputs: &inputs,
            output: vjp.output()?,
        })?;
        if gradients.len() != inputs.len() {
            let expected = format!("{} gradients, one an input", inputs.len());
            return Err(Error::argument(
                "function",
                "backward",
                expected,
                gradients.len(),
            ));
        }
        for (gradient, input) in gradients.iter().zip(&inputs) {
            if let Some(gradient) = gradient
                && gradient.shape() != input.shape()
            {
                let expected = format!("a gradient of the input's shape {}", input.shape());
                return Err(Error::shape("function", expected, gradient.shape()));
            }
        }
        Ok(Flow::Inputs(
            std::iter::once(None).chain(gradients).collect(),
        ))
    }
}

/// `forward(inputs)` with a derivative of its own: PyTorch's `torch.autograd.Function`. `forward` is
/// not differentiated; `backward` returns one gradient for each input, or `None` where there is none.
///
/// # Errors
/// Those of `forward`; [`Error::Argument`] for more than 31 inputs. Those of `backward` become those of
/// the pass.
///
/// ```no_run
/// # fn demo(x: &xla_lazy::Tensor) -> xla_core::Result<()> {
/// // Rounds, and lets the gradient through as it is.
/// let y = xla_lazy::function(
///     &[x],
///     |inputs| inputs[0].round(),
///     |context| Ok(vec![Some(context.grad.clone())]),
/// )?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn function(
    inputs: &[&Tensor],
    forward: impl FnOnce(&[Tensor]) -> Result<Tensor>,
    backward: impl Fn(&FunctionContext<'_>) -> Result<Vec<Option<Tensor>>> + Send + Sync + 'static,
) -> Result<Tensor> {
    let at = Location::caller();
    let inputs: Vec<Tensor> = inputs.iter().map(|&input| input.clone()).collect();
    let value = no_grad(|| forward(&inputs)?.copy())?;
    if !is_grad_enabled() || !value.dtype().is_float() || !inputs.iter().any(Tensor::requires_grad)
    {
        return Ok(value);
    }
    apply::<true>(&value, &inputs, Arc::new(Custom(backward)), at)
}
