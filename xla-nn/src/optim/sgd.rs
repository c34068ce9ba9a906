//! Stochastic gradient descent.

use crate::optim::Optimizer;
use std::panic::Location;
use xla_core::{Error, Result};
use xla_lazy::{Tensor, no_grad};

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
/// Rates are data: changing one never recompiles. Whether momentum and weight decay are used at all
/// is part of the program.
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
#[derive(Debug)]
pub struct Sgd {
    slots: Vec<Slot>,
    lr: f64,
    momentum: f64,
    dampening: f64,
    weight_decay: f64,
    nesterov: bool,
}

#[derive(Debug)]
struct Slot {
    parameter: Tensor,
    momentum: Option<Tensor>,
}

impl Sgd {
    /// Plain gradient descent on these parameters with learning rate `lr`.
    pub fn new(parameters: Vec<Tensor>, lr: f64) -> Self {
        Sgd {
            slots: parameters
                .into_iter()
                .map(|parameter| Slot {
                    parameter,
                    momentum: None,
                })
                .collect(),
            lr,
            momentum: 0.0,
            dampening: 0.0,
            weight_decay: 0.0,
            nesterov: false,
        }
    }

    /// How much of the last direction is kept: 0 unless set.
    #[must_use]
    pub fn momentum(self, momentum: f64) -> Self {
        Sgd { momentum, ..self }
    }

    /// How much less of each new gradient the momentum takes in: 0 unless set.
    #[must_use]
    pub fn dampening(self, dampening: f64) -> Self {
        Sgd { dampening, ..self }
    }

    /// The factor of the penalty `weight_decay / 2 · |p|²`: 0 unless set.
    #[must_use]
    pub fn weight_decay(self, weight_decay: f64) -> Self {
        Sgd {
            weight_decay,
            ..self
        }
    }

    /// Whether to look ahead by Nesterov's rule. It needs momentum, and no dampening.
    #[must_use]
    pub fn nesterov(self, nesterov: bool) -> Self {
        Sgd { nesterov, ..self }
    }

    /// See [`Optimizer::step`].
    ///
    /// # Errors
    /// [`Error::Argument`] for a rate that is negative or not finite, or Nesterov's rule without
    /// momentum or with dampening; what the operators return.
    #[track_caller]
    pub fn step(&mut self) -> Result<()> {
        let here = Location::caller();
        self.check().map_err(|e| e.at(here))?;
        no_grad(|| {
            for i in 0..self.slots.len() {
                self.update(i)?;
            }
            Ok(())
        })
    }

    /// See [`Optimizer::zero_grad`].
    pub fn zero_grad(&mut self) {
        for slot in &self.slots {
            slot.parameter.set_grad(None);
        }
    }

    /// See [`Optimizer::lr`].
    pub fn lr(&self) -> f64 {
        self.lr
    }

    /// See [`Optimizer::set_lr`].
    pub fn set_lr(&mut self, lr: f64) {
        self.lr = lr;
    }

    fn check(&self) -> Result<()> {
        let rates = [
            ("lr", self.lr),
            ("momentum", self.momentum),
            ("weight_decay", self.weight_decay),
        ];
        for (name, rate) in rates {
            if !(rate.is_finite() && rate >= 0.0) {
                return Err(Error::argument(
                    "Sgd::step",
                    name,
                    "a finite number of at least 0",
                    rate,
                ));
            }
        }
        if self.nesterov && (self.momentum == 0.0 || self.dampening != 0.0) {
            return Err(Error::argument(
                "Sgd::step",
                "nesterov",
                "momentum above 0 and no dampening",
                format!("momentum {}, dampening {}", self.momentum, self.dampening),
            ));
        }
        Ok(())
    }

    #[track_caller]
    fn update(&mut self, slot: usize) -> Result<()> {
        let Slot {
            parameter,
            momentum,
        } = &mut self.slots[slot];
        let Some(mut gradient) = parameter.grad() else {
            return Ok(());
        };
        if self.weight_decay != 0.0 {
            gradient = gradient.add(&parameter.mul(self.weight_decay)?)?;
        }
        if self.momentum != 0.0 {
            let buffer = match momentum {
                Some(buffer) => {
                    buffer.mul_(self.momentum)?;
                    buffer.add_scaled_(&gradient, 1.0 - self.dampening)?
                }
                None => {
                    // A copy: what is written to the gradient must not reach the momentum.
                    momentum.insert(gradient.copy()?).clone()
                }
            };
            gradient = match self.nesterov {
                true => gradient.add(&buffer.mul(self.momentum)?)?,
                false => buffer,
            };
        }
        parameter.add_scaled_(&gradient, -self.lr)?;
        Ok(())
    }
}

impl Optimizer for Sgd {
    #[track_caller]
    fn step(&mut self) -> Result<()> {
        Sgd::step(self)
    }

    fn zero_grad(&mut self) {
        Sgd::zero_grad(self);
    }

    fn lr(&self) -> f64 {
        Sgd::lr(self)
    }

    fn set_lr(&mut self, lr: f64) {
        Sgd::set_lr(self, lr);
    }
}
