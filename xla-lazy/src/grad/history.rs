//! The part of the gradient graph that outlives its trace.

use super::vjp::SavedInput;
use super::{Function, Hooks, Leaf};
use crate::Tensor;
use crate::gang::Gang;
use crate::op::OpEntry;
use crate::storage::{History, Storage, Value};
use crate::sync::DeviceValue;
use crate::trace::{self, Input, Overwrite, Recording, Slot, State, Trace, flag};
use crate::ty::Ty;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use xla_core::{Error, Result};

/// Where the gradient of an input goes.
#[derive(Clone)]
pub(super) enum Edge {
    Leaf(Arc<Leaf>),
    History(History),
}

/// An operator of a program that has executed, kept for a backward pass to come.
pub(crate) struct GradNode {
    /// Position in the order of recording, over all traces.
    pub(super) id: u64,
    pub(super) entry: &'static OpEntry,
    pub(super) ty: Ty,
    pub(super) location: &'static Location<'static>,
    /// The first node of the view that this is.
    pub(super) identity: Slot,
    pub(super) inputs: Vec<SavedInput>,
    pub(super) edges: Mutex<Vec<Option<Edge>>>,
    output: Mutex<Option<Tensor>>,
    /// A saved value that had been changed in place when the program was cut.
    overwritten: Option<Changed>,
    watched: Vec<Watched>,
    hooks: OnceLock<Arc<Hooks>>,
    pub(super) function: Option<Arc<dyn Function>>,
    /// Who executed it, where it is a collective.
    pub(super) gang: Option<Arc<dyn Gang>>,
}

/// A saved value that was changed in place after the operator that reads it in its derivative.
pub(super) struct Changed {
    ty: Ty,
    by: Option<Overwrite>,
}

impl Changed {
    /// The error of a pass that comes to an operator which has saved this value.
    pub(super) fn error(
        &self,
        op: &'static str,
        saved_by: &'static OpEntry,
        saved_at: &'static Location<'static>,
        at: &'static Location<'static>,
    ) -> Error {
        let by = match self.by {
            Some(Overwrite { op, location }) => format!(" by {op} at {location}"),
            None => String::new(),
        };
        Error::Autograd {
            op,
            reason: format!(
                "a tensor ({}) that the derivative of {} at {saved_at} reads was changed in place{by}",
                self.ty, saved_by.name
            ),
            advice: "change a copy() of it, or change it after the backward pass",
            at: at.into(),
        }
    }
}

/// A storage that shares its value with a saved one, or that the saved one shows a part of: the
/// user's handles may change it in place.
struct Watched {
    storage: Weak<Storage>,
    version: u64,
    ty: Ty,
}

impl GradNode {
    /// A saved value that was changed in place.
    pub(super) fn changed(&self) -> Option<Changed> {
        if let Some(Changed { ty, by }) = self.overwritten {
            return Some(Changed { ty, by });
        }
        self.watched.iter().find_map(|watched| {
            let storage = watched.storage.upgrade()?;
            let contents = storage.lock();
            let (version, by) = (contents.version, contents.changed);
            // The last handle may be this one, and a storage is not dropped while it is locked.
            drop(contents);
            (version != watched.version).then_some(Changed { ty: watched.ty, by })
        })
    }

    /// What is called with the gradient of the output.
    pub(crate) fn hooks(&self) -> Arc<Hooks> {
        Arc::clone(self.hooks.get_or_init(Arc::default))
    }

    /// The gradient that flows on, after the hooks.
    pub(super) fn hooked(
        &self,
        grad: Tensor,
        op: &'static str,
        at: &'static Location<'static>,
    ) -> Result<Tensor> {
        match self.hooks.get() {
            Some(hooks) => hooks.apply(grad, op, at),
            None => Ok(grad),
        }
    }

    /// The saved values. For a pass that is itself recorded, and for a function that may record
    /// operators on them, they are given back their history; it is not kept with them, because an operator that saves its own output would then keep itself
    /// alive for ever.
    pub(super) fn values(
        self: &Arc<Self>,
        edges: &[Option<Edge>],
    ) -> (Vec<SavedInput>, Option<Tensor>) {
        let recorded = trace::is_grad_enabled() || self.function.is_some();
        let inputs = self
            .inputs
            .iter()
            .zip(edges)
            .map(|(input, edge)| match (input, edge) {
                (
                    SavedInput::Tensor {
                        ty,
                        value: Some(value),
                        needs,
                    },
                    Some(Edge::History(history)),
                ) if recorded => {
                    let value = Some(value.with_history(history.clone()));
                    SavedInput::Tensor {
                        ty,
                        value,
                        needs: *needs,
                    }
                }
                (input, _) => input.clone(),
            });
        let output = self.output().map(|output| match recorded {
            true => output.with_history(History::Node(Arc::clone(self))),
            false => output,
        });
        (inputs.collect(), output)
    }

