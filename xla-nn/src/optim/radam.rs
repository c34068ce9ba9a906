//! RAdam.

use super::adam::{decay_numbers, decayed, moment_numbers, moments};
use super::options::options;
use super::{Algorithm, Hyperparameter, Moment, Optim, Step};
use xla_core::Result;

/// Adam that corrects for the few gradients that its first denominators come from (Liu et al., 2020,
/// arXiv:1908.03265), as PyTorch's `RAdam` computes it.
///
/// For each parameter `p` with gradient `g`, at its step `t`:
///
/// ```text
/// g ← g + weight_decay · p, or p ← p - lr · weight_decay · p when decoupled
/// m ← β₁ m + (1 - β₁) g
/// v ← β₂ v + (1 - β₂) g²
/// ρ = 2 / (1 - β₂) - 1
/// ρₜ = ρ - 2 t β₂ᵗ / (1 - β₂ᵗ)
/// r = √((ρₜ - 4) (ρₜ - 2) ρ / ((ρ - 4) (ρ - 2) ρₜ)) · √(1 - β₂ᵗ) / (√v + eps) if ρₜ > 5, else 1
/// p ← p - lr / (1 - β₁ᵗ) · r m
/// ```
///
/// The steps with `ρₜ` up to 5 are one program, those after them another.
pub type RAdam = Optim<RAdamOptions>;

options! {
    /// Options of [`RAdam`].
    RAdamOptions of RAdam;
    lr = 1e-3;
    /// How much of the mean gradient and of its mean square is kept: 0.9 and 0.999 unless set.
    betas: (f64, f64) = (0.9, 0.999), Below1;
    /// Added to the denominator: 1e-8 unless set.
    eps: f64 = 1e-8, NotNegative;
    /// The factor of the penalty `weight_decay / 2 · |p|²`: 0 unless set.
    weight_decay: f64 = 0.0, NotNegative;
    /// Whether weight decay shrinks the parameter itself.
    decoupled_weight_decay: bool = false, Finite;
    /// Whether to ascend instead.
    maximize: bool = false, Finite;
}

/// The form of the formula once the variance can be told.
const RECTIFIED: u32 = 1;

impl Algorithm for RAdamOptions {
    const NAME: &'static str = "RAdam::step";
    const STATE: &'static [&'static str] = &["exp_avg", "exp_avg_sq"];
    const NUMBERS: &'static [&'static str] = &["step"];

    fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        self.list()
    }

    fn numbers(&self, at: &mut Moment<'_>) {
        decay_numbers(at, self.lr, self.weight_decay);
        moment_numbers(at, self.betas);
        at.number("eps", self.eps);
        let (t, (beta1, beta2)) = (at.count(), self.betas);
        let rate = self.lr / (1.0 - beta1.powf(t));
        let unbias = 1.0 - beta2.powf(t);
        let longest = 2.0 / (1.0 - beta2) - 1.0;
        let length = longest - 2.0 * t * beta2.powf(t) / unbias;
        if length <= 5.0 {
            at.number("rate", -rate);
            return;
        }
        let rectification = ((length - 4.0) * (length - 2.0) * longest
            / ((longest - 4.0) * (longest - 2.0) * length))
            .sqrt();
        at.case(RECTIFIED);
        at.number("rate", -rate * unbias.sqrt() * rectification);
    }

    fn update(&self, step: &mut Step<'_>) -> Result<()> {
        let grad = decayed(
            step,
            self.maximize,
            self.weight_decay != 0.0,
            self.decoupled_weight_decay,
        )?;
        let (mean, square) = moments(step, &grad)?;
        if step.case() != RECTIFIED {
            return step.add(&mean, "rate");
        }
        let eps = step.number("eps")?;
        let deviation = square.sqrt()?.add(&eps)?;
        step.add(&mean.div(&deviation)?, "rate")
    }
}
