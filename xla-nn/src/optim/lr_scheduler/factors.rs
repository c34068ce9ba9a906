//! Schedules that multiply the first learning rate by a factor.

use super::{Schedule, require};
use std::fmt;
use xla_core::{Error, Result};

fn finite(schedule: &'static str, argument: &'static str, value: f64) -> Result<()> {
    require(
        value.is_finite(),
        schedule,
        argument,
        "a finite number",
        value,
    )
}

fn fraction(schedule: &'static str, argument: &'static str, value: f64) -> Result<()> {
    let holds = (0.0..=1.0).contains(&value);
    require(holds, schedule, argument, "a number from 0 to 1", value)
}

/// `gamma` to a whole power.
fn power(gamma: f64, exponent: u64) -> f64 {
    gamma.powf(exponent as f64)
}

/// Multiplies by `gamma` every `step_size` steps.
#[derive(Debug, Clone, PartialEq)]
pub struct StepLR {
    /// Steps between two changes.
    pub step_size: u64,
    /// The factor: 0.1 unless set.
    pub gamma: f64,
}

impl StepLR {
    /// Every `step_size` steps, by 0.1.
    pub fn new(step_size: u64) -> Self {
        StepLR {
            step_size,
            gamma: 0.1,
        }
    }
}

impl Schedule for StepLR {
    fn lr(&self, _: usize, initial: f64, step: u64) -> f64 {
        initial * power(self.gamma, step / self.step_size.max(1))
    }

    fn check(&self, _: usize) -> Result<()> {
        let size = self.step_size;
        require(size > 0, "StepLR", "step_size", "at least 1", size)?;
        finite("StepLR", "gamma", self.gamma)
    }
}

/// Multiplies by `gamma` at each milestone; twice at one that is listed twice.
#[derive(Debug, Clone, PartialEq)]
pub struct MultiStepLR {
    /// The steps to multiply at, in any order.
    pub milestones: Vec<u64>,
    /// The factor: 0.1 unless set.
    pub gamma: f64,
}

impl MultiStepLR {
    /// At these steps, by 0.1.
    pub fn new(milestones: Vec<u64>) -> Self {
        MultiStepLR {
            milestones,
            gamma: 0.1,
        }
    }
}

impl Schedule for MultiStepLR {
    fn lr(&self, _: usize, initial: f64, step: u64) -> f64 {
        let passed = self.milestones.iter().filter(|m| **m <= step).count();
        initial * power(self.gamma, passed as u64)
    }

    fn check(&self, _: usize) -> Result<()> {
        finite("MultiStepLR", "gamma", self.gamma)
    }
}

/// Multiplies by `gamma` at each step.
#[derive(Debug, Clone, PartialEq)]
pub struct ExponentialLR {
    /// The factor.
    pub gamma: f64,
}

impl Schedule for ExponentialLR {
    fn lr(&self, _: usize, initial: f64, step: u64) -> f64 {
        initial * power(self.gamma, step)
    }

    fn check(&self, _: usize) -> Result<()> {
        finite("ExponentialLR", "gamma", self.gamma)
    }
}

/// A smaller rate for the first steps.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstantLR {
    /// The factor until then: a third unless set.
    pub factor: f64,
    /// How many steps: 5 unless set.
    pub total_iters: u64,
}

impl Default for ConstantLR {
    fn default() -> Self {
        ConstantLR {
            factor: 1.0 / 3.0,
            total_iters: 5,
        }
    }
}

impl Schedule for ConstantLR {
    fn lr(&self, _: usize, initial: f64, step: u64) -> f64 {
        match step < self.total_iters {
            true => initial * self.factor,
            false => initial,
        }
    }

    fn check(&self, _: usize) -> Result<()> {
        fraction("ConstantLR", "factor", self.factor)
    }
}

/// From one factor to another in equal steps: a warm-up.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearLR {
    /// The factor at the beginning, above 0: a third unless set.
    pub start_factor: f64,
    /// The factor at the end, and ever after: 1 unless set.
    pub end_factor: f64,
    /// How many steps: 5 unless set.
    pub total_iters: u64,
}

impl Default for LinearLR {
    fn default() -> Self {
        LinearLR {
            start_factor: 1.0 / 3.0,
            end_factor: 1.0,
            total_iters: 5,
        }
    }
}

impl Schedule for LinearLR {
    fn lr(&self, _: usize, initial: f64, step: u64) -> f64 {
        let taken = step.min(self.total_iters) as f64 / self.total_iters.max(1) as f64;
        initial * (self.start_factor + (self.end_factor - self.start_factor) * taken)
    }

    fn check(&self, _: usize) -> Result<()> {
        let start = self.start_factor;
        let expected = "a number above 0 and at most 1";
        require(
            start > 0.0 && start <= 1.0,
            "LinearLR",
            "start_factor",
            expected,
            start,
        )?;
        fraction("LinearLR", "end_factor", self.end_factor)
    }
}

/// Down to 0 along a power of the steps that remain.
#[derive(Debug, Clone, PartialEq)]
pub struct PolynomialLR {
    /// How many steps: 5 unless set.
    pub total_iters: u64,
    /// The exponent: 1 unless set.
    pub power: f64,
}

impl Default for PolynomialLR {
    fn default() -> Self {
        PolynomialLR {
            total_iters: 5,
            power: 1.0,
        }
    }
}

impl Schedule for PolynomialLR {
    fn lr(&self, _: usize, initial: f64, step: u64) -> f64 {
        let total = self.total_iters.max(1) as f64;
        let left = self.total_iters.saturating_sub(step) as f64 / total;
        initial * left.powf(self.power)
    }

    fn check(&self, _: usize) -> Result<()> {
        let total = self.total_iters;
        require(
            total > 0,
            "PolynomialLR",
            "total_iters",
            "at least 1",
            total,
        )?;
        let holds = self.power.is_finite() && self.power >= 0.0;
        let expected = "a finite number of at least 0";
        require(holds, "PolynomialLR", "power", expected, self.power)
    }
}

type Factor = Box<dyn Fn(u64) -> f64 + Send>;

/// By a function of the number of steps.
pub struct LambdaLR {
    factors: Vec<Factor>,
}

impl LambdaLR {
    /// One function for all groups.
    pub fn new(factor: impl Fn(u64) -> f64 + Send + 'static) -> Self {
        LambdaLR {
            factors: vec![Box::new(factor)],
        }
    }

    /// The function of the next group: as many as there are groups are needed, or one for all.
    #[must_use]
    pub fn and(mut self, factor: impl Fn(u64) -> f64 + Send + 'static) -> Self {
        self.factors.push(Box::new(factor));
        self
    }
}

impl fmt::Debug for LambdaLR {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LambdaLR({})", self.factors.len())
    }
}

impl Schedule for LambdaLR {
    fn lr(&self, group: usize, initial: f64, step: u64) -> f64 {
        let last = self.factors.len() - 1;
        initial * self.factors[group.min(last)](step)
    }

    fn check(&self, groups: usize) -> Result<()> {
        let got = self.factors.len();
        if got == 1 || got == groups {
            return Ok(());
        }
        let expected = format!("one function, or one for each of {groups} groups");
        Err(Error::argument("LambdaLR", "lr_lambda", expected, got))
    }
}
