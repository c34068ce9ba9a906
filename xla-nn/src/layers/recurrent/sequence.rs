//! What recurrent layers have in common.

use super::super::builder::setters;
use super::cell::{Kind, State, Weights};
use crate::layers::at_users_line;
use crate::module::as_state;
use crate::{Module, Training, Visitor, functional};
use std::borrow::Cow;
use std::marker::PhantomData;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::autocast::lower;
use xla_lazy::{Tensor, TensorOptions};

/// Layers of one or two directions each.
#[derive(Debug)]
pub(super) struct Sequence {
    options: Options,
    /// By layer, then direction.
    weights: Vec<Weights>,
    training: Training,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Options {
    kind: Kind,
    inputs: usize,
    hidden: usize,
    num_layers: usize,
    bias: bool,
    batch_first: bool,
    dropout: f64,
    bidirectional: bool,
    proj_size: usize,
}

impl Options {
    fn directions(&self) -> usize {
        if self.bidirectional { 2 } else { 1 }
    }

    /// Length of one direction's output.
    fn outputs(&self) -> usize {
        if self.proj_size > 0 {
            self.proj_size
        } else {
            self.hidden
        }
    }
}

/// Makes an [`Lstm`](super::Lstm), a [`Gru`](super::Gru) or an [`Rnn`](super::Rnn).
#[derive(Debug, Clone)]
pub struct RecurrentBuilder<L> {
    num_layers: usize,
    bias: bool,
    batch_first: bool,
    dropout: f64,
    bidirectional: bool,
    pub(super) proj_size: usize,
    pub(super) kind: Kind,
    inputs: usize,
    hidden: usize,
    layer: PhantomData<fn() -> L>,
}

impl<L> RecurrentBuilder<L> {
    pub(super) fn of(kind: Kind, inputs: usize, hidden: usize) -> Self {
        RecurrentBuilder {
            num_layers: 1,
            bias: true,
            batch_first: false,
            dropout: 0.0,
            bidirectional: false,
            proj_size: 0,
            kind,
            inputs,
            hidden,
            layer: PhantomData,
        }
    }

    setters! {
        /// How many layers are stacked, each on the outputs of the one before: 1 unless set.
        num_layers: usize,
        /// Whether there are biases: true unless set.
        bias: bool,
        /// Whether sequences are `[batch, length, features]`: false unless set, which means
        /// `[length, batch, features]`.
        batch_first: bool,
        /// The probability with which an output of any layer but the last is dropped in training: 0
        /// unless set.
        dropout: f64,
        /// Whether each layer also reads the sequence backwards, and joins both outputs: false
        /// unless set.
        bidirectional: bool,
    }

    #[track_caller]
    pub(super) fn sequence(self, options: TensorOptions) -> Result<Sequence> {
        let here = Location::caller();
        let op = self.kind.name();
        let unfit = |argument, expected: String, got: &dyn std::fmt::Display| {
            Err(Error::argument(op, argument, expected, got).at(here))
        };
        if self.hidden == 0 {
            return unfit("hidden_size", "at least 1".into(), &self.hidden);
        }
        if self.num_layers == 0 {
            return unfit("num_layers", "at least 1".into(), &self.num_layers);
        }
        if !(0.0..=1.0).contains(&self.dropout) {
            return unfit("dropout", "a probability".into(), &self.dropout);
        }
        if self.proj_size >= self.hidden {
            let expected = format!("less than hidden_size, {}", self.hidden);
            return unfit("proj_size", expected, &self.proj_size);
        }
        let all = Options {
            kind: self.kind,
            inputs: self.inputs,
            hidden: self.hidden,
            num_layers: self.num_layers,
            bias: self.bias,
            batch_first: self.batch_first,
            dropout: self.dropout,
            bidirectional: self.bidirectional,
            proj_size: self.proj_size,
        };
        let directions = all.directions();
        let mut weights = Vec::new();
        for at in 0..all.num_layers.saturating_mul(directions) {
            let inputs = match at / directions {
                0 => all.inputs,
                _ => all.outputs() * directions,
            };
            let (hidden, projection) = (all.hidden, all.proj_size);
            let one = Weights::new(all.kind, inputs, hidden, projection, all.bias, options)?;
            weights.push(one);
        }
        Ok(Sequence {
            options: all,
            weights,
            training: Training::new(),
        })
    }
}

as_state!([] Sequence);

impl Module for Sequence {
    fn visit<'a>(&'a self, visitor: &mut Visitor<'_, 'a>) {
        for (at, weights) in self.weights.iter().enumerate() {
            let layer = at / self.options.directions();
            let reverse = match at % self.options.directions() {
                0 => "",
                _ => "_reverse",
            };
            let mut show = |name: &str, tensor: &'a Tensor| {
                visitor.parameter(&format!("{name}_l{layer}{reverse}"), tensor);
            };
            show("weight_ih", &weights.weight_ih);
            show("weight_hh", &weights.weight_hh);
            for (name, tensor) in [
                ("bias_ih", &weights.bias_ih),
                ("bias_hh", &weights.bias_hh),
                ("weight_hr", &weights.weight_hr),
            ] {
                if let Some(tensor) = tensor {
                    show(name, tensor);
                }
            }
        }
        visitor.training(&self.training);
    }
}

