//! Keeps a value from being computed again inside what reads it.

use xla_core::Result;
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{Derivative, InputType, Operator, Saves, Tensor, Ty, record_op};

/// The operand, computed on its own.
///
/// XLA's CPU compiler fuses a small reduction into a concatenation that reads it, and then evaluates
/// the reduction for every element of the whole bucket: a training step that averages its gradients
/// in buckets took ten times as long without this.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Separate;

impl Operator for Separate {
    const NAME: &'static str = "separate";

    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |_, vjp| vjp.only(Ok(vjp.grad().clone())),
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        Ok(f.unary("optimization_barrier", inputs[0]))
    }
}

/// `tensor`, fused with nothing that reads it.
pub(super) fn separate(tensor: &Tensor) -> Result<Tensor> {
    record_op(Separate, &[tensor.into()])
}
