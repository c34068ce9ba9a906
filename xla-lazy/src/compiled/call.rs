//! One call: found among the graphs and run, or recorded.

use super::Compiled;
use super::arguments::{Given, Inside, given, inline};
use super::graph::{After, Before, Recorded};
use super::kind::{Body, Graph, Key, Seen, difference, shown};
use super::options::Options;
use super::replay::warn;
use super::state::State;
use super::tracing::{self, Noted, Stop, Tracing};
use super::tree::{Flat, Leaf, Parts, Tree};
use crate::ops::COPY;
use crate::step_closure;
use crate::storage::Storage;
use crate::sync::{self, Cause, Program};
use crate::trace::{self, Trace, no_grad};
use crate::{Tensor, default_generator};
use std::num::NonZeroU32;
use std::panic::Location;
use std::sync::{Arc, Weak};
use xla_core::{Device, Error, Result, Site};

/// Everything about a call but function and state.
struct Call {
    trace: Arc<Trace>,
    cause: Cause,
    at: &'static Location<'static>,
    given: Vec<Given>,
    words: Vec<usize>,
}

/// The device of the first tensor, or the calling replica's.
fn device_of(flat: &Flat) -> Result<Device> {
    let first = flat.leaves.iter().find_map(|leaf| match leaf {
        Leaf::Tensor(tensor) => Some(tensor.device()),
        Leaf::Number(..) => None,
    });
    match first {
        Some(device) => Ok(device),
        None => crate::spmd::default_device("call"),
    }
}

impl<F, S, I, T: Tree<Inside = T>> Compiled<F, S, I, T> {
    /// One call, and the step closures that wait for it.
    pub(super) fn call_with<St: State, A: Tree<Inside = I>>(
        &mut self,
        state: &mut St,
        arguments: A,
        at: &'static Location<'static>,
        function: impl FnMut(&mut F, &mut St, I) -> Result<T>,
    ) -> Result<T> {
        let result = self.call_once(state, arguments, at, function)?;
        if !tracing::is_active() {
            step_closure::run()?;
        }
        Ok(result)
    }

    fn call_once<St: State, A: Tree<Inside = I>>(
        &mut self,
        state: &mut St,
        arguments: A,
        at: &'static Location<'static>,
        mut function: impl FnMut(&mut F, &mut St, I) -> Result<T>,
    ) -> Result<T> {
        let mut flat = Flat::default();
        arguments.flatten(&mut flat);
        let device = device_of(&flat)?;
        if tracing::is_active() {
            // Part of the function that is being recorded.
            let inside = A::inside(&mut inline(flat, device)?)?;
            return function(&mut self.function, state, inside);
        }
        let call = Call::new(flat, device, self.options.function.name, at)?;
        let seen = Seen::of(&shown(state));
        let key = Key::new(device, &call.given, &call.words, &seen);
        let mut enter = |parts: &mut Parts, state: &mut St| -> Result<T> {
            self.recordings += 1;
            function(&mut self.function, state, A::inside(parts)?)
        };
        let mut serves = None;
        for (index, graph) in self.graphs.iter().enumerate() {
            let found = graph.serves(&key, &seen.storages, &call.given);
            if found.map_err(|error| error.at(at))? {
                serves = Some(index);
                break;
            }
        }
        let Some(graph) = serves.and_then(|index| self.graphs.get_mut(index)) else {
            self.graphs.retain(Graph::is_of_use);
            room(&self.options, &self.graphs, &key, at)?;
            let (result, outcome) = call.record(&self.options, state, &mut enter)?;
            self.graphs.push(outcome.graph(&self.options, key));
            return Ok(result);
        };
        graph.calls = graph.calls.wrapping_add(1);
        let due = |every: NonZeroU32| graph.calls % every == 0;
        match &graph.body {
            Body::Lazy => call.plainly(state, &mut enter),
            Body::Recorded(..) if self.options.verify_every.is_some_and(due) => {
                let (result, outcome) = call.record(&self.options, state, &mut enter)?;
                graph.compare(&self.options, outcome)?;
                Ok(result)
            }
            Body::Recorded(recorded, program) => {
                recorded.settle(call.cause)?;
                state.replay(&recorded.notes)?;
                // On a mesh the program also depends on how the values are spread just now.
                let fixed = program.as_ref().filter(|_| !device.is_virtual());
                let made = recorded.run(&call.trace, fixed, &call.given, call.cause)?;
                let results = recorded.results.iter();
                let results = results.map(|index| Tensor::of(Arc::clone(&made[*index])));
                T::inside(&mut Parts::new(results.collect(), recorded.words.clone()))
            }
        }
    }
}

