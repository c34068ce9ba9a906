//! A recorded call: where the program's inputs come from at each call, and where its results go.

use super::number::HostNumber;
use super::state::Notes;
use super::tracing::{Check, Noted, Stop};
use crate::Tensor;
use crate::grad::Leaf;
use crate::storage::Storage;
use crate::sync::{DeviceValue, live_nodes};
use crate::trace::{Node, NumberClass, Numbers, Recording, Template, Trace, flag};
use crate::ty::Ty;
use crate::view::View;
use std::collections::HashMap;
use std::sync::{Arc, Weak};
use xla_core::Site;

/// Where the value of a parameter comes from.
pub(super) enum Source {
    /// That argument of the call.
    Argument(usize),
    /// What this storage holds.
    Storage(Weak<Storage>),
    /// The gradient that this leaf has.
    Gradient(Weak<Leaf>),
    /// What the function sent to the device when it was recorded.
    Constant(DeviceValue),
}

/// Where a result goes.
#[derive(Clone)]
pub(super) enum Place {
    /// Into this storage, which is changed in place.
    Storage(Weak<Storage>),
    /// Into the gradient that this leaf has, in place.
    Gradient(Weak<Leaf>),
    /// Into a storage of its own, made at each call.
    New(usize),
    /// Nobody can reach it.
    Nowhere,
}

/// What has become of a leaf's gradient when the function returns.
pub(super) enum Gradient {
    None,
    /// The same tensor.
    Kept,
    /// One of the new storages, or a view of it.
    New(usize, Option<Arc<View>>),
}

/// What a number of the program is at each call.
pub(super) enum Varying {
    Argument(usize),
    Host(HostNumber),
}

/// Everything that a call of the same kind needs, instead of calling the function.
pub(super) struct Recorded {
    pub(super) template: Template,
    /// As many as the template has parameters.
    pub(super) sources: Vec<Source>,
    /// The numbers as recorded.
    pub(super) numbers: Numbers,
    /// Those of them that vary.
    pub(super) varying: Vec<((NumberClass, u32), Varying)>,
    /// Of the live nodes, ascending.
    pub(super) places: Vec<(u32, Place)>,
    /// Types of the storages made at each call.
    pub(super) new: Vec<Ty>,
    /// What the function returns, among these storages.
    pub(super) results: Vec<usize>,
    pub(super) words: Vec<usize>,
    pub(super) gradients: Vec<(Weak<Leaf>, Gradient)>,
    pub(super) checks: Vec<Check>,
    pub(super) ranges: Vec<(Weak<Storage>, (i64, i64))>,
    pub(super) notes: Notes,
}

/// The state before the function was called, as far as it is needed to understand what the function
/// did.
pub(super) struct Before {
    pub(super) storages: Vec<Weak<Storage>>,
    pub(super) leaves: Vec<(Arc<Leaf>, Option<Weak<Storage>>)>,
}

impl Before {
    pub(super) fn of(tensors: &[&Tensor]) -> Self {
        let storage = |tensor: &&Tensor| Arc::downgrade(&tensor.storage);
        let leaves = tensors.iter().filter_map(|tensor| {
            let leaf = tensor.leaf()?;
            let grad = leaf.get().map(|grad| Arc::downgrade(&grad.storage));
            Some((leaf, grad))
        });
        Before {
            storages: tensors.iter().map(storage).collect(),
            leaves: leaves.collect(),
        }
    }

    /// The leaf whose gradient this storage held.
    fn leaf_of(&self, id: usize) -> Option<&Arc<Leaf>> {
        let with_grad = self.leaves.iter();
        with_grad
            .filter(|(_, grad)| grad.as_ref().is_some_and(|g| g.as_ptr().addr() == id))
            .map(|(leaf, _)| leaf)
            .next()
    }

    fn holds(&self, id: usize) -> bool {
        self.storages.iter().any(|s| s.as_ptr().addr() == id)
    }
}

/// What is known when the function has returned.
pub(super) struct After<'a> {
    pub(super) before: &'a Before,
    /// The state's storages now, by address.
    pub(super) state: &'a [usize],
    /// The storages that the function was given as arguments.
    pub(super) arguments: &'a [Option<Weak<Storage>>],
    pub(super) argument_numbers: Vec<((NumberClass, u32), Varying)>,
    pub(super) results: &'a [Tensor],
    pub(super) words: Vec<usize>,
    pub(super) epoch: u64,
}

