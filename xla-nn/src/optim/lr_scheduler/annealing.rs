//! Cosine annealing.

use super::{Schedule, require};
use std::f64::consts::PI;
use xla_core::Result;

/// Down along half a cosine wave, and up again if it goes on (Loshchilov and Hutter, 2017,
/// arXiv:1608.03983, without restarts).
#[derive(Debug, Clone, PartialEq)]
pub struct CosineAnnealingLR {
    /// Steps to the lowest rate.
    pub t_max: u64,
    /// The lowest rate: 0 unless set.
    pub eta_min: f64,
}

impl CosineAnnealingLR {
    /// To 0 in `t_max` steps.
    pub fn new(t_max: u64) -> Self {
        CosineAnnealingLR {
            t_max,
            eta_min: 0.0,
        }
    }
}

impl Schedule for CosineAnnealingLR {
    fn lr(&self, _: usize, initial: f64, step: u64) -> f64 {
        between(self.eta_min, initial, step, self.t_max)
    }

    fn check(&self, _: usize) -> Result<()> {
        let steps = self.t_max;
        require(steps > 0, "CosineAnnealingLR", "T_max", "at least 1", steps)?;
        lowest("CosineAnnealingLR", self.eta_min)
    }
}

/// Down along half a cosine wave, again and again (Loshchilov and Hutter, 2017, arXiv:1608.03983).
#[derive(Debug, Clone, PartialEq)]
pub struct CosineAnnealingWarmRestarts {
    /// Steps to the first restart.
    pub t_0: u64,
    /// By how much each period is longer than the one before: 1 unless set.
    pub t_mult: u64,
    /// The lowest rate: 0 unless set.
    pub eta_min: f64,
}

impl CosineAnnealingWarmRestarts {
    /// To 0 every `t_0` steps.
    pub fn new(t_0: u64) -> Self {
        CosineAnnealingWarmRestarts {
            t_0,
            t_mult: 1,
            eta_min: 0.0,
        }
    }
}

impl Schedule for CosineAnnealingWarmRestarts {
    fn lr(&self, _: usize, initial: f64, mut step: u64) -> f64 {
        let mut period = self.t_0.max(1);
        if self.t_mult <= 1 {
            step %= period;
        }
        while step >= period {
            step -= period;
            period = period.saturating_mul(self.t_mult);
        }
        between(self.eta_min, initial, step, period)
    }

    fn check(&self, _: usize) -> Result<()> {
        let name = "CosineAnnealingWarmRestarts";
        require(self.t_0 > 0, name, "T_0", "at least 1", self.t_0)?;
        require(self.t_mult > 0, name, "T_mult", "at least 1", self.t_mult)?;
        lowest(name, self.eta_min)
    }
}

fn between(low: f64, high: f64, step: u64, period: u64) -> f64 {
    let phase = PI * step as f64 / period.max(1) as f64;
    low + (high - low) * (1.0 + phase.cos()) / 2.0
}

fn lowest(schedule: &'static str, rate: f64) -> Result<()> {
    let holds = rate.is_finite() && rate >= 0.0;
    let expected = "a finite number of at least 0";
    require(holds, schedule, "eta_min", expected, rate)
}
