//! Schedules of the learning rate.
//!
//! A [`Schedule`] is a function of the number of steps; [`Scheduler`] counts them and sets an
//! optimizer's rates. Names, arguments and values are PyTorch's. Rates are data: a schedule
//! recompiles nothing.
//!
//! ```no_run
//! # fn demo(mut optimizer: xla_nn::optim::Adam) -> xla_core::Result<()> {
//! use xla_nn::optim::lr_scheduler::{CosineAnnealingLR, LinearLR, Scheduler, SequentialLR};
//! let schedule = SequentialLR::new(vec![5])
//!     .then(LinearLR { start_factor: 0.1, total_iters: 5, ..Default::default() })
//!     .then(CosineAnnealingLR { t_max: 95, eta_min: 0.0 });
//! let mut scheduler = Scheduler::new(&mut optimizer, schedule)?;
//! for _epoch in 0..100 {
//!     // … optimizer.step()? for each batch …
//!     scheduler.step(&mut optimizer)?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Where PyTorch multiplies the present rate by a factor at each step, a schedule here computes the
//! rate from the first one. The values are equal, but a rate that is set by hand in between lasts
//! until the next step only.

mod annealing;
mod factors;
mod one_cycle;
mod plateau;
mod sequential;

pub use annealing::{CosineAnnealingLR, CosineAnnealingWarmRestarts};
pub use factors::{
    ConstantLR, ExponentialLR, LambdaLR, LinearLR, MultiStepLR, PolynomialLR, StepLR,
};
pub use one_cycle::{Anneal, OneCycleLR};
pub use plateau::{Mode, PlateauOptions, ReduceLROnPlateau, ThresholdMode};
pub use sequential::SequentialLR;

use super::Optimizer;
use crate::StateDict;
use std::fmt;
use std::panic::Location;
use std::str::FromStr;
use xla_core::{Error, Result};

/// Learning rates as a function of the steps taken.
pub trait Schedule: fmt::Debug {
    /// The learning rate of a group after `step` steps, given the one it was made with.
    fn lr(&self, group: usize, initial: f64, step: u64) -> f64;

    /// The momentum of a group after `step` steps, where the schedule sets one.
    fn momentum(&self, group: usize, step: u64) -> Option<f64> {
        let _ = (group, step);
        None
    }

    /// The last step there is a rate for, where there is one.
    fn last_step(&self) -> Option<u64> {
        None
    }

    /// Whether the schedule has a meaning for this many groups.
    ///
    /// # Errors
    /// [`Error::Argument`].
    fn check(&self, groups: usize) -> Result<()>;
}

impl<S: Schedule + ?Sized> Schedule for Box<S> {
    fn lr(&self, group: usize, initial: f64, step: u64) -> f64 {
        (**self).lr(group, initial, step)
    }

    fn momentum(&self, group: usize, step: u64) -> Option<f64> {
        (**self).momentum(group, step)
    }

    fn last_step(&self) -> Option<u64> {
        (**self).last_step()
    }

    fn check(&self, groups: usize) -> Result<()> {
        (**self).check(groups)
    }
}

/// A schedule at work on an optimizer.
#[derive(Debug)]
pub struct Scheduler<S> {
    schedule: S,
    /// The learning rate that each group was made with.
    base_lrs: Vec<f64>,
    last_epoch: u64,
    last_lr: Vec<f64>,
}

impl<S: Schedule> Scheduler<S> {
    /// A scheduler for the groups that the optimizer has. Sets the rates of step 0.
    ///
    /// # Errors
    /// [`Error::Argument`] for a schedule without meaning, or one of the momentum where the
    /// optimizer has none.
    #[track_caller]
    pub fn new(optimizer: &mut dyn Optimizer, schedule: S) -> Result<Self> {
        let here = Location::caller();
        schedule.check(optimizer.groups()).map_err(|e| e.at(here))?;
        let mut scheduler = Scheduler {
            schedule,
            base_lrs: rates(optimizer),
            last_epoch: 0,
            last_lr: Vec::new(),
        };
        scheduler.apply(optimizer).map_err(|e| e.at(here))?;
        Ok(scheduler)
    }

    /// Goes on by one step and sets the optimizer's rates: after the optimizer's own steps of a
    /// batch or an epoch, whichever the schedule counts.
    ///
    /// # Errors
    /// [`Error::Argument`] beyond the last step of a schedule that ends.
    #[track_caller]
    pub fn step(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        let here = Location::caller();
        let next = self.last_epoch + 1;
        if let Some(last) = self.schedule.last_step().filter(|last| next > *last) {
            let expected = format!("at most the {last} steps that the schedule was made for");
            return Err(Error::argument("Scheduler::step", "steps", expected, next).at(here));
        }
        self.last_epoch = next;
        self.apply(optimizer).map_err(|e| e.at(here))
    }

