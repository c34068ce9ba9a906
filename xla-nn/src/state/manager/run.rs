//! What saving and restoring consist of.

use super::folder::{self, Lock};
use super::{CheckpointManager, Group};
use crate::state::checkpoint::{Checkpoint, Order, Save};
use crate::state::{StateDict, Stateful};
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::time::Duration;
use xla_core::{Config, Error, Result};
use xla_dist::{self as dist, ProcessGroup};

impl CheckpointManager {
    /// Whether nothing is to be done at this step. An interval without meaning is an error elsewhere.
    pub(super) fn is_skipped(&self, step: u64) -> bool {
        self.interval != 0 && !self.is_due(step)
    }

    /// Everything of a save but what any thread can do.
    pub(super) fn prepare(
        &mut self,
        op: &'static str,
        step: u64,
        parts: &[(&str, &dyn Stateful)],
    ) -> Result<impl FnOnce() -> Result<()> + Send + 'static + use<>> {
        // What is wrong here the other ranks have to hear of, so nothing returns before they do.
        let state = self.can_save(op, parts).and_then(|()| together(parts));
        let group = self.group()?;
        let first = is_first(group.as_deref())?;
        let saved = match first {
            true => self.next_place(op),
            false => Ok(0),
        };
        let target = folder::of_step(&self.folder, step);
        let order = Order {
            op,
            target: &target,
            step: Some(step),
            saved,
            group: group.as_ref(),
        };
        let save = Save::prepare(order, state)?;
        let retire = self.keep.filter(|_| first);
        let (folder, lock) = (self.folder.clone(), self.lock.clone());
        Ok(move || {
            save.finish()?;
            let retired = retire.map_or(Ok(()), |keep| folder::retire(&folder, keep));
            // Held until nothing is written any more, also if the manager is gone.
            drop(lock);
            retired
        })
    }

    /// Whether the save before is over, and this one has a meaning.
    pub(super) fn can_save(
        &mut self,
        op: &'static str,
        parts: &[(&str, &dyn Stateful)],
    ) -> Result<()> {
        self.join(self.deadline_of()?)?;
        let options = [
            ("save_interval", self.interval == 0),
            ("keep", self.keep == Some(0)),
        ];
        if let Some((name, _)) = options.into_iter().find(|(_, is_zero)| *is_zero) {
            return Err(Error::argument(op, name, "at least 1", 0));
        }
        check_names(op, parts.iter().map(|(name, _)| *name))
    }

    /// Makes this the folder's writer, and says which place among the checkpoints the next one has.
    pub(super) fn next_place(&mut self, op: &'static str) -> Result<u64> {
        if self.lock.is_none() {
            self.lock = Some(Arc::new(Lock::take(op, &self.folder)?));
        }
        let found = folder::checkpoints(&self.folder)?;
        Ok(found
            .last()
            .map_or(0, |stamp| stamp.saved.saturating_add(1)))
    }

    pub(super) fn load(
        &self,
        op: &'static str,
        step: u64,
        parts: &mut [(&str, &mut dyn Stateful)],
    ) -> Result<()> {
        check_names(op, parts.iter().map(|(name, _)| *name))?;
        let checkpoint = Checkpoint::open(folder::of_step(&self.folder, step))?;
        let names = checkpoint.tensors().map(|saved| saved.name());
        let names = names.chain(checkpoint.metadata().keys().map(String::as_str));
        let there: BTreeSet<&str> = names.filter_map(|n| Some(n.split_once('/')?.0)).collect();
        let mut states = Vec::with_capacity(parts.len());
        for (name, part) in parts.iter() {
            let template = part.template()?;
            let empty = template.is_empty() && template.metadata().is_empty();
            if !empty && !there.contains(name) {
                let expected = format!(
                    "one of {there:?}, the parts of {}",
                    checkpoint.path().display()
                );
                return Err(Error::argument(op, "parts", expected, format!("{name:?}")));
            }
            states.push(checkpoint.load_part(op, &format!("{name}/"), &template)?);
        }
        for ((_, part), state) in parts.iter_mut().zip(&states) {
            part.load_state(state)?;
        }
        Ok(())
    }

    /// The step that was saved last, as the first rank sees it once the save that goes on is over.
    pub(super) fn agreed_step(&mut self) -> Result<Option<u64>> {
        let joined = self.deadline_of().and_then(|deadline| self.join(deadline));
        let group = self.group()?.filter(|group| group.size() > 1);
        let first = is_first(group.as_deref())?;
        let found = joined.and_then(|()| if first { self.latest_step() } else { Ok(None) });
        let Some(group) = group else {
            return found;
        };
        let told = found.as_ref().map_err(Error::to_string);
        let told: Vec<Result<Option<u64>, String>> = group.all_gather_object(&told.copied())?;
        // Its own error in its own words.
        found?;
        let mut step = None;
        for (rank, told) in group.ranks().iter().zip(told) {
            let told = told.map_err(|message| Error::ReplicaFailed {
                rank: *rank,
                message,
            })?;
            step = step.or(told);
        }
        Ok(step)
    }

    pub(super) fn group(&self) -> Result<Option<Arc<ProcessGroup>>> {
        match &self.group {
            Group::Given(group) => Ok(group.clone()),
            Group::Default => dist::is_initialized().then(dist::default_group).transpose(),
        }
    }

    pub(super) fn deadline_of(&self) -> Result<Duration> {
        match self.deadline {
            Some(deadline) => Ok(deadline),
            None => Ok(Config::global()?.deadline),
        }
    }

    /// Waits for the save that goes on, and passes on its error.
    pub(super) fn join(&mut self, patience: Duration) -> Result<()> {
        let Some(pending) = &self.pending else {
            return Ok(());
        };
        match pending.outcome(patience) {
            Ok(None) => Err(Error::Deadline {
                what: format!(
                    "the save of step {} to {}",
                    pending.step(),
                    self.folder.display()
                ),
                after: patience,
                advice: "; it goes on: wait for it again, or set a longer deadline",
            }),
            Ok(Some(outcome)) => {
                self.pending = None;
                outcome
            }
            Err(error) => {
                self.pending = None;
                Err(error)
            }
        }
    }

    /// Passes on the error of a save that is over.
    pub(super) fn look(&mut self) -> Result<()> {
        match self.join(Duration::ZERO) {
            Err(Error::Deadline { .. }) if self.pending.is_some() => Ok(()),
            outcome => outcome,
        }
    }
}

fn is_first(group: Option<&ProcessGroup>) -> Result<bool> {
    match group {
        Some(group) => Ok(group.group_rank(group.rank())? == 0),
        None => Ok(true),
    }
}

fn check_names<'a>(op: &'static str, names: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut seen = HashSet::new();
    for name in names {
        if name.is_empty() || name.contains('/') || !seen.insert(name) {
            let expected = "names that differ, without a slash";
            return Err(Error::argument(op, "parts", expected, format!("{name:?}")));
        }
    }
    Ok(())
}

/// The parts' states as one.
fn together(parts: &[(&str, &dyn Stateful)]) -> Result<StateDict> {
    let mut all = StateDict::new();
    for (part, stateful) in parts {
        let state = stateful.save_state()?;
        let words = state.metadata().iter();
        let words = words.map(|(name, word)| (format!("{part}/{name}"), word.clone()));
        all.metadata.extend(words);
        all.extend(
            state
                .into_iter()
                .map(|(name, tensor)| (format!("{part}/{name}"), tensor)),
        );
    }
    Ok(all)
}
