//! Recurrent layers.

use super::super::builder::setters;
use super::cell::Kind;
use super::sequence::{RecurrentBuilder, Sequence};
use crate::Module;
use xla_core::{Error, Result};
use xla_lazy::{Tensor, TensorOptions};

/// Long short-term memory ([Hochreiter & Schmidhuber 1997](https://doi.org/10.1162/neco.1997.9.8.1735)),
/// with PyTorch's names: `weight_ih_l0`, `weight_hh_l0`, `bias_ih_l0`, `bias_hh_l0`, with
/// `_reverse` for the backward direction, and `weight_hr_l0` with a projection.
///
/// ```no_run
/// use xla_lazy::Tensor;
/// use xla_nn::Lstm;
/// let lstm = Lstm::builder(16, 32).num_layers(2).bidirectional(true).build(())?;
/// let x = Tensor::zeros([10, 4, 16], ())?; // [length, batch, features]
/// let (y, (h, c)) = lstm.forward(&x, None)?;
/// assert_eq!((y.dims(), h.dims(), c.dims()), (&[10, 4, 64][..], &[4, 4, 32][..], &[4, 4, 32][..]));
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug, Module)]
pub struct Lstm {
    #[module(flatten)]
    sequence: Sequence,
}

/// Gated recurrent units ([Cho et al. 2014](https://arxiv.org/abs/1406.1078)), with PyTorch's names
/// and its place of the reset gate.
#[derive(Debug, Module)]
pub struct Gru {
    #[module(flatten)]
    sequence: Sequence,
}

/// Elman's recurrent layer: `tanh` (or `max(·, 0)`) of an affine map of input and state.
#[derive(Debug, Module)]
pub struct Rnn {
    #[module(flatten)]
    sequence: Sequence,
}

macro_rules! layer {
    ($layer:ident, $kind:ident) => {
        impl $layer {
            /// One layer in one direction, over sequences of shape `[length, batch, inputs]`.
            /// `options` is a device, a float dtype, both, or `()`.
            ///
            /// # Errors
            /// [`Error::Argument`] for sizes that have no meaning; [`Error::DTypeMismatch`] for a
            /// dtype that is no float; what creating the tensors returns.
            #[track_caller]
            pub fn new(
                inputs: usize,
                hidden: usize,
                options: impl Into<TensorOptions>,
            ) -> Result<Self> {
                Self::builder(inputs, hidden).build(options)
            }

            /// What may differ from `new`.
            pub fn builder(inputs: usize, hidden: usize) -> RecurrentBuilder<Self> {
                RecurrentBuilder::of(Kind::$kind, inputs, hidden)
            }
        }

        impl RecurrentBuilder<$layer> {
            /// Draws the parameters.
            ///
            /// # Errors
            /// As the layer's `new`.
            #[track_caller]
            pub fn build(self, options: impl Into<TensorOptions>) -> Result<$layer> {
                Ok($layer {
                    sequence: self.sequence(options.into())?,
                })
            }
        }
    };
}

layer!(Lstm, Lstm);
layer!(Gru, Gru);
layer!(Rnn, Tanh);

impl Lstm {
    /// The outputs, `[length, batch, outputs]` (or batch first), and the last hidden state and
    /// memory, `[layers · directions, batch, ..]`. The initial ones are `state`, or zeros. A sequence
    /// without a batch axis gives results without.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] when the shapes do not fit the layer, or for an empty sequence.
    #[track_caller]
    pub fn forward(
        &self,
        input: &Tensor,
        state: Option<(&Tensor, &Tensor)>,
    ) -> Result<(Tensor, (Tensor, Tensor))> {
        let (output, last) = self
            .sequence
            .run(input, state.map(|s| s.0), state.map(|s| s.1))?;
        let memory = last.memory.ok_or_else(|| Error::Internal {
            what: "lstm",
            expected: "a memory in its state".into(),
        })?;
        Ok((output, (last.hidden, memory)))
    }
}

macro_rules! forward {
    ($($layer:ident)*) => {$(
        impl $layer {
            /// The outputs, `[length, batch, outputs]` (or batch first), and the last hidden state,
            /// `[layers · directions, batch, hidden]`. The initial one is `hidden`, or zeros. A
            /// sequence without a batch axis gives results without.
            ///
            /// # Errors
            /// [`Error::ShapeMismatch`] when the shapes do not fit the layer, or for an empty
            /// sequence.
            #[track_caller]
            pub fn forward(
                &self,
                input: &Tensor,
                hidden: Option<&Tensor>,
            ) -> Result<(Tensor, Tensor)> {
                let (output, last) = self.sequence.run(input, hidden, None)?;
                Ok((output, last.hidden))
            }
        }
    )*};
}

forward! { Gru Rnn }

impl RecurrentBuilder<Lstm> {
    setters! {
        /// The length of the outputs, less than that of the memory, which they are then projected
        /// from ([Sak et al. 2014](https://arxiv.org/abs/1402.1128)); 0, as unless set, for no
        /// projection.
        proj_size: usize,
    }
}

impl RecurrentBuilder<Rnn> {
    /// `max(·, 0)` in place of `tanh`.
    #[must_use]
    pub fn relu(mut self) -> Self {
        self.kind = Kind::Relu;
        self
    }
}