    fn lock_output(&self) -> MutexGuard<'_, Option<Tensor>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn output(&self) -> Option<Tensor> {
        self.lock_output().clone()
    }

    /// Gives the saved output a storage of its own for the computed value. `storage`, whose history
    /// this node is, would otherwise be kept alive by itself. Returns the handle on it, to be
    /// dropped when it is not locked.
    pub(crate) fn separate_output(
        &self,
        storage: &Arc<Storage>,
        value: &DeviceValue,
    ) -> Option<Tensor> {
        let mut output = self.lock_output();
        let output = output
            .as_mut()
            .filter(|output| Arc::ptr_eq(&output.storage, storage))?;
        let own = Storage::new(self.ty, storage.device(), Value::Ready(value.clone()));
        Some(std::mem::replace(output, Tensor::of(Arc::new(own))))
    }

    pub(super) fn edges(&self) -> Vec<Option<Edge>> {
        self.edges
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

impl Drop for GradNode {
    /// Long chains are taken apart in a loop: dropping them by recursion would overflow the stack.
    fn drop(&mut self) {
        let take = |node: &mut GradNode| {
            std::mem::take(node.edges.get_mut().unwrap_or_else(PoisonError::into_inner))
        };
        let mut pending = take(self);
        while let Some(edge) = pending.pop() {
            if let Some(Edge::History(History::Node(mut node))) = edge
                && let Some(last) = Arc::get_mut(&mut node)
            {
                pending.append(&mut take(last));
            }
        }
    }
}

fn next_ids(count: usize) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(count as u64, Ordering::Relaxed)
}

/// Copies out the history of every live tensor whose backward pass has not been, before its trace
/// is cut. Returns the nodes whose values must therefore be computed, with handles on them.
pub(crate) fn freeze(trace: &Arc<Trace>, state: &mut State, live: &[u32]) {
    let unfinished = |r: &Recording, i: u32| {
        let node = &r.nodes[i as usize];
        node.has(flag::GRAD) && !node.has(flag::LEAF) && !node.has(flag::PARAM)
    };
    let roots: Vec<u32> = live
        .iter()
        .copied()
        .filter(|&i| unfinished(&state.recording, i))
        .collect();
    let Some(&last) = roots.last() else { return };
    let mut needed = vec![false; last as usize + 1];
    for &root in &roots {
        needed[root as usize] = !state.recording.nodes[root as usize].has(flag::FREED);
    }
    for i in (0..=last).rev() {
        if !needed[i as usize] || !unfinished(&state.recording, i) {
            continue;
        }
        let node = state.recording.nodes[i as usize];
        for input in state.recording.inputs(&node) {
            if let Input::Node(j) = input
                && !state.recording.nodes[j as usize].has(flag::FREED)
            {
                needed[j as usize] = true;
            }
        }
    }
    let base = next_ids(needed.len());
    let mut made: HashMap<u32, Arc<GradNode>> = HashMap::new();
    for i in (0..=last).filter(|&i| needed[i as usize]) {
        if !unfinished(&state.recording, i) {
            continue;
        }
        let (inputs, edges, output) =
            saved(trace, state, i, |j, recording| edge_of(recording, j, &made));
        let node = state.recording.nodes[i as usize];
        let read = reads(&state.recording, i);
        let watched = read.iter().filter_map(|&j| {
            let shown = state.recording.shown(j) as usize;
            let storage = state.recording.storages[shown].as_ref()?;
            Some(Watched {
                storage: Arc::downgrade(storage),
                version: storage.lock().version,
                ty: state.recording.nodes[j as usize].ty,
            })
        });
        let hooks = OnceLock::new();
        if let Some(registered) = state.recording.hooks.get(&i) {
            let _ = hooks.set(Arc::clone(registered));
        }
        let frozen = GradNode {
            overwritten: changed(&state.recording, i),
            watched: watched.collect(),
            hooks,
            function: state.recording.functions.get(&i).cloned(),
            gang: state.recording.gang_of(i),
            id: base + u64::from(i),
            entry: node.entry,
            ty: node.ty,
            location: node.location,
            identity: state.recording.identity(i),
            inputs,
            edges: Mutex::new(edges),
            output: Mutex::new(output),
        };
        made.insert(i, Arc::new(frozen));
    }
    for root in roots {
        let history = match made.get(&root) {
            Some(node) => History::Node(Arc::clone(node)),
            None => History::Freed,
        };
        if let Some(storage) = &state.recording.storages[root as usize] {
            storage.lock().history = Some(history);
        }
    }
}

