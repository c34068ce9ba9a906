//! NAdam.

use super::adam::{decay_numbers, decayed, moment_numbers, moments};
use super::options::options;
use super::{Algorithm, Hyperparameter, Moment, Optim, Step};
use xla_core::Result;

/// Adam with Nesterov's momentum (Dozat, 2016, "Incorporating Nesterov Momentum into Adam"), as
/// PyTorch's `NAdam` computes it.
///
/// For each parameter `p` with gradient `g`, at its step `t`:
///
/// ```text
/// g ← g + weight_decay · p, or p ← p - lr · weight_decay · p when decoupled
/// μₜ = β₁ (1 - 0.96^(t · momentum_decay) / 2)
/// m ← β₁ m + (1 - β₁) g
/// v ← β₂ v + (1 - β₂) g²
/// d = lr / (√(v / (1 - β₂ᵗ)) + eps)
/// p ← p - d (1 - μₜ) / (1 - μ₁ ⋯ μₜ) · g - d μₜ₊₁ / (1 - μ₁ ⋯ μₜ₊₁) · m
/// ```
pub type NAdam = Optim<NAdamOptions>;

options! {
    /// Options of [`NAdam`].
    NAdamOptions of NAdam;
    lr = 2e-3;
    /// How much of the mean gradient and of its mean square is kept: 0.9 and 0.999 unless set.
    betas: (f64, f64) = (0.9, 0.999), Below1;
    /// Added to the denominator: 1e-8 unless set.
    eps: f64 = 1e-8, NotNegative;
    /// The factor of the penalty `weight_decay / 2 · |p|²`: 0 unless set.
    weight_decay: f64 = 0.0, NotNegative;
    /// How fast the momentum grows: 0.004 unless set.
    momentum_decay: f64 = 4e-3, NotNegative;
    /// Whether weight decay shrinks the parameter itself.
    decoupled_weight_decay: bool = false, Finite;
    /// Whether to ascend instead.
    maximize: bool = false, Finite;
}

impl Algorithm for NAdamOptions {
    const NAME: &'static str = "NAdam::step";
    const STATE: &'static [&'static str] = &["exp_avg", "exp_avg_sq"];
    const NUMBERS: &'static [&'static str] = &["step", "mu_product"];

    fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        self.list()
    }

    fn numbers(&self, at: &mut Moment<'_>) {
        decay_numbers(at, self.lr, self.weight_decay);
        moment_numbers(at, self.betas);
        let momentum = |t: f64| self.betas.0 * (1.0 - 0.5 * 0.96f64.powf(t * self.momentum_decay));
        let (now, next) = (momentum(at.count()), momentum(at.count() + 1.0));
        let product = at.remembered("mu_product", 1.0);
        *product *= now;
        let product = *product;
        let unbias = 1.0 - self.betas.1.powf(at.count());
        at.number("unbias", unbias);
        at.number("eps", self.eps);
        let towards = |rate: f64| -self.lr * rate;
        at.number("gradient.rate", towards((1.0 - now) / (1.0 - product)));
        at.number("mean.rate", towards(next / (1.0 - product * next)));
    }

    fn update(&self, step: &mut Step<'_>) -> Result<()> {
        let grad = decayed(
            step,
            self.maximize,
            self.weight_decay != 0.0,
            self.decoupled_weight_decay,
        )?;
        let (mean, square) = moments(step, &grad)?;
        let (unbias, eps) = (step.number("unbias")?, step.number("eps")?);
        let deviation = square.div(&unbias)?.sqrt()?.add(&eps)?;
        step.add(&grad.div(&deviation)?, "gradient.rate")?;
        step.add(&mean.div(&deviation)?, "mean.rate")
    }
}