    fn apply(&mut self, optimizer: &mut dyn Optimizer) -> Result<()> {
        for (group, base) in self.base_lrs.iter().enumerate() {
            let lr = self.schedule.lr(group, *base, self.last_epoch);
            optimizer.set_hyperparameter(group, "lr", lr)?;
            if let Some(momentum) = self.schedule.momentum(group, self.last_epoch) {
                let name = match optimizer.hyperparameter(group, "betas.0") {
                    Some(_) => "betas.0",
                    None => "momentum",
                };
                optimizer.set_hyperparameter(group, name, momentum)?;
            }
        }
        self.last_lr = rates(optimizer);
        Ok(())
    }

    /// How many steps have been taken, and the rates that the groups began with, as words.
    pub fn state_dict(&self) -> StateDict {
        let mut state = StateDict::new();
        let words = state.metadata_mut();
        words.insert("last_epoch".into(), self.last_epoch.to_string());
        words.insert("base_lrs".into(), joined(&self.base_lrs));
        state
    }

    /// Takes over what [`Scheduler::state_dict`] returned, and sets the optimizer's rates.
    ///
    /// # Errors
    /// [`Error::Argument`] for words that are missing or no numbers, and for another number of
    /// groups.
    #[track_caller]
    pub fn load_state_dict(
        &mut self,
        optimizer: &mut dyn Optimizer,
        state: &StateDict,
    ) -> Result<()> {
        let here = Location::caller();
        let mut load = || {
            (self.last_epoch, self.base_lrs) = self.saved(state)?;
            self.apply(optimizer)
        };
        load().map_err(|e| e.at(here))
    }

    /// [`load_state_dict`](Self::load_state_dict) for an optimizer that has taken over its own state,
    /// the rates with it.
    pub(crate) fn load_count(&mut self, state: &StateDict) -> Result<()> {
        (self.last_epoch, self.base_lrs) = self.saved(state)?;
        let rate = |(group, base): (usize, &f64)| self.schedule.lr(group, *base, self.last_epoch);
        self.last_lr = self.base_lrs.iter().enumerate().map(rate).collect();
        Ok(())
    }

    /// The steps taken and the first rates that a state speaks of.
    fn saved(&self, state: &StateDict) -> Result<(u64, Vec<f64>)> {
        let last_epoch = number(state, "last_epoch")?;
        let base_lrs = numbers(state, "base_lrs")?;
        if base_lrs.len() != self.base_lrs.len() {
            let expected = format!("{} rates", self.base_lrs.len());
            let got = base_lrs.len();
            return Err(Error::argument(LOAD, "base_lrs", expected, got));
        }
        Ok((last_epoch, base_lrs))
    }

    /// The schedule.
    pub fn schedule(&self) -> &S {
        &self.schedule
    }

    /// How many steps have been taken.
    pub fn last_epoch(&self) -> u64 {
        self.last_epoch
    }

    /// The rates set last, one a group.
    pub fn get_last_lr(&self) -> &[f64] {
        &self.last_lr
    }
}

const LOAD: &str = "load_state_dict";

fn joined(numbers: &[f64]) -> String {
    let words: Vec<String> = numbers.iter().map(f64::to_string).collect();
    words.join(",")
}

fn word<'a>(state: &'a StateDict, name: &'static str) -> Result<&'a str> {
    let found = state.metadata().get(name).map(String::as_str);
    found.ok_or_else(|| Error::argument(LOAD, name, "an entry of the state", "none"))
}

fn parsed<T: FromStr>(name: &'static str, word: &str) -> Result<T> {
    let no_number = |_| Error::argument(LOAD, name, "a number", format!("{word:?}"));
    word.parse().map_err(no_number)
}

fn number<T: FromStr>(state: &StateDict, name: &'static str) -> Result<T> {
    parsed(name, word(state, name)?)
}

fn numbers(state: &StateDict, name: &'static str) -> Result<Vec<f64>> {
    match word(state, name)? {
        "" => Ok(Vec::new()),
        words => words.split(',').map(|word| parsed(name, word)).collect(),
    }
}

fn rates(optimizer: &dyn Optimizer) -> Vec<f64> {
    (0..optimizer.groups())
        .filter_map(|group| optimizer.hyperparameter(group, "lr"))
        .collect()
}

/// An error about an argument of a schedule, unless `holds`.
fn require(
    holds: bool,
    schedule: &'static str,
    argument: &'static str,
    expected: &'static str,
    got: impl fmt::Display,
) -> Result<()> {
    match holds {
        true => Ok(()),
        false => Err(Error::argument(schedule, argument, expected, got)),
    }
}
