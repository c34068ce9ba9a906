//! The checkpoints of a run.

mod folder;
mod pending;

use super::checkpoint::{Checkpoint, Order, Save};
use super::{StateDict, Stateful};
use folder::Lock;
use pending::Pending;
use std::collections::{BTreeSet, HashSet};
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use xla_core::{Config, Error, Result};
use xla_dist::{self as dist, ProcessGroup};

/// Keeps the checkpoints of a run in a folder, as `step-100`, `step-200`, …: saves, also beside the
/// training, removes old ones, and continues from the last.
///
/// What is saved are parts with names, each a [`Stateful`]: model, optimizer, generator, whatever else
/// the run depends on. They are one [`Checkpoint`] of tensors such as `model/0.weight`, and appear
/// together or not at all: a process that is killed, or a full disk, leaves the checkpoint before.
///
/// ```
/// use xla_nn::state::CheckpointManager;
/// use xla_nn::{Linear, Module, optim};
/// # let folder = tempfile::tempdir().map_err(|e| xla_core::Error::io("temporary", e))?;
/// # let path = folder.path().join("run");
/// let mut model = Linear::new(4, 2, ())?;
/// let mut optimizer = optim::AdamW::new(model.parameters(), 1e-3);
/// let mut generator = xla_lazy::default_generator(xla_core::Device::new(0))?;
///
/// let mut checkpoints = CheckpointManager::new(&path).keep(2).save_interval(10);
/// let done = checkpoints.resume(&mut [
///     ("model", &mut model),
///     ("optimizer", &mut optimizer),
///     ("generator", &mut generator),
/// ])?;
/// assert_eq!(done, None); // nothing to continue from yet
/// for step in done.unwrap_or(0) + 1..=30 {
///     // … a step of training …
///     checkpoints.save_async(
///         step,
///         &[("model", &model), ("optimizer", &optimizer), ("generator", &generator)],
///     )?;
/// }
/// checkpoints.wait()?;
/// assert_eq!(checkpoints.steps()?, [20, 30]);
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// # Several ranks
/// Where the calling replica has a default process group when it saves, its members save together: all
/// make a manager of the same folder, which all must see, and call the same methods. A tensor that
/// several ranks have under one name is saved once; what differs between ranks needs a name of its own
/// on each. The first rank removes old checkpoints and says which is the last one.
///
/// # Several writers
/// A manager that has saved is the folder's only writer as long as it lives: another one's save is an
/// error, in this process or another on the same machine. Reading is free to all.
#[derive(Debug)]
pub struct CheckpointManager {
    folder: PathBuf,
    keep: Option<usize>,
    interval: u64,
    deadline: Option<Duration>,
    group: Group,
    lock: Option<Arc<Lock>>,
    pending: Option<Pending>,
}

/// Who saves together.
#[derive(Debug)]
enum Group {
    /// The members of the default group, if there is one.
    Default,
    Given(Option<Arc<ProcessGroup>>),
}

impl CheckpointManager {
    /// A manager of the checkpoints in a folder, which need not be there. It keeps all, and saves
    /// whenever it is called.
    pub fn new(folder: impl AsRef<Path>) -> Self {
        CheckpointManager {
            folder: folder.as_ref().to_owned(),
            keep: None,
            interval: 1,
            deadline: None,
            group: Group::Default,
            lock: None,
            pending: None,
        }
    }

    /// Keeps the `n` checkpoints that were saved last; older ones are removed after each save.
    #[must_use]
    pub fn keep(mut self, n: usize) -> Self {
        self.keep = Some(n);
        self
    }

    /// Saves only at steps that are a multiple of `n`.
    #[must_use]
    pub fn save_interval(mut self, n: u64) -> Self {
        self.interval = n;
        self
    }

