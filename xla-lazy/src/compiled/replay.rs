//! A call without the function: the recorded program on the values there are now.

use super::arguments::Given;
use super::graph::{Gradient, Place, Recorded, Source};
use super::tracing::Stop;
use crate::Tensor;
use crate::grad::Leaf;
use crate::handle::Handle;
use crate::storage::{Storage, Value};
use crate::sync::{self, Again, Cause, DeviceValue, Program};
use crate::trace::{Slot, Trace};
use std::sync::{Arc, Weak};
use xla_core::{Error, Result};

/// The program's inputs, gathered; what they were taken out of waits for the results.
struct Inputs {
    values: Vec<DeviceValue>,
    /// Storages that will be changed, and where their value is among the inputs.
    taken: Vec<(Arc<Storage>, usize)>,
}

/// A storage that a source or a place names.
fn gradient_of(leaf: &Weak<Leaf>) -> Option<Arc<Storage>> {
    let grad = leaf.upgrade()?.get()?;
    Some(Arc::clone(&grad.storage))
}

impl Place {
    fn storage(&self) -> Option<Arc<Storage>> {
        match self {
            Place::Storage(storage) => storage.upgrade(),
            Place::Gradient(leaf) => gradient_of(leaf),
            Place::New(_) | Place::Nowhere => None,
        }
    }
}

fn gone() -> Error {
    Error::Internal {
        what: "compiled",
        expected: "the state that was found a moment ago".into(),
    }
}

impl Recorded {
    /// Whether everything that the program reads and writes is still there.
    pub(super) fn is_whole(&self) -> bool {
        let read = self.sources.iter().all(|source| match source {
            Source::Storage(storage) => storage.strong_count() > 0,
            Source::Gradient(leaf) => gradient_of(leaf).is_some(),
            Source::Argument(_) | Source::Constant(_) => true,
        });
        let written = |(_, place): &(u32, Place)| match place {
            Place::New(_) | Place::Nowhere => true,
            place => place.storage().is_some(),
        };
        let in_range = |(storage, range): &(Weak<Storage>, (i64, i64))| {
            storage
                .upgrade()
                .is_none_or(|s| s.lock().range == Some(*range))
        };
        read && self.places.iter().all(written) && self.ranges.iter().all(in_range)
    }

    /// Has everything computed that the program reads and that is pending somewhere.
    ///
    /// # Errors
    /// That of a program that should have computed it.
    pub(super) fn settle(&self, cause: Cause) -> Result<()> {
        for source in &self.sources {
            let storage = match source {
                Source::Storage(storage) => storage.upgrade(),
                Source::Gradient(leaf) => gradient_of(leaf),
                Source::Argument(_) | Source::Constant(_) => None,
            };
            if let Some(trace) = storage.and_then(|storage| storage.pending_in()) {
                sync::flush(&trace, cause)?;
            }
        }
        Ok(())
    }

    /// Runs the program and puts its results where the function would have put them; returns the
    /// storages made.
    ///
    /// # Errors
    /// Those of execution. What would have been changed is then as it was.
    pub(super) fn run(
        &self,
        trace: &Arc<Trace>,
        program: Option<&Arc<Program>>,
        arguments: &[Given],
        cause: Cause,
    ) -> Result<Vec<Arc<Storage>>> {
        let numbers = self.numbers(arguments);
        // Read by other threads meanwhile, a storage in change lets them wait for this lock.
        let serial = trace.serial()?;
        let inputs = self.inputs(trace, arguments)?;
        let Some(program) = program else {
            drop(serial);
            return self.run_with_gang(trace, inputs, numbers, cause);
        };
        let again = Again {
            program,
            template: &self.template,
            numbers: &numbers,
            cause,
        };
        match sync::run_again(trace, &again, &inputs.values) {
            Ok(outputs) => self.put(trace, outputs),
            Err(error) => {
                inputs.restore(&error);
                Err(error)
            }
        }
    }

    fn inputs(&self, trace: &Arc<Trace>, arguments: &[Given]) -> Result<Inputs> {
        let mut inputs = Inputs {
            values: Vec::with_capacity(self.sources.len()),
            taken: Vec::new(),
        };
        for (source, rebound) in self.sources.iter().zip(self.template.rebound()) {
            let rebound = rebound.is_some_and(|node| self.is_put_back(node));
            let found = match source {
                Source::Argument(index) => match arguments.get(*index).and_then(Given::value) {
                    Some(value) => Ok(value.clone()),
                    None => Err(gone()),
                },
                Source::Constant(value) => Ok(value.clone()),
                Source::Storage(storage) => {
                    inputs.of_storage(storage.upgrade(), rebound.then_some(trace))
                }
                Source::Gradient(leaf) => {
                    inputs.of_storage(gradient_of(leaf), rebound.then_some(trace))
                }
            };
            match found {
                Ok(value) => inputs.values.push(value),
                Err(error) => {
                    inputs.restore(&error);
                    return Err(error);
                }
            }
        }
        Ok(inputs)
    }

