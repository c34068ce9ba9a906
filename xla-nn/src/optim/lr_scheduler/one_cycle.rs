//! The one-cycle policy.

use super::{Schedule, require};
use std::f64::consts::PI;
use xla_core::{Error, Result};

/// How a value goes from one to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Anneal {
    /// Along half a cosine wave.
    #[default]
    Cos,
    /// In equal steps.
    Linear,
}

impl Anneal {
    fn between(self, start: f64, end: f64, part: f64) -> f64 {
        match self {
            Anneal::Cos => end + (start - end) / 2.0 * ((PI * part).cos() + 1.0),
            Anneal::Linear => (end - start) * part + start,
        }
    }
}

/// Up to a large rate and down to a very small one, while the momentum goes the other way (Smith and
/// Topin, 2018, arXiv:1708.07120). It sets the rates by itself; those that the optimizer was made
/// with do not matter.
#[derive(Debug, Clone, PartialEq)]
pub struct OneCycleLR {
    /// The largest rate: one for all groups, or one a group.
    pub max_lr: Vec<f64>,
    /// How many steps the cycle has.
    pub total_steps: u64,
    /// The part of the steps in which the rate rises: 0.3 unless set.
    pub pct_start: f64,
    /// How the rate goes from one value to another.
    pub anneal_strategy: Anneal,
    /// Whether the momentum (the first beta of Adam and its kin) goes from `max_momentum` to
    /// `base_momentum` and back: true unless set.
    pub cycle_momentum: bool,
    /// The momentum at the largest rate: 0.85 unless set.
    pub base_momentum: f64,
    /// The momentum at small rates: 0.95 unless set.
    pub max_momentum: f64,
    /// The first rate is the largest divided by this: 25 unless set.
    pub div_factor: f64,
    /// The last rate is the first divided by this: 10⁴ unless set.
    pub final_div_factor: f64,
    /// Whether the rate falls to the first one before it falls to the last.
    pub three_phase: bool,
}

impl OneCycleLR {
    /// A cycle of so many steps up to `max_lr`.
    pub fn new(max_lr: f64, total_steps: u64) -> Self {
        OneCycleLR {
            max_lr: vec![max_lr],
            total_steps,
            pct_start: 0.3,
            anneal_strategy: Anneal::Cos,
            cycle_momentum: true,
            base_momentum: 0.85,
            max_momentum: 0.95,
            div_factor: 25.0,
            final_div_factor: 1e4,
            three_phase: false,
        }
    }

    /// The value at a step of something that is `low` at first, `high` in the middle and `last` at
    /// the end.
    fn at(&self, step: u64, low: f64, high: f64, last: f64) -> f64 {
        let total = self.total_steps as f64;
        let (rise, end) = (self.pct_start * total - 1.0, total - 1.0);
        let phases = match self.three_phase {
            true => vec![
                (rise, low, high),
                (2.0 * self.pct_start * total - 2.0, high, low),
                (end, low, last),
            ],
            false => vec![(rise, low, high), (end, high, last)],
        };
        let step = step as f64;
        let mut begin = 0.0;
        let mut value = last;
        for (end, from, to) in phases {
            // A phase of no length is over at once.
            let part = if end == begin {
                1.0
            } else {
                (step - begin) / (end - begin)
            };
            value = self.anneal_strategy.between(from, to, part);
            if step <= end {
                break;
            }
            begin = end;
        }
        value
    }
}

impl Schedule for OneCycleLR {
    fn lr(&self, group: usize, _: f64, step: u64) -> f64 {
        let max = match self.max_lr.as_slice() {
            [one] => *one,
            several => several.get(group).copied().unwrap_or(0.0),
        };
        let low = max / self.div_factor;
        // The step that follows the last of a linear cycle would lead below 0.
        self.at(step, low, max, low / self.final_div_factor)
            .max(0.0)
    }

    fn momentum(&self, _: usize, step: u64) -> Option<f64> {
        let (high, low) = (self.max_momentum, self.base_momentum);
        self.cycle_momentum.then(|| self.at(step, high, low, high))
    }

    fn last_step(&self) -> Option<u64> {
        Some(self.total_steps)
    }

    fn check(&self, groups: usize) -> Result<()> {
        const NAME: &str = "OneCycleLR";
        let steps = self.total_steps;
        require(steps > 0, NAME, "total_steps", "at least 1", steps)?;
        let start = self.pct_start;
        let holds = (0.0..=1.0).contains(&start);
        require(holds, NAME, "pct_start", "a number from 0 to 1", start)?;
        let divisors = [
            ("div_factor", self.div_factor),
            ("final_div_factor", self.final_div_factor),
        ];
        for (name, divisor) in divisors {
            let holds = divisor.is_finite() && divisor > 0.0;
            require(holds, NAME, name, "a finite number above 0", divisor)?;
        }
        let got = self.max_lr.len();
        if got != 1 && got != groups {
            let expected = format!("one rate, or one for each of {groups} groups");
            return Err(Error::argument(NAME, "max_lr", expected, got));
        }
        Ok(())
    }
}