impl Sequence {
    /// The outputs of the last layer, and the last state of each layer and direction.
    #[track_caller]
    pub(super) fn run(
        &self,
        input: &Tensor,
        hidden: Option<&Tensor>,
        memory: Option<&Tensor>,
    ) -> Result<(Tensor, State)> {
        let here = Location::caller();
        self.unroll(input, hidden, memory, here)
            .map_err(|error| at_users_line(error, here))
    }

    fn unroll(
        &self,
        input: &Tensor,
        hidden: Option<&Tensor>,
        memory: Option<&Tensor>,
        here: &'static Location<'static>,
    ) -> Result<(Tensor, State)> {
        let all = &self.options;
        let op = all.kind.name();
        // Under autocast an LSTM's memory has the lower precision too, as in PyTorch; the others' states
        // keep theirs.
        let lowered = |x| match all.kind {
            Kind::Lstm => lower(x),
            _ => Ok(Cow::Borrowed(x)),
        };
        let input = &*lowered(input)?;
        let (hidden, memory) = (
            hidden.map(lowered).transpose()?,
            memory.map(lowered).transpose()?,
        );
        let (hidden, memory) = (hidden.as_deref(), memory.as_deref());
        let fits = matches!(input.rank(), 2 | 3) && input.dims().last() == Some(&all.inputs);
        if !fits {
            let expected = format!(
                "an input of shape [length, {0}] or [{1}, {0}]",
                all.inputs,
                match all.batch_first {
                    true => "batch, length",
                    false => "length, batch",
                }
            );
            return Err(Error::shape(op, expected, input.shape()).at(here));
        }
        let batched = input.rank() == 3;
        let (time, batch_axis) = match all.batch_first {
            true => (1, 0),
            false => (0, 1),
        };
        // From here on [length, batch, features].
        let mut sequence = match (batched, all.batch_first) {
            (false, _) => input.unsqueeze(1)?,
            (true, true) => input.transpose(batch_axis, time)?,
            (true, false) => input.clone(),
        };
        let (length, batch) = (sequence.dims()[0], sequence.dims()[1]);
        if length == 0 {
            return Err(Error::shape(op, "a sequence that is not empty", input.shape()).at(here));
        }
        let rows = self.weights.len();
        let initial = |name: &str, given: Option<&Tensor>, size: usize| -> Result<Tensor> {
            let Some(given) = given else {
                let options = (input.dtype(), input.device());
                return Tensor::zeros([rows, batch, size], options);
            };
            let wanted: &[usize] = match batched {
                true => &[rows, batch, size],
                false => &[rows, size],
            };
            if given.dims() != wanted {
                let expected = format!("{name} of shape {wanted:?}");
                return Err(Error::shape(op, expected, given.shape()).at(here));
            }
            given.reshape([rows, batch, size])
        };
        let hidden = initial("h_0", hidden, all.outputs())?;
        let memory = match all.kind {
            Kind::Lstm => Some(initial("c_0", memory, all.hidden)?),
            _ => None,
        };
        let mut last = Vec::with_capacity(rows);
        for layer in 0..all.num_layers {
            if layer > 0 && self.training.get() && all.dropout > 0.0 {
                sequence = functional::dropout(&sequence, all.dropout, true)?;
            }
            let mut outputs = Vec::with_capacity(all.directions());
            for direction in 0..all.directions() {
                let row = layer * all.directions() + direction;
                let at_row = |all: &Tensor| all.select(0, row as i64);
                let state = State {
                    hidden: at_row(&hidden)?,
                    memory: memory.as_ref().map(at_row).transpose()?,
                };
                let (output, state) = self.pass(row, &sequence, state, direction == 1)?;
                outputs.push(output);
                last.push(state);
            }
            sequence = match &outputs[..] {
                [only] => only.clone(),
                both => Tensor::cat(&both.iter().collect::<Vec<_>>(), 2)?,
            };
        }
        let output = match (batched, all.batch_first) {
            (false, _) => sequence.squeeze(1)?,
            (true, true) => sequence.transpose(0, 1)?,
            (true, false) => sequence,
        };
        let join = |of: fn(&State) -> Option<&Tensor>| -> Result<Option<Tensor>> {
            let parts: Vec<&Tensor> = last.iter().filter_map(of).collect();
            if parts.is_empty() {
                return Ok(None);
            }
            let joined = Tensor::stack(&parts, 0)?;
            match batched {
                true => Ok(Some(joined)),
                false => joined.squeeze(1).map(Some),
            }
        };
        let hidden = join(|state| Some(&state.hidden))?.unwrap_or(hidden);
        let memory = join(|state| state.memory.as_ref())?;
        Ok((output, State { hidden, memory }))
    }

    /// One layer in one direction: its outputs in the sequence's order, and its last state.
    #[track_caller]
    fn pass(
        &self,
        row: usize,
        sequence: &Tensor,
        mut state: State,
        reverse: bool,
    ) -> Result<(Tensor, State)> {
        let (kind, weights) = (self.options.kind, &self.weights[row]);
        let inputs = weights.of_input(kind, sequence)?;
        let length = sequence.dims()[0];
        let mut outputs = Vec::with_capacity(length);
        for step in 0..length {
            let time = if reverse { length - 1 - step } else { step };
            state = weights.step(kind, &inputs.select(0, time as i64)?, &state)?;
            outputs.push(state.hidden.clone());
        }
        if reverse {
            outputs.reverse();
        }
        let outputs = Tensor::stack(&outputs.iter().collect::<Vec<_>>(), 0)?;
        Ok((outputs, state))
    }
}
