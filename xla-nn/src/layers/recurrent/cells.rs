//! Single steps.

use super::cell::{Kind, State, Weights};
use crate::Module;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::{Tensor, TensorOptions};

/// One step of an [`Lstm`](super::Lstm), with parameters `weight_ih`, `weight_hh`, `bias_ih` and
/// `bias_hh`.
#[derive(Debug, Module)]
pub struct LstmCell {
    #[module(flatten)]
    weights: Weights,
}

/// One step of a [`Gru`](super::Gru).
#[derive(Debug, Module)]
pub struct GruCell {
    #[module(flatten)]
    weights: Weights,
}

/// One step of an [`Rnn`](super::Rnn) with `tanh`.
#[derive(Debug, Module)]
pub struct RnnCell {
    #[module(flatten)]
    weights: Weights,
}

macro_rules! cell {
    ($($cell:ident $kind:ident;)*) => {$(
        impl $cell {
            /// From `inputs` features to a state of `hidden`. `options` is a device, a float dtype,
            /// both, or `()`.
            ///
            /// # Errors
            /// [`Error::DTypeMismatch`] for a dtype that is no float; what creating the tensors
            /// returns.
            #[track_caller]
            pub fn new(
                inputs: usize,
                hidden: usize,
                options: impl Into<TensorOptions>,
            ) -> Result<Self> {
                let weights = Weights::new(Kind::$kind, inputs, hidden, 0, true, options.into())?;
                Ok($cell { weights })
            }

            /// As `new`, without biases.
            ///
            /// # Errors
            /// As `new`.
            #[track_caller]
            pub fn without_bias(
                inputs: usize,
                hidden: usize,
                options: impl Into<TensorOptions>,
            ) -> Result<Self> {
                let weights = Weights::new(Kind::$kind, inputs, hidden, 0, false, options.into())?;
                Ok($cell { weights })
            }
        }
    )*};
}

cell! {
    LstmCell Lstm;
    GruCell Gru;
    RnnCell Tanh;
}

impl LstmCell {
    /// The next hidden state and memory, `[batch, hidden]` each, from an input of `[batch, inputs]`
    /// and the last ones, or zeros. The batch axis may be absent everywhere.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the shapes do not fit.
    #[track_caller]
    pub fn forward(
        &self,
        input: &Tensor,
        state: Option<(&Tensor, &Tensor)>,
    ) -> Result<(Tensor, Tensor)> {
        let (hidden, memory) = (state.map(|s| s.0), state.map(|s| s.1));
        let next = step(Kind::Lstm, &self.weights, input, hidden, memory)?;
        let memory = next.memory.ok_or_else(|| Error::Internal {
            what: "lstm",
            expected: "a memory in its state".into(),
        })?;
        Ok((next.hidden, memory))
    }
}

macro_rules! forward {
    ($($cell:ident $kind:ident;)*) => {$(
        impl $cell {
            /// The next hidden state, `[batch, hidden]`, from an input of `[batch, inputs]` and the
            /// last state, or zeros. The batch axis may be absent from both.
            ///
            /// # Errors
            /// [`Error::ShapeMismatch`] when the shapes do not fit.
            #[track_caller]
            pub fn forward(&self, input: &Tensor, hidden: Option<&Tensor>) -> Result<Tensor> {
                step(Kind::$kind, &self.weights, input, hidden, None).map(|next| next.hidden)
            }
        }
    )*};
}

forward! {
    GruCell Gru;
    RnnCell Tanh;
}

#[track_caller]
fn step(
    kind: Kind,
    weights: &Weights,
    input: &Tensor,
    hidden: Option<&Tensor>,
    memory: Option<&Tensor>,
) -> Result<State> {
    let here = Location::caller();
    let op = kind.name();
    let [inputs, size] = [&weights.weight_ih, &weights.weight_hh].map(|w| w.dims()[1]);
    if !matches!(input.rank(), 1 | 2) || input.dims().last() != Some(&inputs) {
        let expected = format!("an input of shape [batch, {inputs}] or [{inputs}]");
        return Err(Error::shape(op, expected, input.shape()).at(here));
    }
    let mut wanted = input.dims().to_vec();
    wanted[input.rank() - 1] = size;
    let given = |state: Option<&Tensor>| match state {
        None => Tensor::zeros(&wanted, (input.dtype(), input.device())),
        Some(state) if state.dims() != wanted => {
            let expected = format!("a state of shape {wanted:?}");
            Err(Error::shape(op, expected, state.shape()).at(here))
        }
        Some(state) => Ok(state.clone()),
    };
    let state = State {
        hidden: given(hidden)?,
        memory: match kind {
            Kind::Lstm => Some(given(memory)?),
            _ => None,
        },
    };
    weights.step(kind, &weights.of_input(kind, input)?, &state)
}
