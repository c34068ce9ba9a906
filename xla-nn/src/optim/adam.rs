//! Adam and AdamW.

use super::options::options;
use super::{Algorithm, Hyperparameter, Moment, Optim, Step};
use xla_core::Result;
use xla_lazy::Tensor;

/// Adam (Kingma and Ba, 2015, arXiv:1412.6980), as PyTorch's `Adam` computes it.
///
/// For each parameter `p` with gradient `g`, at its step `t`:
///
/// ```text
/// g ← g + weight_decay · p, or p ← p - lr · weight_decay · p when decoupled
/// m ← β₁ m + (1 - β₁) g
/// v ← β₂ v + (1 - β₂) g²
/// u ← v, or the largest v so far with amsgrad (Reddi et al., 2018, arXiv:1904.09237)
/// p ← p - lr / (1 - β₁ᵗ) · m / (√u / √(1 - β₂ᵗ) + eps)
/// ```
pub type Adam = Optim<AdamOptions>;

/// Adam with decoupled weight decay (Loshchilov and Hutter, 2019, arXiv:1711.05101): [`Adam`] with
/// `decoupled_weight_decay`, and a `weight_decay` of 0.01 unless another is set.
pub type AdamW = Optim<AdamWOptions>;

options! {
    /// Options of [`Adam`].
    AdamOptions of Adam;
    lr = 1e-3;
    /// How much of the mean gradient and of its mean square is kept: 0.9 and 0.999 unless set.
    betas: (f64, f64) = (0.9, 0.999), Below1;
    /// Added to the denominator: 1e-8 unless set.
    eps: f64 = 1e-8, NotNegative;
    /// The factor of the penalty `weight_decay / 2 · |p|²`: 0 unless set.
    weight_decay: f64 = 0.0, NotNegative;
    /// Whether to divide by the largest mean square so far.
    amsgrad: bool = false, Finite;
    /// Whether to ascend instead.
    maximize: bool = false, Finite;
    /// Whether weight decay shrinks the parameter itself, as in [`AdamW`].
    decoupled_weight_decay: bool = false, Finite;
}

options! {
    /// Options of [`AdamW`].
    AdamWOptions of AdamW;
    lr = 1e-3;
    /// How much of the mean gradient and of its mean square is kept: 0.9 and 0.999 unless set.
    betas: (f64, f64) = (0.9, 0.999), Below1;
    /// Added to the denominator: 1e-8 unless set.
    eps: f64 = 1e-8, NotNegative;
    /// By which part of itself, times the learning rate, a parameter shrinks: 0.01 unless set.
    weight_decay: f64 = 1e-2, NotNegative;
    /// Whether to divide by the largest mean square so far.
    amsgrad: bool = false, Finite;
    /// Whether to ascend instead.
    maximize: bool = false, Finite;
}

impl Algorithm for AdamOptions {
    const NAME: &'static str = "Adam::step";
    const STATE: &'static [&'static str] = &["exp_avg", "exp_avg_sq", "max_exp_avg_sq"];
    const NUMBERS: &'static [&'static str] = &["step"];

    fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        self.list()
    }

    fn numbers(&self, at: &mut Moment<'_>) {
        decay_numbers(at, self.lr, self.weight_decay);
        moment_numbers(at, self.betas);
        let unbias = (1.0 - self.betas.1.powf(at.count())).sqrt();
        at.number("unbias", unbias);
        at.number("eps", self.eps);
        let rate = self.lr / (1.0 - self.betas.0.powf(at.count()));
        at.number("rate", -rate);
    }

    fn update(&self, step: &mut Step<'_>) -> Result<()> {
        let grad = decayed(
            step,
            self.maximize,
            self.weight_decay != 0.0,
            self.decoupled_weight_decay,
        )?;
        let (mean, mut square) = moments(step, &grad)?;
        if self.amsgrad {
            let largest = step.state("max_exp_avg_sq", 0.0)?;
            square = largest.maximum(&square)?;
            largest.copy_(&square)?;
        }
        let (unbias, eps) = (step.number("unbias")?, step.number("eps")?);
        let deviation = square.sqrt()?.div(&unbias)?.add(&eps)?;
        step.add(&mean.div(&deviation)?, "rate")
    }
}

impl Algorithm for AdamWOptions {
    const NAME: &'static str = "AdamW::step";
    const STATE: &'static [&'static str] = AdamOptions::STATE;
    const NUMBERS: &'static [&'static str] = AdamOptions::NUMBERS;

    fn hyperparameters(&mut self) -> Vec<Hyperparameter<'_>> {
        self.list()
    }

    fn numbers(&self, at: &mut Moment<'_>) {
        self.adam().numbers(at);
    }

    fn update(&self, step: &mut Step<'_>) -> Result<()> {
        self.adam().update(step)
    }
}

impl AdamWOptions {
    fn adam(&self) -> AdamOptions {
        AdamOptions {
            lr: self.lr,
            betas: self.betas,
            eps: self.eps,
            weight_decay: self.weight_decay,
            amsgrad: self.amsgrad,
            maximize: self.maximize,
            decoupled_weight_decay: true,
        }
    }
}

/// The numbers of [`decayed`].
pub(super) fn decay_numbers(at: &mut Moment<'_>, lr: f64, weight_decay: f64) {
    at.number("weight_decay", weight_decay);
    at.number("shrink", 1.0 - lr * weight_decay);
}

/// The gradient to descend along after weight decay, which is a part of it or, decoupled, has
/// already shrunk the parameter.
pub(super) fn decayed(
    step: &mut Step<'_>,
    maximize: bool,
    decays: bool,
    decoupled: bool,
) -> Result<Tensor> {
    if decoupled && decays {
        step.scale("shrink")?;
    }
    step.descent(maximize, decays && !decoupled)
}

/// The numbers of [`moments`].
pub(super) fn moment_numbers(at: &mut Moment<'_>, betas: (f64, f64)) {
    at.number("mean.new", 1.0 - betas.0);
    mean_square_numbers(at, betas.1);
}

/// The running means of the gradient and of its square, with this step's gradient.
pub(super) fn moments(step: &mut Step<'_>, grad: &Tensor) -> Result<(Tensor, Tensor)> {
    let mean = step.state("exp_avg", 0.0)?;
    let new = step.number("mean.new")?;
    let moved = mean.add(&grad.sub(&mean)?.mul(&new)?)?;
    mean.copy_(&moved)?;
    Ok((moved, mean_square(step, "exp_avg_sq", grad)?))
}

/// The numbers of [`mean_square`], which keeps `kept` of the mean.
pub(super) fn mean_square_numbers(at: &mut Moment<'_>, kept: f64) {
    at.number("square.kept", kept);
    at.number("square.new", 1.0 - kept);
}

/// A running mean of the gradient's square, with this step's gradient.
pub(super) fn mean_square(
    step: &mut Step<'_>,
    name: &'static str,
    grad: &Tensor,
) -> Result<Tensor> {
    let square = step.state(name, 0.0)?;
    let (kept, new) = (step.number("square.kept")?, step.number("square.new")?);
    let moved = square.mul(&kept)?.add(&grad.mul(grad)?.mul(&new)?)?;
    square.copy_(&moved)?;
    Ok(moved)
}
