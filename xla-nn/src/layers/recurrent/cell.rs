//! One step of a recurrent layer.

use super::super::linear::fan_in_uniform;
use crate::{Member, Module, Visitor, functional};
use xla_core::Result;
use xla_lazy::{Tensor, TensorOptions};

/// What a step computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Lstm,
    Gru,
    Tanh,
    Relu,
}

impl Member for Kind {
    fn show<'a>(&'a self, _: &str, _: &mut Visitor<'_, 'a>) {}
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Lstm => "lstm",
            Kind::Gru => "gru",
            Kind::Tanh | Kind::Relu => "rnn",
        }
    }

    /// How many vectors of the hidden size a step computes from the input.
    fn gates(self) -> usize {
        match self {
            Kind::Lstm => 4,
            Kind::Gru => 3,
            Kind::Tanh | Kind::Relu => 1,
        }
    }
}

/// The parameters of one layer in one direction, under the names that a cell gives them.
#[derive(Debug, Module)]
pub(crate) struct Weights {
    pub(super) weight_ih: Tensor,
    pub(super) weight_hh: Tensor,
    pub(super) bias_ih: Option<Tensor>,
    pub(super) bias_hh: Option<Tensor>,
    /// From the hidden state to a smaller output.
    pub(super) weight_hr: Option<Tensor>,
}

/// What goes from step to step: the output, and the cell's memory if it has one.
#[derive(Clone)]
pub(super) struct State {
    pub(super) hidden: Tensor,
    pub(super) memory: Option<Tensor>,
}

impl Weights {
    #[track_caller]
    pub(super) fn new(
        kind: Kind,
        inputs: usize,
        hidden: usize,
        projection: usize,
        bias: bool,
        options: TensorOptions,
    ) -> Result<Self> {
        let rows = kind.gates() * hidden;
        let outputs = if projection > 0 { projection } else { hidden };
        Ok(Weights {
            weight_ih: fan_in_uniform([rows, inputs], hidden, options)?,
            weight_hh: fan_in_uniform([rows, outputs], hidden, options)?,
            bias_ih: match bias {
                true => Some(fan_in_uniform([rows], hidden, options)?),
                false => None,
            },
            bias_hh: match bias {
                true => Some(fan_in_uniform([rows], hidden, options)?),
                false => None,
            },
            weight_hr: match projection {
                0 => None,
                _ => Some(fan_in_uniform([projection, hidden], hidden, options)?),
            },
        })
    }

    /// What the input contributes to the steps, of any number of leading axes: for all steps of a
    /// sequence it is one product.
    #[track_caller]
    pub(super) fn of_input(&self, kind: Kind, input: &Tensor) -> Result<Tensor> {
        let bias = match (&self.bias_ih, &self.bias_hh) {
            // The reset gate of a GRU scales the hidden state's bias, so it cannot be added before.
            (Some(a), Some(b)) if kind != Kind::Gru => Some(a.add(b)?),
            (bias, _) => bias.clone(),
        };
        functional::linear(input, &self.weight_ih, bias.as_ref())
    }

    /// One step: `input` is what [`Weights::of_input`] made of it.
    #[track_caller]
    pub(super) fn step(&self, kind: Kind, input: &Tensor, state: &State) -> Result<State> {
        let bias = self.bias_hh.as_ref().filter(|_| kind == Kind::Gru);
        let recurrent = functional::linear(&state.hidden, &self.weight_hh, bias)?;
        let only = |hidden| State {
            hidden,
            memory: None,
        };
        match kind {
            Kind::Tanh => input.add(&recurrent)?.tanh().map(only),
            Kind::Relu => input.add(&recurrent)?.relu().map(only),
            Kind::Gru => {
                let [ir, iz, i_n] = gates(input)?;
                let [hr, hz, hn] = gates(&recurrent)?;
                let reset = ir.add(&hr)?.sigmoid()?;
                let update = iz.add(&hz)?.sigmoid()?;
                let new = i_n.add(&reset.mul(&hn)?)?.tanh()?;
                // (1 - update) * new + update * hidden
                new.add(&update.mul(&state.hidden.sub(&new)?)?).map(only)
            }
            Kind::Lstm => {
                let [input, forget, new, output] = gates(&input.add(&recurrent)?)?;
                let new = input.sigmoid()?.mul(&new.tanh()?)?;
                let memory = match &state.memory {
                    Some(memory) => forget.sigmoid()?.mul(memory)?.add(&new)?,
                    None => new,
                };
                let mut hidden = output.sigmoid()?.mul(&memory.tanh()?)?;
                if let Some(projection) = &self.weight_hr {
                    hidden = functional::linear(&hidden, projection, None)?;
                }
                Ok(State {
                    hidden,
                    memory: Some(memory),
                })
            }
        }
    }
}

/// `N` equal parts of the last axis.
#[track_caller]
fn gates<const N: usize>(joined: &Tensor) -> Result<[Tensor; N]> {
    let size = joined.dims()[joined.rank() - 1] / N;
    let mut parts = Vec::with_capacity(N);
    for i in 0..N {
        parts.push(joined.narrow(-1, (i * size) as i64, size)?);
    }
    parts.try_into().map_err(|_| xla_core::Error::Internal {
        what: "a recurrent step",
        expected: format!("{N} gates"),
    })
}
