//! A schedule that watches a measured value.

use super::{number, rates, require};
use crate::StateDict;
use crate::optim::Optimizer;
use std::panic::Location;
use xla_core::Result;

/// Which values are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// Smaller ones: a loss.
    #[default]
    Min,
    /// Larger ones: an accuracy.
    Max,
}

/// How much better a value must be to count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ThresholdMode {
    /// By a part of the best one.
    #[default]
    Rel,
    /// By an amount.
    Abs,
}

/// Options of [`ReduceLROnPlateau`].
#[derive(Debug, Clone, PartialEq)]
pub struct PlateauOptions {
    /// Which values are better.
    pub mode: Mode,
    /// The factor, below 1: 0.1 unless set.
    pub factor: f64,
    /// How many steps without a better value are borne: 10 unless set.
    pub patience: u64,
    /// How much better a value must be: 10⁻⁴ unless set.
    pub threshold: f64,
    /// What the threshold is a measure of.
    pub threshold_mode: ThresholdMode,
    /// For how many steps after a reduction none is counted: 0 unless set.
    pub cooldown: u64,
    /// The lowest rate: 0 unless set.
    pub min_lr: f64,
    /// A smaller change than this is not made: 10⁻⁸ unless set.
    pub eps: f64,
}

impl Default for PlateauOptions {
    fn default() -> Self {
        PlateauOptions {
            mode: Mode::Min,
            factor: 0.1,
            patience: 10,
            threshold: 1e-4,
            threshold_mode: ThresholdMode::Rel,
            cooldown: 0,
            min_lr: 0.0,
            eps: 1e-8,
        }
    }
}

/// Reduces the learning rate when a value no longer improves.
#[derive(Debug)]
pub struct ReduceLROnPlateau {
    options: PlateauOptions,
    best: f64,
    bad_epochs: u64,
    cooldown: u64,
    last_epoch: u64,
    last_lr: Vec<f64>,
}

impl ReduceLROnPlateau {
    /// A scheduler for this optimizer, whose rates stay as they are for now.
    ///
    /// # Errors
    /// [`xla_core::Error::Argument`] for a factor that does not reduce, or another number without
    /// meaning.
    #[track_caller]
    pub fn new(optimizer: &dyn Optimizer, options: PlateauOptions) -> Result<Self> {
        let here = Location::caller();
        options.check().map_err(|e| e.at(here))?;
        let best = match options.mode {
            Mode::Min => f64::INFINITY,
            Mode::Max => f64::NEG_INFINITY,
        };
        Ok(ReduceLROnPlateau {
            options,
            best,
            bad_epochs: 0,
            cooldown: 0,
            last_epoch: 0,
            last_lr: rates(optimizer),
        })
    }

    /// Takes in the value of one more step, and reduces the rates if it is time. NaN is never
    /// better.
    ///
    /// # Errors
    /// What [`Optimizer::set_hyperparameter`] returns.
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut dyn Optimizer, metric: f64) -> Result<()> {
        let here = Location::caller();
        self.last_epoch += 1;
        if self.is_better(metric) {
            self.best = metric;
            self.bad_epochs = 0;
        } else {
            self.bad_epochs += 1;
        }
        if self.cooldown > 0 {
            self.cooldown -= 1;
            self.bad_epochs = 0;
        }
        if self.bad_epochs > self.options.patience {
            for (group, old) in rates(optimizer).into_iter().enumerate() {
                let new = (old * self.options.factor).max(self.options.min_lr);
                if old - new > self.options.eps {
                    optimizer
                        .set_hyperparameter(group, "lr", new)
                        .map_err(|e| e.at(here))?;
                }
            }
            self.cooldown = self.options.cooldown;
            self.bad_epochs = 0;
        }
        self.last_lr = rates(optimizer);
        Ok(())
    }

    fn is_better(&self, value: f64) -> bool {
        let PlateauOptions {
            mode,
            threshold_mode,
            threshold,
            ..
        } = self.options;
        match (mode, threshold_mode) {
            (Mode::Min, ThresholdMode::Rel) => value < self.best * (1.0 - threshold),
            (Mode::Min, ThresholdMode::Abs) => value < self.best - threshold,
            (Mode::Max, ThresholdMode::Rel) => value > self.best * (1.0 + threshold),
            (Mode::Max, ThresholdMode::Abs) => value > self.best + threshold,
        }
    }

    /// The best value so far and what has been counted, as words. The rates are the optimizer's.
    pub fn state_dict(&self) -> StateDict {
        let mut state = StateDict::new();
        let entries = [
            ("best", self.best.to_string()),
            ("num_bad_epochs", self.bad_epochs.to_string()),
            ("cooldown_counter", self.cooldown.to_string()),
            ("last_epoch", self.last_epoch.to_string()),
        ];
        let entries = entries.map(|(name, value)| (name.to_owned(), value));
        state.metadata_mut().extend(entries);
        state
    }

    /// Takes over what [`ReduceLROnPlateau::state_dict`] returned.
    ///
    /// # Errors
    /// [`xla_core::Error::Argument`] for words that are missing or no numbers.
    #[track_caller]
    pub fn load_state_dict(&mut self, state: &StateDict) -> Result<()> {
        let here = Location::caller();
        let mut load = || {
            let best = number(state, "best")?;
            let bad_epochs = number(state, "num_bad_epochs")?;
            let cooldown = number(state, "cooldown_counter")?;
            self.last_epoch = number(state, "last_epoch")?;
            (self.best, self.bad_epochs, self.cooldown) = (best, bad_epochs, cooldown);
            Ok(())
        };
        load().map_err(|e: xla_core::Error| e.at(here))
    }

    /// The best value so far.
    pub fn best(&self) -> f64 {
        self.best
    }

    /// How many steps have been taken.
    pub fn last_epoch(&self) -> u64 {
        self.last_epoch
    }

    /// The rates after the last step, one a group.
    pub fn get_last_lr(&self) -> &[f64] {
        &self.last_lr
    }
}

impl PlateauOptions {
    fn check(&self) -> Result<()> {
        const NAME: &str = "ReduceLROnPlateau";
        let factor = self.factor;
        let holds = (0.0..1.0).contains(&factor);
        let expected = "a number of at least 0 and below 1";
        require(holds, NAME, "factor", expected, factor)?;
        let others = [
            ("threshold", self.threshold),
            ("min_lr", self.min_lr),
            ("eps", self.eps),
        ];
        for (name, value) in others {
            let holds = value.is_finite() && value >= 0.0;
            require(holds, NAME, name, "a finite number of at least 0", value)?;
        }
        Ok(())
    }
}