/// Whether one more graph may be recorded.
fn room(
    options: &Options,
    graphs: &[Graph],
    key: &Key,
    at: &'static Location<'static>,
) -> Result<()> {
    match options.max_different_graphs {
        Some(limit) if graphs.len() >= limit => Err(Error::TooManyGraphs {
            function: options.function.name.into(),
            limit,
            difference: difference(graphs, key),
            at: at.into(),
        }),
        _ => Ok(()),
    }
}

/// What came of recording a call, besides its results.
struct Outcome {
    body: Result<(Recorded, Option<Arc<Program>>), Stop>,
    /// The state's storages as they are before the next call of this kind.
    state: Vec<Weak<Storage>>,
}

impl Call {
    /// With the arguments computed, and all that has been recorded.
    fn new(
        flat: Flat,
        device: Device,
        name: &'static str,
        at: &'static Location<'static>,
    ) -> Result<Self> {
        let trace = Trace::of_thread(device);
        let cause = Cause::Compiled { name, at };
        let given = given(flat.leaves, at)?;
        sync::flush(&trace, cause)?;
        Ok(Call {
            trace,
            cause,
            at,
            given,
            words: flat.words,
        })
    }

    fn inside(&self) -> Result<Inside> {
        Inside::new(&self.given, &self.words, self.trace.device, self.at)
    }

    /// Calls the function as ordinary code.
    fn plainly<S, T: Tree<Inside = T>>(
        &self,
        state: &mut S,
        enter: &mut impl FnMut(&mut Parts, &mut S) -> Result<T>,
    ) -> Result<T> {
        let result = enter(&mut self.inside()?.parts, state)?;
        let (tensors, words) = own(result)?;
        sync::sync_at(self.cause)?;
        T::inside(&mut Parts::new(tensors, words))
    }

    /// Calls the function, and notes what later calls need to do without.
    fn record<S: State, T: Tree<Inside = T>>(
        &self,
        options: &Options,
        state: &mut S,
        enter: &mut impl FnMut(&mut Parts, &mut S) -> Result<T>,
    ) -> Result<(T, Outcome)> {
        sync::sync_at(self.cause)?;
        // Made now if it is the first use: what the function makes itself is not kept.
        default_generator(self.trace.device)?;
        let before = Before::of(&shown(state).tensors);
        let epoch = {
            let mut state = self.trace.lock();
            state.recording.origins = Some(Vec::new());
            state.recording.function = Some(Arc::new(options.function.clone()));
            state.recording.epoch
        };
        let tracing = Tracing::begin(options.function.name, options.full_graph);
        let mut inside = self.inside()?;
        let result = enter(&mut inside.parts, state).and_then(own);
        let mut noted = tracing.end()?;
        let refused = |stop: &Stop| {
            let error = stop.error(options.function.name);
            options.full_graph.then_some(error)
        };
        let ((results, words), stopped) = (result?, &noted.stopped);
        if let Some(error) = stopped.as_ref().and_then(refused) {
            return Err(error);
        }
        let after = shown(state);
        undeclared(&mut noted, &after);
        let seen = Seen::of(&after);
        let storages = after.tensors.iter().map(|t| Arc::downgrade(&t.storage));
        let storages = storages.collect();
        let understood = After {
            before: &before,
            state: &seen.storages,
            arguments: &inside.storages,
            argument_numbers: inside.numbers,
            results: &results,
            words: words.clone(),
            epoch,
        }
        .understand(&self.trace, noted);
        if let Some(error) = understood.as_ref().err().and_then(refused) {
            return Err(error);
        }
        let program = sync::flush_whole(&self.trace, self.cause)?;
        sync::sync_at(self.cause)?;
        let outcome = match understood {
            Ok((recorded, settled)) => {
                let has_gang = recorded.template.has_gang();
                Outcome {
                    body: Ok((recorded, program.filter(|_| !has_gang))),
                    state: if settled { storages } else { before.storages },
                }
            }
            Err(stop) => Outcome {
                body: Err(stop),
                state: storages,
            },
        };
        Ok((T::inside(&mut Parts::new(results, words))?, outcome))
    }
}

