//! What becomes of a recording once its program was started, or could not be.

use super::{DeviceValue, Pending, memory};
use crate::hash::Hash128;
use crate::lower::Extent;
use crate::storage::{History, Storage, Value};
use crate::trace::{Input, Recording, Slot, State, Trace, flag};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use xla_core::Error;

/// Programs run alone that a replica remembers for the gang.
const REMEMBERED: usize = 64;

/// Puts the outputs into the storages that wait for them, carries what was not run over into the
/// current recording, and keeps the memory for the next epoch.
pub(super) fn fill(
    trace: &Arc<Trace>,
    pending: Arc<Pending>,
    extent: &Extent,
    met_gang: bool,
    outputs: Vec<DeviceValue>,
) {
    let recording = &pending.recording;
    for (&index, value) in extent.live.iter().zip(&outputs) {
        let node = &recording.nodes[index as usize];
        memory::note(value, node.entry.name, node.location);
        if let Some(storage) = &recording.storages[index as usize] {
            let mut contents = storage.lock();
            // Its owner may have rebound or dropped it while another thread ran this.
            if storage.slot() == Slot::new(recording.epoch, index) && Storage::is_held(storage) {
                contents.value = Value::Ready(value.clone());
                storage.set_slot(Slot::NONE);
            }
            let shared = match &contents.history {
                Some(History::Node(node)) => node.separate_output(storage, value),
                _ => None,
            };
            // A handle is dropped only while its storage is not locked.
            drop(contents);
            drop(shared);
        }
    }
    let mut state = trace.lock();
    if met_gang {
        state.flushed.clear();
    } else {
        remember(&mut state, extent.len, recording.chain[extent.len - 1]);
    }
    if extent.len < recording.nodes.len() {
        carry_over(trace, &mut state, recording, extent, &outputs);
    }
    drop(outputs);
    recycle(&mut state, pending, &extent.live);
}

/// Notes a program that was run alone, for the gang.
pub(super) fn remember(state: &mut State, len: usize, hash: Hash128) {
    if xla_runtime::context::in_launch() {
        if state.flushed.len() == REMEMBERED {
            state.flushed.remove(0);
        }
        state.flushed.push((len, hash));
    }
}

/// Keeps the storages of dead nodes and the recording's memory for the next epoch.
fn recycle(state: &mut State, pending: Arc<Pending>, filled: &[u32]) {
    // Another replica may still look at the proposal; then its memory goes with it.
    let Ok(pending) = Arc::try_unwrap(pending) else {
        return;
    };
    let mut recording = pending.recording;
    // A filled storage holds a buffer, also when its last handle is gone by now: what is used again
    // must be pending.
    for &index in filled {
        recording.storages[index as usize] = None;
    }
    let nodes = recording.nodes.iter();
    for (storage, node) in recording.storages.drain(..).zip(nodes) {
        if let Some(storage) = storage
            && Storage::is_unused(&storage)
            && !node.has(flag::PARAM)
        {
            state.free.push(storage);
        }
    }
    recording.clear();
    state.spare = Some(recording);
}

/// Records the nodes from `extent.len` on once more, now on top of the outputs just computed.
fn carry_over(
    trace: &Arc<Trace>,
    state: &mut State,
    old: &Recording,
    extent: &Extent,
    outputs: &[DeviceValue],
) {
    let mut moved: HashMap<u32, u32> = HashMap::new();
    let computed = |index: u32| -> Option<DeviceValue> {
        match old.param_of(index) {
            Some(param) => Some(param.value.clone()),
            None => extent
                .live
                .binary_search(&index)
                .ok()
                .and_then(|at| outputs.get(at).cloned()),
        }
    };
    for index in extent.len as u32..old.nodes.len() as u32 {
        let node = old.nodes[index as usize];
        if let Some(param) = old.param_of(index) {
            let storage = old.storages[index as usize].clone();
            let new = state.enter_value(trace, node.ty, storage, &param.value, node.location);
            moved.insert(index, new);
            continue;
        }
        let inputs: SmallVec<[Input; 8]> = old
            .inputs(&node)
            .map(|input| match input {
                Input::Number(class, slot) => state.recording.renumber(class, old, slot),
                Input::Node(j) => Input::Node(match (moved.get(&j), computed(j)) {
                    (Some(&new), _) => new,
                    (None, Some(value)) => {
                        let storage = old.storages[j as usize].clone();
                        let ty = old.nodes[j as usize].ty;
                        let new = state.enter_value(trace, ty, storage, &value, node.location);
                        moved.insert(j, new);
                        new
                    }
                    // Cannot be: `live` holds whatever the tail reads.
                    (None, None) => 0,
                }),
            })
            .collect();
        let flags = node.flags & flag::COLLECTIVE;
        let new = state
            .recording
            .push(node.entry, node.ty, &inputs, flags, node.location);
        moved.insert(index, new);
        if let Some(storage) = &old.storages[index as usize]
            && Storage::is_held(storage)
        {
            storage.set_slot(Slot::new(state.recording.epoch, new));
            state.recording.storages[new as usize] = Some(Arc::clone(storage));
            let contents = storage.lock();
            let (leaf, history) = (contents.leaf.clone(), contents.history.clone());
            drop(contents);
            state
                .recording
                .note_autograd(new, leaf.as_ref(), history.as_ref());
        }
        if node.has(flag::COLLECTIVE) {
            state.recording.gang = old.gang.clone();
        }
    }
    for param in &old.params {
        if let Some(to) = param.rebound.and_then(|to| moved.get(&to))
            && let Some(from) = moved.get(&param.node)
        {
            state.recording.rebind_param(*from, *to);
        }
    }
}

/// Gives every tensor that waited for a program that did not run its error. A tensor that the
/// program would have changed in place keeps the value it had: nothing was executed.
pub(super) fn fail(trace: &Arc<Trace>, pending: Arc<Pending>, error: Error) -> Error {
    let recording = &pending.recording;
    let shared = Arc::new(error.clone());
    let before: HashMap<u32, &DeviceValue> = recording
        .params
        .iter()
        .filter(|p| !p.value.buffer().is_deleted())
        .filter_map(|p| p.rebound.map(|to| (to, &p.value)))
        .collect();
    let mut written = Vec::new();
    for (index, storage) in (0u32..).zip(&recording.storages) {
        let Some(storage) = storage else { continue };
        if recording.nodes[index as usize].has(flag::PARAM) || !Storage::is_held(storage) {
            continue;
        }
        restore(storage, before.get(&index).copied(), &shared);
        written.push(index);
    }
    recycle(&mut trace.lock(), pending, &written);
    error
}

fn restore(storage: &Arc<Storage>, before: Option<&DeviceValue>, error: &Arc<Error>) {
    let mut contents = storage.lock();
    contents.value = match before {
        Some(value) => Value::Ready(value.clone()),
        None => Value::Failed(Arc::clone(error)),
    };
    storage.set_slot(Slot::NONE);
    // It may hold the last handle on this very storage.
    let history = contents.history.take();
    drop(contents);
    drop(history);
}
