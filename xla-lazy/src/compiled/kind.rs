//! What calls of one graph have in common.

use super::arguments::{Given, Kind};
use super::graph::Recorded;
use super::state::{State, StateVisitor};
use crate::hash::Hash128;
use crate::storage::Storage;
use crate::sync::Program;
use crate::trace;
use std::sync::{Arc, Weak};
use xla_core::{Device, Result};

/// A state as it is before a call.
pub(super) struct Seen {
    /// Its storages, by address.
    pub(super) storages: Vec<usize>,
    facts: Hash128,
    /// Which of its leaves have gradients.
    gradients: Vec<bool>,
}

impl Seen {
    pub(super) fn of(visitor: &StateVisitor<'_>) -> Self {
        let leaves = visitor.tensors.iter().filter_map(|tensor| tensor.leaf());
        Seen {
            storages: visitor.tensors.iter().map(|t| t.storage_id()).collect(),
            facts: visitor.facts,
            gradients: leaves.map(|leaf| leaf.has_grad()).collect(),
        }
    }
}

/// What a state shows.
pub(super) fn shown<S: State>(state: &S) -> StateVisitor<'_> {
    let mut visitor = StateVisitor::new();
    state.visit_state(&mut visitor);
    visitor
}

/// All but the state's storages.
#[derive(Debug, PartialEq)]
pub(super) struct Key {
    device: Device,
    arguments: Vec<Kind>,
    words: Vec<usize>,
    facts: Hash128,
    gradients: Vec<bool>,
    ambient: Hash128,
}

impl Key {
    pub(super) fn new(device: Device, given: &[Given], words: &[usize], seen: &Seen) -> Self {
        Key {
            device,
            arguments: given.iter().map(Given::kind).collect(),
            words: words.to_vec(),
            facts: seen.facts,
            gradients: seen.gradients.clone(),
            ambient: trace::ambient(),
        }
    }

    /// The first difference, in words.
    fn difference(&self, other: &Key) -> String {
        let kind = |kind: &Kind| match kind {
            Kind::Tensor(ty, device) => format!("{ty} on {device}"),
            Kind::Number(dtype) => format!("a number of {dtype}"),
        };
        let mut arguments = self.arguments.iter().zip(&other.arguments).enumerate();
        if self.arguments.len() != other.arguments.len() || self.words != other.words {
            return "a flag, or the structure of the arguments, is another".into();
        }
        if let Some((at, (new, old))) = arguments.find(|(_, (new, old))| new != old) {
            return format!("argument {at} is {}, not {}", kind(new), kind(old));
        }
        let what = if self.facts != other.facts {
            "the state shows another fact (training or evaluation, say)"
        } else if self.gradients != other.gradients {
            "other tensors of the state have gradients"
        } else if self.ambient != other.ambient {
            "gradients are recorded or not, or computed in another precision"
        } else if self.device != other.device {
            "it runs on another device"
        } else {
            "the state has other tensors, or indices are known to be in range or not"
        };
        what.into()
    }
}

pub(super) enum Body {
    /// With its program, unless that has collectives.
    Recorded(Box<Recorded>, Option<Arc<Program>>),
    /// Cannot be run without being called.
    Lazy,
}

/// A kind of call, and what it does.
pub(super) struct Graph {
    pub(super) key: Key,
    /// The state's storages. Held weakly, so that no other ever has their address.
    pub(super) state: Vec<Weak<Storage>>,
    pub(super) body: Body,
    /// How often it was called since it was recorded.
    pub(super) calls: u32,
}

impl Graph {
    /// Whether a call is of this kind.
    ///
    /// # Errors
    /// That of an index among the arguments that is out of range.
    pub(super) fn serves(&self, key: &Key, storages: &[usize], given: &[Given]) -> Result<bool> {
        let state = self.state.iter().map(|storage| storage.as_ptr().addr());
        if self.key != *key || !state.eq(storages.iter().copied()) {
            return Ok(false);
        }
        let Body::Recorded(recorded, _) = &self.body else {
            return Ok(true);
        };
        if !recorded.is_whole() {
            return Ok(false);
        }
        for check in &recorded.checks {
            if let Some(argument) = given.get(check.argument)
                && !argument.passes(check)?
            {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether a state like that can ever be passed again.
    pub(super) fn is_of_use(&self) -> bool {
        self.state.iter().all(|storage| storage.strong_count() > 0)
    }
}

/// How a call differs from the nearest graph.
pub(super) fn difference(graphs: &[Graph], key: &Key) -> String {
    let equal = |graph: &&Graph| {
        let pairs = graph.key.arguments.iter().zip(&key.arguments);
        pairs.filter(|(old, new)| old == new).count()
    };
    match graphs.iter().max_by_key(equal) {
        Some(nearest) => key.difference(&nearest.key),
        None => "none is allowed".into(),
    }
}
