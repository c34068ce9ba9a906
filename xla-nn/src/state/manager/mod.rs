//! The checkpoints of a run.

mod folder;
mod pending;
mod run;

use super::Stateful;
use folder::Lock;
use pending::Pending;
use std::collections::BTreeSet;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use xla_core::{Error, Result};
use xla_dist::ProcessGroup;

/// Keeps the checkpoints of a run in a folder, as `step-100`, `step-200`, …: saves, also beside the
/// training, removes old ones, and continues from the last.
///
/// What is saved are parts with names, each a [`Stateful`]: model, optimizer, generator, whatever else
/// the run depends on. They are one [`Checkpoint`](super::Checkpoint) of tensors such as `model/0.weight`, and appear
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
    /// otherwise as [`Checkpoint::save`](super::Checkpoint::save).
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
    /// and dtype that differs; as [`Checkpoint::open`](super::Checkpoint::open); nothing has been changed then. The error of a
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
            let found = match step {
                Some(step) => {
                    self.join(self.deadline_of()?)?;
                    self.steps()?.contains(&step).then_some(step)
                }
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
            let step = self.agreed_step()?;
            if let Some(step) = step {
                self.load("CheckpointManager::resume", step, parts)?;
            }
            Ok(step)
        };
        resume().map_err(|e: Error| e.relocated(here))
    }
}

impl Drop for CheckpointManager {
    fn drop(&mut self) {
        if let Ok(deadline) = self.deadline_of() {
            let _ = self.join(deadline);
        }
    }
}
