//! One number added to each channel.

use xla_core::{Dims, Result};
use xla_lazy::stablehlo::{Func, Value};
use xla_lazy::{
    Derivative, InputType, Operator, Saves, Tensor, Ty, Vjp, optimization_barrier, record_op,
};

/// From `[batch, channels, spatial..]` and `[channels]`: their sum.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct ChannelBias;

impl Operator for ChannelBias {
    const NAME: &'static str = "channel_bias";
    const DERIVATIVE: Derivative<Self> = Derivative::Rule {
        saves: Saves::NONE,
        rule: |_, vjp: &Vjp<'_>| {
            if !vjp.needs(1) {
                return Ok([Some(vjp.grad().clone()), None].into_iter().collect());
            }
            // Three read this gradient: the bias's sum, and the gradients of the convolution's
            // input and weight, all with the channels last. Left alone XLA's CPU compiler sums it
            // with the channels first, and computes all that comes before it, of a pooled layer the
            // pooling's, once for each: a step of a small image model took a quarter longer.
            let rank = vjp.grad().rank();
            let last: Dims = [0].into_iter().chain(2..rank).chain([1]).collect();
            let first: Dims = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
            let moved = vjp.grad().permute(last.as_slice())?;
            let held = optimization_barrier(&[&moved])?.swap_remove(0);
            let places: Dims = (0..rank - 1).collect();
            let bias = held.sum(places.as_slice(), false)?;
            let y = held.permute(first.as_slice())?;
            Ok([Some(y), Some(bias)].into_iter().collect())
        },
    };

    fn infer(&self, inputs: &[InputType]) -> Result<Ty> {
        inputs[0].tensor(Self::NAME)
    }

    fn lower(&self, f: &mut Func, inputs: &[Value], out: Ty) -> Result<Value> {
        let bias = f.broadcast_in_dim(inputs[1], out.shape(), &[1]);
        Ok(f.binary("add", inputs[0], bias))
    }
}

/// `y` with one number of `bias`, of its dtype, added to each channel.
#[track_caller]
pub(super) fn biased(y: &Tensor, bias: &Tensor) -> Result<Tensor> {
    record_op(ChannelBias, &[y.into(), bias.into()])
}