    /// How long is waited for a save that goes on beside the training: `XLA_DEADLINE_SECONDS` (30
    /// minutes) unless set.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// The ranks that save together, in place of the default group's; `None` for a replica that saves
    /// alone, to a folder of its own.
    #[must_use]
    pub fn process_group(mut self, group: impl Into<Option<Arc<ProcessGroup>>>) -> Self {
        self.group = Group::Given(group.into());
        self
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The steps that have been saved, ascending. Folders that are no whole checkpoint are none.
    ///
    /// # Errors
    /// [`Error::Io`] for a folder that cannot be read.
    pub fn steps(&self) -> Result<Vec<u64>> {
        let found = folder::checkpoints(&self.folder)?;
        let steps: BTreeSet<u64> = found.iter().map(|stamp| stamp.step).collect();
        Ok(steps.into_iter().collect())
    }

    /// The step that was saved last, `None` when there is none. After a return to an earlier one and a
    /// save from there this is not the largest.
    ///
    /// # Errors
    /// As [`steps`](Self::steps).
    pub fn latest_step(&self) -> Result<Option<u64>> {
        let found = folder::checkpoints(&self.folder)?;
        Ok(found.last().map(|stamp| stamp.step))
    }

    /// Whether [`save`](Self::save) saves at this step.
    pub fn is_due(&self, step: u64) -> bool {
        step.checked_rem(self.interval) == Some(0)
    }

    /// Saves the parts if the step is due, in place of a checkpoint of the same step, and says whether
    /// it did. First waits for a save that still goes on.
    ///
    /// # Errors
    /// The error of a [`save_async`](Self::save_async) before, and nothing is saved then;
    /// [`Error::Argument`] for a folder that another manager saves to, or a name that is given twice;
    /// otherwise as [`Checkpoint::save`].
    #[track_caller]
    pub fn save(&mut self, step: u64, parts: &[(&str, &dyn Stateful)]) -> Result<bool> {
        if self.is_skipped(step) {
            let here = Location::caller();
            return self.look().map(|()| false).map_err(|e| e.at(here));
        }
        self.save_now(step, parts).map(|()| true)
    }

    /// [`save`](Self::save) whether the step is due or not: at the end of a run, or when it is told to
    /// stop.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    #[track_caller]
    pub fn save_now(&mut self, step: u64, parts: &[(&str, &dyn Stateful)]) -> Result<()> {
        let here = Location::caller();
        let finish = self.prepare("CheckpointManager::save", step, parts);
        let saved = finish.and_then(|finish| finish());
        saved.map_err(|e| e.at(here))
    }

    /// [`save`](Self::save) that writes beside the training: what this rank writes is copied to the
    /// host, and a thread does the rest. Its error is that of the next call, or of
    /// [`wait`](Self::wait). Dropping the manager waits, too, but says nothing.
    ///
    /// # Errors
    /// As [`save`](Self::save).
    #[track_caller]
    pub fn save_async(&mut self, step: u64, parts: &[(&str, &dyn Stateful)]) -> Result<bool> {
        let here = Location::caller();
        if self.is_skipped(step) {
            return self.look().map(|()| false).map_err(|e| e.at(here));
        }
        let finish = self.prepare("CheckpointManager::save_async", step, parts);
        let pending = finish.and_then(|finish| Pending::start(step, finish));
        self.pending = Some(pending.map_err(|e| e.at(here))?);
        Ok(true)
    }

    /// Waits until the save that goes on is over.
    ///
    /// # Errors
    /// Its error; [`Error::Deadline`] when it is not over in time, and goes on.
    #[track_caller]
    pub fn wait(&mut self) -> Result<()> {
        let here = Location::caller();
        let deadline = self.deadline_of()?;
        self.join(deadline).map_err(|e| e.at(here))
    }

    /// Has the parts take over what was saved at a step, the last one for `None`, and returns that.
    /// Each part is strict about its own names; parts that are not asked for are not read.
    ///
    /// A tensor is loaded where the part's own is, spread over its mesh as that one is, and each
    /// process reads its own blocks only.
    ///
    /// # Errors
    /// [`Error::Argument`] where there is no such step or part; [`Error::StateDict`] with every shape
    /// and dtype that differs; as [`Checkpoint::open`]; nothing has been changed then. The error of a
    /// part that does not take its state, when parts before it have taken theirs; that of a
    /// [`save_async`](Self::save_async) before.
    #[track_caller]
    pub fn restore(
        &mut self,
        step: impl Into<Option<u64>>,
        parts: &mut [(&str, &mut dyn Stateful)],
    ) -> Result<u64> {
        const OP: &str = "CheckpointManager::restore";
        let here = Location::caller();
        let step = step.into();
        let mut restore = || {
            self.join(self.deadline_of()?)?;
            let found = match step {
                Some(step) => self.steps()?.contains(&step).then_some(step),
                None => self.agreed_step()?,
            };
            let Some(found) = found else {
                let expected = format!("one of the steps {:?}", self.steps()?);
                let got = step.map_or("the last one".into(), |step| step.to_string());
                return Err(Error::argument(OP, "step", expected, got));
            };
            self.load(OP, found, parts)?;
            Ok(found)
        };
        restore().map_err(|e: Error| e.relocated(here))
    }

    /// [`restore`](Self::restore) from the last checkpoint, where there is one: `None` at the beginning
    /// of a run.
    ///
    /// # Errors
    /// As [`restore`](Self::restore).
    #[track_caller]
    pub fn resume(&mut self, parts: &mut [(&str, &mut dyn Stateful)]) -> Result<Option<u64>> {
        let here = Location::caller();
        let mut resume = || {
            self.join(self.deadline_of()?)?;
            let step = self.agreed_step()?;
            if let Some(step) = step {
                self.load("CheckpointManager::resume", step, parts)?;
            }
            Ok(step)
        };
        resume().map_err(|e: Error| e.relocated(here))
    }

    /// Whether nothing is to be done at this step. An interval without meaning is an error elsewhere.
    fn is_skipped(&self, step: u64) -> bool {
        self.interval != 0 && !self.is_due(step)
    }

    /// Everything of a save but what any thread can do.
    fn prepare(
        &mut self,
        op: &'static str,
        step: u64,
        parts: &[(&str, &dyn Stateful)],
    ) -> Result<impl FnOnce() -> Result<()> + Send + 'static + use<>> {
        self.join(self.deadline_of()?)?;
        let positive = |name, is_zero| match is_zero {
            true => Err(Error::argument(op, name, "at least 1", 0)),
            false => Ok(()),
        };
        positive("save_interval", self.interval == 0)?;
        positive("keep", self.keep == Some(0))?;
        check_names(op, parts.iter().map(|(name, _)| *name))?;
        let group = self.group()?;
        let first = is_first(group.as_deref())?;
        let saved = match first {
            true => self.next_place(op),
            false => Ok(0),
        };
        let state = together(parts);
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

    /// Makes this the folder's writer, and says which place among the checkpoints the next one has.
    fn next_place(&mut self, op: &'static str) -> Result<u64> {
        if self.lock.is_none() {
            self.lock = Some(Arc::new(Lock::take(op, &self.folder)?));
        }
        let found = folder::checkpoints(&self.folder)?;
        Ok(found
            .last()
            .map_or(0, |stamp| stamp.saved.saturating_add(1)))
    }

    fn load(
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

    /// The step that was saved last, as the first rank sees it.
    fn agreed_step(&self) -> Result<Option<u64>> {
        let Some(group) = self.group()?.filter(|group| group.size() > 1) else {
            return self.latest_step();
        };
        let found = match is_first(Some(&group))? {
            true => Some(self.latest_step()),
            false => None,
        };
        let told = found
            .as_ref()
            .map(|found| found.as_ref().map_err(Error::to_string));
        let told: Vec<Option<Result<Option<u64>, String>>> =
            group.all_gather_object(&told.map(|told| told.copied()))?;
        match (found, told.into_iter().flatten().next()) {
            (Some(own), _) => own,
            (None, Some(Ok(step))) => Ok(step),
            (None, told) => Err(Error::ReplicaFailed {
                rank: group.global_rank(0)?,
                message: told.and_then(Result::err).unwrap_or_default(),
            }),
        }
    }

    fn group(&self) -> Result<Option<Arc<ProcessGroup>>> {
        match &self.group {
            Group::Given(group) => Ok(group.clone()),
            Group::Default => dist::is_initialized().then(dist::default_group).transpose(),
        }
    }

    fn deadline_of(&self) -> Result<Duration> {
        match self.deadline {
            Some(deadline) => Ok(deadline),
            None => Ok(Config::global()?.deadline),
        }
    }

    /// Waits for the save that goes on, and passes on its error.
    fn join(&mut self, patience: Duration) -> Result<()> {
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
    fn look(&mut self) -> Result<()> {
        match self.join(Duration::ZERO) {
            Err(Error::Deadline { .. }) if self.pending.is_some() => Ok(()),
            outcome => outcome,
        }
    }
}

impl Drop for CheckpointManager {
    fn drop(&mut self) {
        if let Ok(deadline) = self.deadline_of() {
            let _ = self.join(deadline);
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