    /// Whether the value of a node goes into a storage that there is already.
    fn is_put_back(&self, node: u32) -> bool {
        let found = self.places.binary_search_by_key(&node, |(node, _)| *node);
        let place = found.ok().map(|at| &self.places[at].1);
        matches!(place, Some(Place::Storage(_) | Place::Gradient(_)))
    }

    /// Puts the outputs into the storages that stand for them.
    fn put(&self, trace: &Trace, outputs: Vec<DeviceValue>) -> Result<Vec<Arc<Storage>>> {
        let mut made: Vec<Option<Arc<Storage>>> = vec![None; self.new.len()];
        for ((_, place), value) in self.places.iter().zip(outputs) {
            if let Place::New(index) = place {
                let storage = Storage::new(self.new[*index], trace.device, Value::Ready(value));
                made[*index] = Some(Arc::new(storage));
            } else if let Some(storage) = place.storage() {
                storage.change(Value::Ready(value), Slot::NONE);
            }
        }
        self.finish(made)
    }

    /// Gives the leaves their gradients.
    fn finish(&self, made: Vec<Option<Arc<Storage>>>) -> Result<Vec<Arc<Storage>>> {
        let made: Vec<_> = made.into_iter().collect::<Option<_>>().ok_or_else(gone)?;
        for (leaf, gradient) in &self.gradients {
            let Some(leaf) = leaf.upgrade() else { continue };
            match gradient {
                Gradient::Kept => {}
                Gradient::None => leaf.set(None),
                Gradient::New(index, view) => leaf.set(Some(Tensor {
                    storage: Handle::new(Arc::clone(&made[*index])),
                    view: view.as_ref().map(|view| view.afresh()),
                })),
            }
        }
        Ok(made)
    }

    /// With collectives the program goes the way of all that is recorded, as if the function had
    /// recorded it just now: the replicas compare, settle and vote, and one that differs is told.
    fn run_with_gang(
        &self,
        trace: &Arc<Trace>,
        inputs: Inputs,
        numbers: crate::trace::Numbers,
        cause: Cause,
    ) -> Result<Vec<Arc<Storage>>> {
        let mut state = trace.lock();
        let epoch = state.recording.epoch;
        state.recording.load(&self.template, inputs.values, numbers);
        let mut made: Vec<Option<Arc<Storage>>> = vec![None; self.new.len()];
        let mut kept = Vec::new();
        for (node, place) in &self.places {
            let slot = Slot::new(epoch, *node);
            let storage = match (place.storage(), place) {
                (Some(storage), _) => storage,
                (None, Place::New(index)) => {
                    let pending = Value::Pending(Arc::clone(trace));
                    let storage = Arc::new(Storage::new(self.new[*index], trace.device, pending));
                    made[*index] = Some(Arc::clone(&storage));
                    storage
                }
                (None, _) => {
                    let ty = self.template.nodes()[*node as usize].ty;
                    let pending = Value::Pending(Arc::clone(trace));
                    Arc::new(Storage::new(ty, trace.device, pending))
                }
            };
            storage.change(Value::Pending(Arc::clone(trace)), slot);
            storage.set_owner(trace.owner());
            state.recording.storages[*node as usize] = Some(Arc::clone(&storage));
            kept.push(storage);
        }
        drop(state);
        let flushed = sync::flush(trace, cause);
        drop(kept);
        flushed?;
        self.finish(made)
    }
}

impl Inputs {
    /// The value of a storage, taken out of it if the program changes it: then nobody else holds it,
    /// and its memory can be used.
    fn of_storage(
        &mut self,
        storage: Option<Arc<Storage>>,
        change: Option<&Arc<Trace>>,
    ) -> Result<DeviceValue> {
        let storage = storage.ok_or_else(gone)?;
        let mut contents = storage.lock();
        let value = match &contents.value {
            Value::Ready(value) => value.clone(),
            Value::Failed(error) => return Err(Error::clone(error)),
            Value::Pending(_) => return Err(gone()),
        };
        if let Some(trace) = change {
            contents.value = Value::Pending(Arc::clone(trace));
            drop(contents);
            self.taken.push((storage, self.values.len()));
        }
        Ok(value)
    }

    /// Gives back what was taken.
    fn restore(&self, error: &Error) {
        let error = Arc::new(error.clone());
        for (storage, at) in &self.taken {
            let value = match self.values.get(*at) {
                Some(value) if !value.is_gone() => Value::Ready(value.clone()),
                _ => Value::Failed(Arc::clone(&error)),
            };
            storage.lock().value = value;
        }
    }
}

/// Says once that a function is not compiled.
pub(super) fn warn(function: &str, stop: &Stop) {
    eprintln!(
        "warning: compiled function {function}: {}{}; it is called each time, as ordinary code",
        stop.reason, stop.at
    );
}
