//! Adadelta.

use super::adam::{mean_square, mean_square_numbers};
use super::options::options;
use super::{Algorithm, Hyperparameter, Moment, Optim, Step};
use xla_core::Result;

/// Adadelta (Zeiler, 2012, arXiv:1212.5701), as PyTorch's `Adadelta` computes it.
///
/// For each parameter `p` with gradient `g`:
///
/// ```text
/// g ← g + weight_decay · p
/// v ← ρ v + (1 - ρ) g²
/// d = √(u + eps) / √(v + eps) · g
/// u ← ρ u + (1 - ρ) d²
/// p ← p - lr · d
/// ```
pub type Adadelta = Optim<AdadeltaOptions>;

options! {
    /// Options of [`Adadelta`].
    AdadeltaOptions of Adadelta;
    lr = 1.0;
    /// How much of the mean squares is kept: 0.9 unless set.
    rho: f64 = 0.9, UpTo1;
    /// Added under the roots: 1e-6 unless set.
    eps: f64 = 1e-6, NotNegative;
    /// The factor of the penalty `weight_decay / 2 · |p|²`: 0 unless set.
    weight_decay: f64 = 0.0, NotNegative;
    /// Whether to ascend instead.
    maximize: bool = false, Finite;
}

impl Algorithm for AdadeltaOptions {
    const NAME: &'static str = "Adadelta::step";
    const STATE: &'static [&'static str] = &["square_avg", "acc_delta"];
    const NUMBERS: &'static [&'static str] = &["step"];

    fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        self.list()
    }

    fn numbers(&self, at: &mut Moment<'_>) {
        at.number("weight_decay", self.weight_decay);
        mean_square_numbers(at, self.rho);
        at.number("eps", self.eps);
        at.number("rate", -self.lr);
    }

    fn update(&self, step: &mut Step<'_>) -> Result<()> {
        let grad = step.descent(self.maximize, self.weight_decay != 0.0)?;
        let square = mean_square(step, "square_avg", &grad)?;
        let eps = step.number("eps")?;
        let moved = step.state("acc_delta", 0.0)?;
        let scale = moved.add(&eps)?.sqrt()?.div(&square.add(&eps)?.sqrt()?)?;
        let delta = scale.mul(&grad)?;
        mean_square(step, "acc_delta", &delta)?;
        step.add(&delta, "rate")
    }
}
