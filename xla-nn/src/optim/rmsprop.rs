//! RMSprop.

use super::adam::{mean_square, mean_square_numbers};
use super::options::options;
use super::{Algorithm, Hyperparameter, Moment, Optim, Step};
use xla_core::Result;

/// RMSprop (Hinton's lecture 6e; centered: Graves, 2013, arXiv:1308.0850), as PyTorch's `RMSprop`
/// computes it.
///
/// For each parameter `p` with gradient `g`:
///
/// ```text
/// g ← g + weight_decay · p
/// v ← α v + (1 - α) g²
/// a ← α a + (1 - α) g; d = √(v - a²) + eps         (centered)
/// d = √v + eps                                     (else)
/// b ← momentum · b + g / d; p ← p - lr · b         (with momentum)
/// p ← p - lr · g / d                               (else)
/// ```
pub type RMSprop = Optim<RMSpropOptions>;

options! {
    /// Options of [`RMSprop`].
    RMSpropOptions of RMSprop;
    lr = 1e-2;
    /// How much of the mean square is kept: 0.99 unless set.
    alpha: f64 = 0.99, NotNegative;
    /// Added to the denominator: 1e-8 unless set.
    eps: f64 = 1e-8, NotNegative;
    /// The factor of the penalty `weight_decay / 2 · |p|²`: 0 unless set.
    weight_decay: f64 = 0.0, NotNegative;
    /// How much of the last direction is kept: 0 unless set.
    momentum: f64 = 0.0, NotNegative;
    /// Whether to divide by the standard deviation instead of the root of the mean square.
    centered: bool = false, Finite;
    /// Whether to ascend instead.
    maximize: bool = false, Finite;
}

impl Algorithm for RMSpropOptions {
    const NAME: &'static str = "RMSprop::step";
    const STATE: &'static [&'static str] = &["square_avg", "grad_avg", "momentum_buffer"];
    const NUMBERS: &'static [&'static str] = &["step"];

    fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        self.list()
    }

    fn numbers(&self, at: &mut Moment<'_>) {
        at.number("weight_decay", self.weight_decay);
        mean_square_numbers(at, self.alpha);
        at.number("eps", self.eps);
        at.number("momentum", self.momentum);
        at.number("rate", -self.lr);
    }

    fn update(&self, step: &mut Step<'_>) -> Result<()> {
        let grad = step.descent(self.maximize, self.weight_decay != 0.0)?;
        let mut square = mean_square(step, "square_avg", &grad)?;
        if self.centered {
            let mean = step.state("grad_avg", 0.0)?;
            let new = step.number("square.new")?;
            let moved = mean.add(&grad.sub(&mean)?.mul(&new)?)?;
            mean.copy_(&moved)?;
            square = square.sub(&moved.mul(&moved)?)?;
        }
        let eps = step.number("eps")?;
        let mut direction = grad.div(&square.sqrt()?.add(&eps)?)?;
        if self.momentum != 0.0 {
            let kept = step.number("momentum")?;
            let buffer = step.state("momentum_buffer", 0.0)?;
            direction = buffer.mul(&kept)?.add(&direction)?;
            buffer.copy_(&direction)?;
        }
        step.add(&direction, "rate")
    }
}
