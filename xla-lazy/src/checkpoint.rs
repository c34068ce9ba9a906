//! Gradient checkpointing: computing again in the backward pass instead of keeping.

use crate::Tensor;
use crate::grad::{Flow, Function, Vjp, apply};
use crate::ops::{Snapshot, after, default_generator};
use crate::trace::{enable_grad, is_grad_enabled, no_grad};
use std::panic::Location;
use std::sync::Arc;
use xla_core::Result;

struct Checkpoint<F> {
    f: F,
    /// Whether the generator's state before the forward pass is the last operand.
    draws: bool,
}

impl<F> Function for Checkpoint<F>
where
    F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync,
{
    fn backward(&self, vjp: &Vjp<'_>) -> Result<Flow> {
        let mut inputs = vjp.tensors(1)?;
        let state = if self.draws { inputs.pop() } else { None };
        enable_grad(|| {
            let inputs: Vec<Tensor> = inputs
                .iter()
                // The compiler would otherwise find that what is computed again has been computed
                // already, and keep it.
                .map(|input| after(input, vjp.grad()))
                .collect::<Result<_>>()?;
            let Some(state) = state else {
                return (self.f)(&inputs).map(Flow::Through);
            };
            let generator = default_generator(state.device())?;
            let now = generator.get_state()?;
            generator.set_state(&state)?;
            let output = (self.f)(&inputs);
            generator.set_state(&now)?;
            output.map(Flow::Through)
        })
    }
}

/// `f(inputs)` without keeping what lies between: the backward pass calls `f` once more. It trades
/// computation for memory (Chen et al., "Training deep nets with sublinear memory cost", 2016), as
/// PyTorch's `torch.utils.checkpoint.checkpoint`.
///
/// Gradients flow to the inputs and to what `f` captures, such as parameters. What `f` draws from the
/// replica's generator is drawn again alike. `f` has to record the same operators each time, and must
/// not read values to the host.
///
/// # Errors
/// Those of `f`, here and in the backward pass; [`xla_core::Error::Argument`] for more than 30 inputs.
///
/// ```no_run
/// # fn demo(x: &xla_lazy::Tensor, w: xla_lazy::Tensor) -> xla_core::Result<()> {
/// let y = xla_lazy::checkpoint(move |inputs| inputs[0].matmul(&w)?.exp()?.sin(), &[x])?;
/// y.sum((), false)?.backward()?;
/// # Ok(())
/// # }
/// ```
#[track_caller]
pub fn checkpoint<F>(f: F, inputs: &[&Tensor]) -> Result<Tensor>
where
    F: Fn(&[Tensor]) -> Result<Tensor> + Send + Sync + 'static,
{
    let at = Location::caller();
    let mut inputs: Vec<Tensor> = inputs.iter().map(|&input| input.clone()).collect();
    if !is_grad_enabled() {
        return f(&inputs);
    }
    let device = match inputs.first() {
        Some(input) => input.device(),
        None => crate::spmd::default_device("checkpoint")?,
    };
    let before = Snapshot::of_device(device)?;
    let output = f(&inputs)?;
    if !output.requires_grad() {
        return Ok(output);
    }
    let value = no_grad(|| output.copy())?;
    let state = before.if_used();
    let draws = state.is_some();
    inputs.extend(state);
    apply::<false>(&value, &inputs, Arc::new(Checkpoint { f, draws }), at)
}
