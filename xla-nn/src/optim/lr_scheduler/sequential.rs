//! One schedule after another.

use super::{Schedule, require};
use xla_core::{Error, Result};

/// Several schedules, each from its milestone on, where it begins at its step 0.
#[derive(Debug, Default)]
pub struct SequentialLR {
    schedules: Vec<Box<dyn Schedule>>,
    milestones: Vec<u64>,
}

impl SequentialLR {
    /// A sequence that changes at these steps: the schedules, one more than there are milestones,
    /// are added by [`SequentialLR::then`].
    pub fn new(milestones: Vec<u64>) -> Self {
        SequentialLR {
            schedules: Vec::new(),
            milestones,
        }
    }

    /// Adds the next schedule.
    #[must_use]
    pub fn then(mut self, schedule: impl Schedule + 'static) -> Self {
        self.schedules.push(Box::new(schedule));
        self
    }

    /// The schedule at a step, and its own step.
    fn at(&self, step: u64) -> Option<(&dyn Schedule, u64)> {
        let passed = self.milestones.partition_point(|m| *m <= step);
        let begin = match passed {
            0 => 0,
            n => self.milestones[n - 1],
        };
        Some((self.schedules.get(passed)?.as_ref(), step - begin))
    }
}

impl Schedule for SequentialLR {
    fn lr(&self, group: usize, initial: f64, step: u64) -> f64 {
        self.at(step).map_or(initial, |(schedule, step)| {
            schedule.lr(group, initial, step)
        })
    }

    fn momentum(&self, group: usize, step: u64) -> Option<f64> {
        let (schedule, step) = self.at(step)?;
        schedule.momentum(group, step)
    }

    fn last_step(&self) -> Option<u64> {
        let begin = self.milestones.last().copied().unwrap_or(0);
        self.schedules.last()?.last_step().map(|last| begin + last)
    }

    fn check(&self, groups: usize) -> Result<()> {
        if self.schedules.len() != self.milestones.len() + 1 {
            let expected = format!("{} schedules", self.milestones.len() + 1);
            let got = self.schedules.len();
            return Err(Error::argument("SequentialLR", "schedulers", expected, got));
        }
        require(
            self.milestones.is_sorted(),
            "SequentialLR",
            "milestones",
            "steps in ascending order",
            format!("{:?}", self.milestones),
        )?;
        self.schedules.iter().try_for_each(|s| s.check(groups))
    }
}
