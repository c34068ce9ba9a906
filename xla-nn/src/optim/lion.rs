//! Lion.

use super::options::options;
use super::{Algorithm, Hyperparameter, Moment, Optim, Step};
use xla_core::Result;

/// Lion (Chen et al., 2023, arXiv:2302.06675): the sign of a mean gradient, with decoupled weight
/// decay.
///
/// For each parameter `p` with gradient `g`:
///
/// ```text
/// p ← p - lr · weight_decay · p
/// p ← p - lr · sign(β₁ m + (1 - β₁) g)
/// m ← β₂ m + (1 - β₂) g
/// ```
pub type Lion = Optim<LionOptions>;

options! {
    /// Options of [`Lion`].
    LionOptions of Lion;
    lr = 1e-4;
    /// How much of the mean gradient the direction and the mean itself keep: 0.9 and 0.99 unless
    /// set.
    betas: (f64, f64) = (0.9, 0.99), Below1;
    /// By which part of itself, times the learning rate, a parameter shrinks: 0 unless set.
    weight_decay: f64 = 0.0, NotNegative;
    /// Whether to ascend instead.
    maximize: bool = false, Finite;
}

impl Algorithm for LionOptions {
    const NAME: &'static str = "Lion::step";
    const STATE: &'static [&'static str] = &["exp_avg"];
    const NUMBERS: &'static [&'static str] = &[];

    fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        self.list()
    }

    fn numbers(&self, at: &mut Moment<'_>) {
        at.number("shrink", 1.0 - self.lr * self.weight_decay);
        at.number("direction.kept", self.betas.0);
        at.number("direction.new", 1.0 - self.betas.0);
        at.number("mean.kept", self.betas.1);
        at.number("mean.new", 1.0 - self.betas.1);
        at.number("rate", -self.lr);
    }

    fn update(&self, step: &mut Step<'_>) -> Result<()> {
        if self.weight_decay != 0.0 {
            step.scale("shrink")?;
        }
        let grad = step.descent(self.maximize, false)?;
        let mean = step.state("exp_avg", 0.0)?;
        let mut mixed = |kept, new| {
            let (kept, new) = (step.number(kept)?, step.number(new)?);
            mean.mul(&kept)?.add(&grad.mul(&new)?)
        };
        let direction = mixed("direction.kept", "direction.new")?.sign()?;
        let moved = mixed("mean.kept", "mean.new")?;
        mean.copy_(&moved)?;
        step.add(&direction, "rate")
    }
}
