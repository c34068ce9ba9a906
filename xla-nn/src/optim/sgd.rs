//! Stochastic gradient descent.

use super::options::options;
use super::{Algorithm, Hyperparameter, Moment, Optim, Step};
use xla_core::{Error, Result};

/// Stochastic gradient descent with momentum, as PyTorch's `SGD` computes it.
///
/// For each parameter `p` with gradient `g`, in place and without recording gradients:
///
/// ```text
/// g ← g + weight_decay · p
/// b ← g at the parameter's first step, momentum · b + (1 - dampening) · g afterwards
/// g ← g + momentum · b with Nesterov's rule, b without        (only with momentum)
/// p ← p - lr · g
/// ```
///
/// ```no_run
/// # fn demo(model: impl xla_nn::Module, loss: xla_lazy::Tensor) -> xla_core::Result<()> {
/// use xla_nn::optim::Sgd;
/// let mut optimizer = Sgd::new(model.parameters(), 0.05).momentum(0.9);
/// loss.backward()?;
/// optimizer.step()?;
/// optimizer.zero_grad();
/// # Ok(())
/// # }
/// ```
pub type Sgd = Optim<SgdOptions>;

options! {
    /// Options of [`Sgd`].
    SgdOptions of Sgd;
    lr = 1e-3;
    /// How much of the last direction is kept: 0 unless set.
    momentum: f64 = 0.0, NotNegative;
    /// How much less of each new gradient the momentum takes in: 0 unless set.
    dampening: f64 = 0.0, Finite;
    /// The factor of the penalty `weight_decay / 2 · |p|²`: 0 unless set.
    weight_decay: f64 = 0.0, NotNegative;
    /// Whether to look ahead by Nesterov's rule. It needs momentum, and no dampening.
    nesterov: bool = false, Finite;
    /// Whether to ascend instead.
    maximize: bool = false, Finite;
}

impl Algorithm for SgdOptions {
    const NAME: &'static str = "Sgd::step";
    const STATE: &'static [&'static str] = &["momentum_buffer"];
    const NUMBERS: &'static [&'static str] = &[];

    fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        self.list()
    }

    fn check(&self) -> Result<()> {
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err(Error::argument(
                Self::NAME,
                "nesterov",
                "momentum above 0 and no dampening",
                format!("momentum {}, dampening {}", self.momentum, self.dampening),
            ));
        }
        Ok(())
    }

    fn numbers(&self, at: &mut Moment<'_>) {
        // Zeros and all of the gradient at the first step: the same program as that of the others.
        let taken = if at.is_first() {
            1.0
        } else {
            1.0 - self.dampening
        };
        at.number("weight_decay", self.weight_decay);
        at.number("kept", self.momentum);
        at.number("taken", taken);
        at.number("rate", -self.lr);
    }

    fn update(&self, step: &mut Step<'_>) -> Result<()> {
        let mut grad = step.descent(self.maximize, self.weight_decay != 0.0)?;
        if self.momentum != 0.0 {
            let (kept, taken) = (step.number("kept")?, step.number("taken")?);
            let buffer = step.state("momentum_buffer", 0.0)?;
            let new = buffer.mul(&kept)?.add(&grad.mul(&taken)?)?;
            buffer.copy_(&new)?;
            grad = match self.nesterov {
                true => grad.add(&new.mul(&kept)?)?,
                false => new,
            };
        }
        step.add(&grad, "rate")
    }
}