/// The results as values of their own.
fn own<T: Tree>(result: T) -> Result<(Vec<Tensor>, Vec<usize>)> {
    let mut flat = Flat::default();
    result.flatten(&mut flat);
    let tensor = |leaf| match leaf {
        Leaf::Tensor(tensor) => no_grad(|| {
            let made = line_of(&tensor)?;
            trace::record_at(&COPY, &[(&tensor.detach()?).into()], made)
        }),
        Leaf::Number(..) => Err(Error::Internal {
            what: "compiled",
            expected: "tensors as results".into(),
        }),
    };
    let tensors = flat.leaves.into_iter().map(tensor).collect::<Result<_>>()?;
    Ok((tensors, flat.words))
}

/// The line that made a result, which is what who asks for its line means.
fn line_of(result: &Tensor) -> Result<&'static Location<'static>> {
    let here = Location::caller();
    if result.view.is_some() {
        return Ok(here);
    }
    trace::with_node("compiled", result, here, |_, state, node| {
        state.recording.nodes[node as usize].location
    })
}

/// Numbers that were changed in something that is not in the state would not change again.
fn undeclared(noted: &mut Noted, state: &super::state::StateVisitor<'_>) {
    let missing = noted.notes.0.iter();
    let missing = missing.filter(|(owner, ..)| !state.owners.contains(owner));
    if let Some((_, what, _)) = missing.into_iter().next() {
        let reason = format!("{what} changes numbers of something that is not in its state");
        noted.stopped.get_or_insert(Stop::new(reason, Site::NONE));
    }
}

impl Outcome {
    fn body(self, options: &Options) -> (Body, Vec<Weak<Storage>>) {
        let body = match self.body {
            Ok((recorded, program)) => Body::Recorded(Box::new(recorded), program),
            Err(stop) => {
                warn(options.function.name, &stop);
                Body::Lazy
            }
        };
        (body, self.state)
    }

    fn graph(self, options: &Options, key: Key) -> Graph {
        let (body, state) = self.body(options);
        Graph {
            key,
            state,
            body,
            calls: 0,
        }
    }
}

impl Graph {
    /// Takes over what has been recorded once more for a call of this kind.
    ///
    /// # Errors
    /// [`Error::CapturedChoice`], [`Error::CapturedNumber`] when it is something else.
    fn compare(&mut self, options: &Options, outcome: Outcome) -> Result<()> {
        let (new, state) = outcome.body(options);
        let old = std::mem::replace(&mut self.body, new);
        self.state = state;
        let (Body::Recorded(old, _), Body::Recorded(new, _)) = (&old, &self.body) else {
            return Ok(());
        };
        let function = options.function.name.to_owned();
        if let Some((difference, at)) = old.difference(new) {
            return Err(Error::CapturedChoice {
                function,
                difference,
                at,
            });
        }
        match old.captured(new) {
            None => Ok(()),
            Some((recorded, now, at)) => Err(Error::CapturedNumber {
                function,
                recorded,
                now,
                at,
            }),
        }
    }
}