impl After<'_> {
    /// Understands what was recorded.
    ///
    /// The second value says whether the state that the function has left behind is one that the
    /// recording also begins with: all that is new in it entered the program from the host.
    ///
    /// # Errors
    /// What keeps it from being run again.
    pub(super) fn understand(
        self,
        trace: &Arc<Trace>,
        noted: Noted,
    ) -> Result<(Recorded, bool), Stop> {
        if let Some(stop) = noted.stopped {
            return Err(stop);
        }
        let state = trace.lock();
        let recording = &state.recording;
        let Some(origins) = recording
            .origins
            .as_ref()
            .filter(|_| recording.epoch == self.epoch)
        else {
            let reason = "another thread reads a value that it changes, while it is recorded";
            return Err(Stop::new(reason, Site::NONE));
        };
        if let Some(node) = recording.histories.keys().min() {
            let reason = "a gradient would flow on from it, to what was computed before";
            let at = recording.nodes[*node as usize].location;
            return Err(Stop::new(reason, at));
        }
        let made: Vec<usize> = noted.made.iter().map(|m| m.as_ptr().addr()).collect();
        let origins: Vec<usize> = origins.iter().map(|o| o.as_ptr().addr()).collect();
        let sources = self.sources(recording, &made);
        let mut new = New::default();
        for result in self.results {
            new.index(result);
        }
        let results = self.results.iter().map(|r| new.index(r)).collect();
        let mut gradients = Vec::new();
        let live = live_nodes(recording);
        let is_live = |id: usize| {
            let storage = |n: &u32| recording.storages[*n as usize].as_ref();
            live.iter()
                .filter_map(storage)
                .any(|s| Arc::as_ptr(s).addr() == id)
        };
        for (leaf, before) in &self.before.leaves {
            let after = match leaf.get() {
                None => Gradient::None,
                Some(grad) => {
                    let id = grad.storage_id();
                    if before.as_ref().is_some_and(|b| b.as_ptr().addr() == id) {
                        Gradient::Kept
                    } else if is_live(id) {
                        Gradient::New(new.index(&grad), grad.view.as_ref().map(|v| v.afresh()))
                    } else {
                        let reason = "it makes a tensor from elsewhere the gradient of a parameter";
                        return Err(Stop::new(reason, Site::NONE));
                    }
                }
            };
            gradients.push((Arc::downgrade(leaf), after));
        }
        let temporary = self.temporary_gradients(recording, &sources)?;
        let mut places = Vec::with_capacity(live.len());
        for &node in &live {
            let Some(storage) = &recording.storages[node as usize] else {
                continue;
            };
            let id = Arc::as_ptr(storage).addr();
            let recorded = recording.nodes[node as usize];
            if recorded.has(flag::GRAD) && !recorded.has(flag::LEAF) {
                let reason = "a tensor that gradients flow to outlives it; detach() what is kept";
                return Err(Stop::new(reason, recorded.location));
            }
            let source = origins.iter().position(|o| *o == id).map(|at| &sources[at]);
            let place = match (new.of(id), source) {
                (Some(index), _) => Place::New(index),
                (None, Some(Source::Storage(storage))) => Place::Storage(Weak::clone(storage)),
                (None, Some(Source::Gradient(leaf))) => Place::Gradient(Weak::clone(leaf)),
                _ => match self.before.leaf_of(id) {
                    Some(leaf) => Place::Gradient(Arc::downgrade(leaf)),
                    None if self.state.contains(&id) => Place::Storage(Arc::downgrade(storage)),
                    None if temporary.contains(&id) => Place::Nowhere,
                    None => {
                        let reason = format!(
                            "a tensor ({}) outlives it that is neither a result nor in its state",
                            recorded.ty
                        );
                        return Err(Stop::new(reason, recorded.location));
                    }
                },
            };
            places.push((node, place));
        }
        let fresh = |id: &&usize| !self.before.holds(**id);
        let settled = self.state.iter().filter(fresh);
        let settled = settled
            .into_iter()
            .all(|id| made.contains(id) && origins.contains(id));
        let host = noted.numbers.into_iter();
        let host = host.map(|(slot, number)| (slot, Varying::Host(number)));
        let recorded = Recorded {
            template: recording.template(live),
            numbers: recording.numbers.clone(),
            varying: self.argument_numbers.into_iter().chain(host).collect(),
            sources,
            places,
            new: new.types,
            results,
            words: self.words,
            gradients,
            checks: noted.checks,
            ranges: noted.ranges,
            notes: noted.notes,
        };
        Ok((recorded, settled))
    }

    fn sources(&self, recording: &Recording, made: &[usize]) -> Vec<Source> {
        let origins = recording.origins.iter().flatten();
        let source = |(param, origin): (&crate::trace::Param, &Weak<Storage>)| {
            let id = origin.as_ptr().addr();
            let is_it = |argument: &Option<Weak<Storage>>| {
                argument.as_ref().is_some_and(|a| a.as_ptr().addr() == id)
            };
            if let Some(argument) = self.arguments.iter().position(is_it) {
                Source::Argument(argument)
            } else if made.contains(&id) && !self.state.contains(&id) {
                Source::Constant(param.value.clone())
            } else if let Some(leaf) = self.before.leaf_of(id) {
                Source::Gradient(Arc::downgrade(leaf))
            } else {
                Source::Storage(Weak::clone(origin))
            }
        };
        recording.params.iter().zip(origins).map(source).collect()
    }

    /// The gradients of leaves that the function itself has made: they end with it.
    fn temporary_gradients(
        &self,
        recording: &Recording,
        sources: &[Source],
    ) -> Result<Vec<usize>, Stop> {
        let mut temporary = Vec::new();
        for (node, leaf) in &recording.leaves {
            if self
                .before
                .leaves
                .iter()
                .any(|(known, _)| Arc::ptr_eq(known, leaf))
            {
                continue;
            }
            let Some(grad) = leaf.get() else { continue };
            let pending = grad.storage.slot().in_epoch(recording.epoch).is_some();
            let captured = recording
                .params
                .iter()
                .position(|p| p.node == *node)
                .is_some_and(|at| matches!(sources[at], Source::Storage(_)));
            if captured && pending {
                let at = recording.nodes[*node as usize].location;
                let reason = "it leaves a gradient in a parameter that is not in its state";
                return Err(Stop::new(reason, at));
            }
            temporary.push(grad.storage_id());
        }
        Ok(temporary)
    }
}