fn edge_of(recording: &Recording, node: u32, made: &HashMap<u32, Arc<GradNode>>) -> Option<Edge> {
    if let Some(leaf) = recording.leaves.get(&node) {
        return Some(Edge::Leaf(Arc::clone(leaf)));
    }
    if let Some(history) = recording.histories.get(&node) {
        return Some(Edge::History(history.clone()));
    }
    if let Some(made) = made.get(&node) {
        return Some(Edge::History(History::Node(Arc::clone(made))));
    }
    recording.nodes[node as usize]
        .has(flag::FREED)
        .then_some(Edge::History(History::Freed))
}

/// Which operands want a gradient.
fn wanted(recording: &Recording, index: u32) -> SmallVec<[bool; 8]> {
    let operands = recording.inputs(&recording.nodes[index as usize]);
    operands
        .map(|operand| match operand {
            Input::Node(j) => recording.nodes[j as usize].has(flag::GRAD),
            Input::Number(..) => false,
        })
        .collect()
}

/// The nodes whose values the derivative of a node reads.
fn reads(recording: &Recording, index: u32) -> SmallVec<[u32; 4]> {
    let node = &recording.nodes[index as usize];
    let saves = node.entry.op.saves().unwrap_or(crate::Saves::NONE);
    let wants = wanted(recording, index);
    let operands = recording.inputs(node).enumerate();
    let inputs = operands.filter_map(|(k, operand)| match operand {
        Input::Node(j) if saves.reads_input(k, &wants) => Some(j),
        _ => None,
    });
    inputs
        .chain(saves.reads_output().then_some(index))
        .collect()
}

/// A value that the derivative of a node reads and that was changed in place since.
///
/// What an in-place operator reads of its own target is the value before the change, which nobody
/// else can change any more; operator and change are then of one line.
pub(super) fn changed(recording: &Recording, index: u32) -> Option<Changed> {
    if !recording.has_overwrites() {
        return None;
    }
    let node = &recording.nodes[index as usize];
    reads(recording, index).into_iter().find_map(|j| {
        let by = recording.overwrite_of(j)?;
        (by.location != node.location).then_some(Changed {
            ty: recording.nodes[j as usize].ty,
            by: Some(by),
        })
    })
}

/// The operands and the output of a node, as far as its derivative reads them.
pub(super) fn saved<E>(
    trace: &Arc<Trace>,
    state: &mut State,
    index: u32,
    mut edge: impl FnMut(u32, &Recording) -> Option<E>,
) -> (Vec<SavedInput>, Vec<Option<E>>, Option<Tensor>) {
    let node = state.recording.nodes[index as usize];
    let saves = node.entry.op.saves().unwrap_or(crate::Saves::NONE);
    let operands: SmallVec<[Input; 8]> = state.recording.inputs(&node).collect();
    let mut inputs = Vec::with_capacity(operands.len());
    let mut edges = Vec::with_capacity(operands.len());
    let wants = wanted(&state.recording, index);
    for (k, operand) in operands.into_iter().enumerate() {
        match operand {
            Input::Node(j) => {
                let source = state.recording.nodes[j as usize];
                let needs = wants[k];
                let value = saves.reads_input(k, &wants).then(|| state.handle(trace, j));
                inputs.push(SavedInput::Tensor {
                    ty: source.ty,
                    value,
                    needs,
                });
                edges.push(if needs {
                    edge(j, &state.recording)
                } else {
                    None
                });
            }
            Input::Number(class, slot) => {
                inputs.push(SavedInput::Number(state.recording.numbers.get(class, slot)));
                edges.push(None);
            }
        }
    }
    let output = saves.reads_output().then(|| state.handle(trace, index));
    (inputs, edges, output)
}
