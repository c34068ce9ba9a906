//! The part of the gradient graph that outlives its trace.

use super::Leaf;
use super::vjp::SavedInput;
use crate::Tensor;
use crate::op::OpEntry;
use crate::storage::{History, Storage, Value};
use crate::sync::DeviceValue;
use crate::trace::{self, Input, Recording, State, Trace, flag};
use crate::ty::Ty;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

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
    pub(super) inputs: Vec<SavedInput>,
    pub(super) edges: Mutex<Vec<Option<Edge>>>,
    output: Mutex<Option<SavedOutput>>,
    /// The versions of the saved values at the time of the program, inputs first. A saved value
    /// shares its storage with the user's handles, who may change it in place afterwards.
    versions: Vec<u64>,
}

/// The output of an operator whose derivative reads it.
struct SavedOutput {
    value: Tensor,
    /// The storage that the user's handles share, once `value` has one of its own.
    shown: Weak<Storage>,
}

impl GradNode {
    /// The first saved value that was changed in place since.
    pub(super) fn changed(&self) -> Option<Ty> {
        let output = self.output();
        let shown = self.lock_output().as_ref().and_then(|o| o.shown.upgrade());
        let shown = shown.map(Tensor::of).or_else(|| output.clone());
        saved_tensors(&self.inputs, shown.as_ref())
            .zip(&self.versions)
            .find(|(tensor, version)| tensor.version() != **version)
            .map(|(tensor, _)| tensor.ty())
    }

    /// The saved values. For a pass that is itself recorded they are given back their history; it
    /// is not kept with them, because an operator that saves its own output would then keep itself
    /// alive for ever.
    pub(super) fn values(
        self: &Arc<Self>,
        edges: &[Option<Edge>],
    ) -> (Vec<SavedInput>, Option<Tensor>) {
        let recorded = trace::is_grad_enabled();
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

    fn lock_output(&self) -> MutexGuard<'_, Option<SavedOutput>> {
        self.output.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn output(&self) -> Option<Tensor> {
        self.lock_output().as_ref().map(|o| o.value.clone())
    }

    /// Gives the saved output a storage of its own for the computed value. `storage`, whose history
    /// this node is, would otherwise be kept alive by itself. Returns the handle on it, to be
    /// dropped when it is not locked.
    pub(crate) fn separate_output(
        &self,
        storage: &Arc<Storage>,
        version: u64,
        value: &DeviceValue,
    ) -> Option<Tensor> {
        let mut output = self.lock_output();
        let output = output
            .as_mut()
            .filter(|o| Arc::ptr_eq(&o.value.storage, storage))?;
        output.shown = Arc::downgrade(storage);
        let own = Storage::new(self.ty, storage.device, Value::Ready(value.clone()));
        own.lock().version = version;
        Some(std::mem::replace(
            &mut output.value,
            Tensor::of(Arc::new(own)),
        ))
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

fn saved_tensors<'a>(
    inputs: &'a [SavedInput],
    output: Option<&'a Tensor>,
) -> impl Iterator<Item = &'a Tensor> {
    let values = inputs.iter().filter_map(|input| match input {
        SavedInput::Tensor { value, .. } => value.as_ref(),
        SavedInput::Number(_) => None,
    });
    values.chain(output)
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
        let versions = saved_tensors(&inputs, output.as_ref())
            .map(Tensor::version)
            .collect();
        let frozen = GradNode {
            versions,
            id: base + u64::from(i),
            entry: node.entry,
            ty: node.ty,
            location: node.location,
            inputs,
            edges: Mutex::new(edges),
            output: Mutex::new(output.map(|value| SavedOutput {
                value,
                shown: Weak::new(),
            })),
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
    let wants: SmallVec<[bool; 8]> = operands
        .iter()
        .map(|operand| match operand {
            Input::Node(j) => state.recording.nodes[*j as usize].has(flag::GRAD),
            Input::Number(..) => false,
        })
        .collect();
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