/// The storages made at each call, by the address of the one made while recording.
#[derive(Default)]
struct New {
    types: Vec<Ty>,
    at: HashMap<usize, usize>,
}

impl New {
    fn index(&mut self, tensor: &Tensor) -> usize {
        *self.at.entry(tensor.storage_id()).or_insert_with(|| {
            self.types.push(tensor.storage.ty());
            self.types.len() - 1
        })
    }

    fn of(&self, id: usize) -> Option<usize> {
        self.at.get(&id).copied()
    }
}

impl Recorded {
    /// The numbers of a call: as recorded, but for those that vary.
    pub(super) fn numbers(&self, arguments: &[super::arguments::Given]) -> Numbers {
        let mut numbers = self.numbers.clone();
        for ((class, slot), from) in &self.varying {
            match from {
                Varying::Host(number) => numbers.set(*class, *slot, number.get().into()),
                Varying::Argument(index) => {
                    if let Some(number) = arguments.get(*index).and_then(|a| a.number()) {
                        numbers.set(*class, *slot, number);
                    }
                }
            }
        }
        numbers
    }

    /// The first operator recorded otherwise, with what it was before.
    pub(super) fn difference(&self, other: &Recorded) -> Option<(String, Site)> {
        if self.template.chain() == other.template.chain() {
            return None;
        }
        let (old, new) = (self.template.nodes(), other.template.nodes());
        let same = |(a, b): (&Node, &Node)| std::ptr::eq(a.entry, b.entry) && a.ty == b.ty;
        let at = old.iter().zip(new).position(|pair| !same(pair));
        let at = at.unwrap_or(old.len().min(new.len()));
        let describe = |node: Option<&Node>| match node {
            Some(node) => format!("{:?} -> {} at {}", node.entry, node.ty, node.location),
            None => "nothing more".into(),
        };
        let site = match new.get(at).or(new.last()) {
            Some(node) => node.location.into(),
            None => Site::NONE,
        };
        let (was, is) = (describe(old.get(at)), describe(new.get(at)));
        Some((format!("operator {at} was {was} and is {is}"), site))
    }

    /// The first number that differs from that of a later recording and should not, with the line of
    /// the operator that reads it.
    pub(super) fn captured(&self, other: &Recorded) -> Option<(f64, f64, Site)> {
        let slots = self.numbers.differing(&other.numbers);
        let varies = |slot: &(NumberClass, u32)| self.varying.iter().any(|(s, _)| s == slot);
        let slot = slots.into_iter().find(|slot| !varies(slot))?;
        let at = other.template.reader(slot.0, slot.1);
        let number = |recorded: &Recorded| recorded.numbers.get(slot.0, slot.1).to_f64();
        let site = at.map_or(Site::NONE, |node| node.location.into());
        Some((number(self), number(other), site))
    }
}
