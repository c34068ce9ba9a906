//! Adagrad.

use super::options::options;
use super::{Algorithm, Hyperparameter, Moment, Optim, Step};
use xla_core::Result;

/// Adagrad (Duchi, Hazan and Singer, 2011), as PyTorch's `Adagrad` computes it.
///
/// For each parameter `p` with gradient `g`, at its step `t`:
///
/// ```text
/// g ← g + weight_decay · p
/// s ← s + g²
/// p ← p - lr / (1 + (t - 1) lr_decay) · g / (√s + eps)
/// ```
pub type Adagrad = Optim<AdagradOptions>;

options! {
    /// Options of [`Adagrad`].
    AdagradOptions of Adagrad;
    lr = 1e-2;
    /// How fast the learning rate falls: 0 unless set.
    lr_decay: f64 = 0.0, NotNegative;
    /// The factor of the penalty `weight_decay / 2 · |p|²`: 0 unless set.
    weight_decay: f64 = 0.0, NotNegative;
    /// The sum of squares before the first step: 0 unless set.
    initial_accumulator_value: f64 = 0.0, NotNegative;
    /// Added to the denominator: 1e-10 unless set.
    eps: f64 = 1e-10, NotNegative;
    /// Whether to ascend instead.
    maximize: bool = false, Finite;
}

impl Algorithm for AdagradOptions {
    const NAME: &'static str = "Adagrad::step";
    const STATE: &'static [&'static str] = &["sum"];
    const NUMBERS: &'static [&'static str] = &["step"];

    fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        self.list()
    }

    fn numbers(&self, at: &mut Moment<'_>) {
        at.number("weight_decay", self.weight_decay);
        at.number("eps", self.eps);
        let rate = self.lr / (1.0 + (at.count() - 1.0) * self.lr_decay);
        at.number("rate", -rate);
    }

    fn update(&self, step: &mut Step<'_>) -> Result<()> {
        let grad = step.descent(self.maximize, self.weight_decay != 0.0)?;
        let sum = step.state("sum", self.initial_accumulator_value)?;
        let grown = sum.add(&grad.mul(&grad)?)?;
        sum.copy_(&grown)?;
        let eps = step.number("eps")?;
        step.add(&grad.div(&grown.sqrt()?.add(&eps)?)?, "rate")
    }
}
