//! Optimizers: what turns gradients into steps.

mod sgd;

pub use sgd::Sgd;

use xla_core::Result;

/// What every optimizer does, for code that does not care which one it is given. Each also has these
/// methods itself, so that a program with one optimizer need not import the trait.
pub trait Optimizer {
    /// Changes the parameters by one step along their gradients. Parameters without a gradient stay
    /// as they are.
    ///
    /// # Errors
    /// Options that exclude each other, and what the operators return.
    fn step(&mut self) -> Result<()>;

    /// Forgets the gradients, so that the next backward pass starts from none.
    fn zero_grad(&mut self);

    /// The learning rate.
    fn lr(&self) -> f64;

    /// Sets the learning rate of the steps that follow. It is data, never part of a program: a
    /// schedule does not recompile.
    fn set_lr(&mut self, lr: f64);
}
