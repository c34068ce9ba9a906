//! Barriers against the compiler's moving and merging.

use crate::Gradients;
use crate::Tensor;
use crate::op::{Derivative, InputType, Operand, Operator, Saves};
use crate::stablehlo::{Func, Value};
use crate::trace::record_op;
use crate::ty::Ty;
use std::panic::Location;
use xla_core::Result;

/// One of the operands, none of which is available before all are.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Barrier {
    index: usize,
}

impl Operator for Barrier {
    const NAME: &'static str = "optimization_barrier";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |op, vjp| {
            let mut gradients: Gradients = smallvec::smallvec![None; vjp.len()];
            gradients[op.index] = Some(vjp.grad().clone());
            Ok(gradients)
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[self.index].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], _: Ty) -> Result<Value> {
        static WHAT: u8 = 0;
        let what = std::ptr::from_ref(&WHAT).addr();
        let all = f.once(what, inputs, |f| Ok(f.barrier(inputs)))?;
        Ok(all[self.index])
    }
}

/// The tensors as they are, none of which the compiler has available before all of them: it cannot
/// move operators on them ahead of what any of them depends on, nor merge operators on them with equal
/// ones on the tensors given. As `jax.lax.optimization_barrier`.
///
/// Gradients flow through, each tensor's to itself, and have a barrier of their own only where one
/// is put.
///
/// # Errors
/// [`xla_core::Error::DeviceMismatch`] for tensors on two devices.
///
/// ```no_run
/// # fn demo(x: &xla_lazy::Tensor, y: &xla_lazy::Tensor) -> xla_core::Result<()> {
/// let [x, y] = &xla_lazy::optimization_barrier(&[x, y])?[..] else { unreachable!() };
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn optimization_barrier(tensors: &[&Tensor]) -> Result<Vec<Tensor>> {
    let at = Location::caller();
    let operands: Vec<Operand<'_>> = tensors.iter().map(|&t| t.into()).collect();
    (0..tensors.len())
        .map(|index| crate::trace::record_at(crate::op::entry(Barrier { index }), &operands, at))
        .collect()
}

/// The first tensor, not available before the second.
pub(crate) fn after(x: &Tensor, other: &Tensor) -> Result<Tensor> {
    record_op(Barrier { index: 0 }, &[x.into(), other.into()])
}
