//! Recurrent layers over sequences, and single steps of them.
//!
//! A sequence is unrolled: a step is recorded for each element, and the program grows with the
//! length. What the inputs contribute is one matrix product for the whole sequence.

mod cell;
mod cells;
mod layers;
mod sequence;

pub use cells::{GruCell, LstmCell, RnnCell};
pub use layers::{Gru, Lstm, Rnn};
pub use sequence::RecurrentBuilder;
