//! One backward pass: gradients flow from the outputs to the leaves, latest operator first.

use super::function::{Flow, Function};
use super::history::{Edge, GradNode, changed, saved};
use super::vjp::{Gradients, Vjp};
use super::{GradHook, Leaf};
use crate::Tensor;
use crate::storage::{Contents, History, Value};
use crate::trace::{self, Slot, Trace, Undisturbed, flag, no_grad};
use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError};
use xla_core::{Error, Result};

/// What receives the gradients of a pass.
pub(super) enum Target<'a> {
    /// Accumulate into every leaf reached.
    Leaves,
    /// Collect those of these tensors.
    Inputs(&'a [&'a Tensor], Vec<Option<Tensor>>),
    /// Collect those of these nodes of the current recording, and go no further there.
    Nodes(&'a [u32], Vec<Option<Tensor>>),
}

/// One backward pass.
pub(super) struct Pass<'a> {
    id: u64,
    trace: Arc<Trace>,
    epoch: u64,
    /// Gradients of nodes of the current trace, by index, up to the next to be visited.
    pending: Vec<Option<Tensor>>,
    /// Gradients of operators of earlier programs, latest first.
    frozen: BTreeMap<u64, (Arc<GradNode>, Tensor)>,
    /// Gradients of leaves, in the order reached, and each leaf's position there by its address.
    leaves: Vec<(Arc<Leaf>, Tensor)>,
    leaf_positions: HashMap<usize, usize>,
    hooks: Vec<Arc<dyn GradHook>>,
    retain: bool,
    pub(super) target: Target<'a>,
    op: &'static str,
    location: &'static Location<'static>,
    _undisturbed: Undisturbed,
}

impl Pass<'_> {
    fn freed(&self) -> Error {
        Error::Autograd {
            op: self.op,
            reason: "the graph was freed by an earlier backward pass".into(),
            advice: "pass retain_graph to the first pass, or record the forward pass again",
            at: self.location.into(),
        }
    }

    fn reach_node(&mut self, index: u32, grad: Tensor) -> Result<()> {
        let needed = index as usize + 1;
        if self.pending.len() < needed {
            self.pending.resize(needed, None);
        }
        let slot = &mut self.pending[index as usize];
        *slot = Some(match slot.take() {
            Some(sum) => sum.add(&grad)?,
            None => grad,
        });
        Ok(())
    }

    fn reach_history(&mut self, history: &History, grad: Tensor) -> Result<()> {
        let History::Node(node) = history else {
            return Err(self.freed());
        };
        let sum = match self.frozen.remove(&node.id) {
            Some((_, sum)) => sum.add(&grad)?,
            None => grad,
        };
        self.frozen.insert(node.id, (Arc::clone(node), sum));
        Ok(())
    }

    fn reach_leaf(&mut self, leaf: &Arc<Leaf>, grad: Tensor) -> Result<()> {
        match self.leaf_positions.entry(Arc::as_ptr(leaf).addr()) {
            Entry::Occupied(position) => {
                let (_, sum) = &mut self.leaves[*position.get()];
                *sum = sum.add(&grad)?;
            }
            Entry::Vacant(position) => {
                position.insert(self.leaves.len());
                self.leaves.push((Arc::clone(leaf), grad));
            }
        }
        Ok(())
    }

    /// Hands a leaf the sum of its gradients in this pass.
    fn finish_leaf(&mut self, leaf: &Arc<Leaf>, grad: Tensor) -> Result<()> {
        let grad = leaf.hooks.apply(grad, self.op, self.location)?;
        match &mut self.target {
            Target::Inputs(inputs, found) => {
                for (input, slot) in inputs.iter().zip(found.iter_mut()) {
                    if input.leaf().is_some_and(|l| Arc::ptr_eq(&l, leaf)) {
                        *slot = Some(grad.clone());
                    }
                }
            }
            Target::Nodes(..) => {}
            Target::Leaves => {
                leaf.accumulate(&grad)?;
                leaf.afterwards.run()?;
                if let Some(hook) = leaf.hook()
                    && !self.hooks.iter().any(|h| Arc::ptr_eq(h, &hook))
                {
                    self.hooks.push(hook);
                }
            }
        }
        Ok(())
    }

    /// The gradient of a value that is not a leaf, where `grad` was asked for it.
    fn note_input(&mut self, is: impl Fn(&Tensor) -> bool, grad: &Tensor) {
        if let Target::Inputs(inputs, found) = &mut self.target {
            for (input, slot) in inputs.iter().zip(found.iter_mut()) {
                if input.view.is_none() && is(input) {
                    *slot = Some(grad.clone());
                }
            }
        }
    }

    /// The same for a view. Each program that reads it derives it once more, so the gradients of
    /// those nodes are added.
    fn note_view(&mut self, identity: Slot, grad: &Tensor) -> Result<()> {
        if let Target::Inputs(inputs, found) = &mut self.target {
            for (input, slot) in inputs.iter().zip(found.iter_mut()) {
                if let Some(view) = &input.view
                    && view.leaf().is_none()
                    && view.identity() == identity
                {
                    *slot = Some(match slot.take() {
                        Some(sum) => sum.add(grad)?,
                        None => grad.clone(),
                    });
                }
            }
        }
        Ok(())
    }

    /// The gradients of the nodes that were asked for.
    pub(super) fn of_nodes(self) -> Vec<Option<Tensor>> {
        match self.target {
            Target::Nodes(_, found) => found,
            Target::Leaves | Target::Inputs(..) => Vec::new(),
        }
    }

    /// Every input that was asked for has a gradient, or may have none.
    pub(super) fn found(mut self, allow_unused: bool) -> Result<Vec<Option<Tensor>>> {
        let Target::Inputs(inputs, found) = &mut self.target else {
            return Ok(Vec::new());
        };
        let unused = inputs
            .iter()
            .zip(&*found)
            .find(|(_, found)| found.is_none());
        match unused {
            Some((input, _)) if !allow_unused => Err(Error::Autograd {
                op: self.op,
                reason: format!("the outputs do not depend on an input ({})", input.ty()),
                advice: "leave it out, or pass allow_unused: true to get None for it",
                at: self.location.into(),
            }),
            _ => Ok(std::mem::take(found)),
        }
    }

    fn seed(&mut self, root: &Tensor, gradient: Tensor) -> Result<()> {
        // A value that was computed already does not enter the program: where one replica has read
        // its loss and another has not, both record the same pass.
        let computed = match &*root.storage.lock() {
            Contents {
                value: Value::Ready(_),
                leaf: None,
                history,
                ..
            } if root.view.is_none() => history.clone(),
            _ => None,
        };
        if let Some(history) = computed {
            return self.reach_history(&history, gradient);
        }
        // A view's node may be recorded only now, and belongs to the forward pass.
        let seeded = trace::enable_grad(|| {
            trace::with_node(self.op, root, self.location, |trace, state, index| {
                (Arc::clone(trace), state.recording.epoch, index)
            })
        })?;
        let (trace, epoch, index) = seeded;
        if self.epoch == 0 {
            self.trace = trace;
            self.epoch = epoch;
        } else if !Arc::ptr_eq(&trace, &self.trace) || epoch != self.epoch {
            return Err(Error::ForeignTrace {
                op: self.op,
                at: self.location.into(),
            });
        }
        self.reach_node(index, gradient)
    }

    /// Goes through the graph. Operators compute in the dtypes of the forward pass, whatever would be
    /// cast where the pass is called.
    pub(super) fn run(&mut self) -> Result<()> {
        crate::autocast::off(|| self.go())
    }

    fn go(&mut self) -> Result<()> {
        loop {
            // What a function records in the pass is visited before anything earlier.
            while let Some(reached) = self.pending.pop() {
                if let Some(grad) = reached {
                    self.visit(self.pending.len() as u32, grad)?;
                }
            }
            let Some((_, (node, grad))) = self.frozen.pop_last() else {
                break;
            };
            self.visit_frozen(&node, grad)?;
        }
        for (leaf, grad) in std::mem::take(&mut self.leaves) {
            self.finish_leaf(&leaf, grad)?;
        }
        for hook in std::mem::take(&mut self.hooks) {
            no_grad(|| hook.finished())?;
        }
        Ok(())
    }

    fn visit(&mut self, index: u32, mut grad: Tensor) -> Result<()> {
        let trace = Arc::clone(&self.trace);
        let mut state = trace.lock();
        if let Some(hooks) = state.recording.hooks.get(&index).cloned() {
            drop(state);
            grad = hooks.apply(grad, self.op, self.location)?;
            state = trace.lock();
        }
        if state.recording.epoch != self.epoch {
            return Err(Error::Autograd {
                op: self.op,
                reason: "the trace was executed during the backward pass".into(),
                advice: "do not sync or read tensors inside a backward pass",
                at: self.location.into(),
            });
        }
        let node = state.recording.nodes[index as usize];
        if let Target::Nodes(nodes, found) = &mut self.target {
            let mut wanted = false;
            for (_, slot) in nodes.iter().zip(found).filter(|(node, _)| **node == index) {
                *slot = Some(grad.clone());
                wanted = true;
            }
            if wanted {
                return Ok(());
            }
        }
        let slot = Slot::new(self.epoch, index);
        self.note_input(|t| t.storage.slot() == slot && t.leaf().is_none(), &grad);
        if node.has(flag::VIEW) && matches!(self.target, Target::Inputs(..)) {
            let identity = state.recording.identity(index);
            drop(state);
            self.note_view(identity, &grad)?;
            state = trace.lock();
        }
        if let Some(leaf) = state.recording.leaves.get(&index).cloned() {
            drop(state);
            return self.reach_leaf(&leaf, grad);
        }
        if let Some(history) = state.recording.histories.get(&index).cloned() {
            drop(state);
            return self.reach_history(&history, grad);
        }
        if !node.has(flag::GRAD) || node.has(flag::PARAM) {
            return Ok(());
        }
        if node.has(flag::FREED) {
            return Err(self.freed());
        }
        if let Some(changed) = changed(&state.recording, index) {
            return Err(changed.error(self.op, node.entry, node.location, self.location));
        }
        let function = state.recording.functions.get(&index).cloned();
        let gang = state.recording.gang_of(index);
        if !self.retain {
            state.recording.nodes[index as usize].flags |= flag::FREED;
        }
        let (inputs, edges, output) = saved(&trace, &mut state, index, |j, _| Some(j));
        drop(state);
        let vjp = Vjp {
            entry: node.entry,
            grad: &grad,
            inputs: &inputs,
            output: output.as_ref(),
            output_type: node.ty,
            gang: gang.as_ref(),
            pass: self.id,
        };
        let Some(gradients) = self.flow(&vjp, function.as_deref(), node.location)? else {
            return Ok(());
        };
        for (edge, gradient) in edges.into_iter().zip(gradients) {
            if let (Some(j), Some(gradient)) = (edge, gradient) {
                self.reach_node(j, gradient)?;
            }
        }
        Ok(())
    }

    /// The operands' gradients; `None` where the gradient flows on through something recorded now.
    fn flow(
        &mut self,
        vjp: &Vjp<'_>,
        function: Option<&dyn Function>,
        location: &'static Location<'static>,
    ) -> Result<Option<Gradients>> {
        let Some(function) = function else {
            return gradients_of(vjp, location).map(Some);
        };
        match function.backward(vjp).map_err(|e| e.at(location))? {
            Flow::Inputs(gradients) => Ok(Some(gradients)),
            Flow::Through(tensor) => {
                if tensor.requires_grad() {
                    self.seed(&tensor, vjp.grad().clone())?;
                }
                Ok(None)
            }
        }
    }

    fn visit_frozen(&mut self, node: &Arc<GradNode>, grad: Tensor) -> Result<()> {
        let grad = node.hooked(grad, self.op, self.location)?;
        self.note_input(
            |t| matches!(&t.storage.lock().history, Some(History::Node(n)) if Arc::ptr_eq(n, node)),
            &grad,
        );
        self.note_view(node.identity, &grad)?;
        let edges = if self.retain {
            node.edges()
        } else {
            std::mem::take(&mut *node.edges.lock().unwrap_or_else(PoisonError::into_inner))
        };
        if edges.is_empty() && !node.inputs.is_empty() {
            return Err(self.freed());
        }
        if let Some(changed) = node.changed() {
            return Err(changed.error(self.op, node.entry, node.location, self.location));
        }
        let (inputs, output) = node.values(&edges);
        let vjp = Vjp {
            entry: node.entry,
            grad: &grad,
            inputs: &inputs,
            output: output.as_ref(),
            output_type: node.ty,
            gang: node.gang.as_ref(),
            pass: self.id,
        };
        let function = node.function.as_deref();
        let Some(gradients) = self.flow(&vjp, function, node.location)? else {
            return Ok(());
        };
        for (edge, gradient) in edges.iter().zip(gradients) {
            match (edge, gradient) {
                (Some(Edge::Leaf(leaf)), Some(gradient)) => self.reach_leaf(leaf, gradient)?,
                (Some(Edge::History(history)), Some(gradient)) => {
                    self.reach_history(history, gradient)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The inputs' gradients: by the operator's rule, or zeros where its derivative is zero.
///
/// What the rule records is said to be recorded by the line of the operator it differentiates.
fn gradients_of(vjp: &Vjp<'_>, location: &'static Location<'static>) -> Result<Gradients> {
    trace::recorded_by(location, || match vjp.entry.op.vjp(vjp)? {
        Some(gradients) => Ok(gradients),
        None => vjp.each(|i| vjp.zeros(i)),
    })
}

fn next_pass() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// An error unless there are as many gradients as outputs.
pub(super) fn check_count(
    op: &'static str,
    outputs: usize,
    gradients: usize,
    at: &'static Location<'static>,
) -> Result<()> {
    if outputs == gradients {
        return Ok(());
    }
    let expected = format!("{outputs} gradients, one an output");
    Err(Error::argument(op, "grad_outputs", expected, gradients).at(at))
}

pub(super) fn start<'a>(
    op: &'static str,
    roots: &[(&Tensor, Option<&Tensor>)],
    retain: bool,
    target: Target<'a>,
    location: &'static Location<'static>,
) -> Result<Pass<'a>> {
    let Some((first, _)) = roots.first() else {
        return Err(Error::argument(op, "outputs", "at least one tensor", "none").at(location));
    };
    let mut pass = Pass {
        id: next_pass(),
        trace: Trace::of_thread(first.device()),
        _undisturbed: Undisturbed::of(first)?,
        epoch: 0,
        pending: Vec::new(),
        frozen: BTreeMap::new(),
        leaves: Vec::new(),
        leaf_positions: HashMap::new(),
        hooks: Vec::new(),
        retain,
        target,
        op,
        location,
    };
    for (root, gradient) in roots {
        if !root.requires_grad() {
            return Err(Error::Autograd {
                op,
                reason: format!("the tensor ({}) does not require a gradient", root.ty()),
                advice: "call requires_grad_(true) on a leaf it is computed from, outside no_grad",
                at: location.into(),
            });
        }
        let gradient = match gradient {
            Some(g) if g.shape() != root.shape() => {
                return Err(Error::shape(
                    op,
                    format!("a gradient of shape {}", root.shape()),
                    g.shape(),
                )
                .at(location));
            }
            Some(g) => g.to_dtype(root.dtype())?,
            None if root.numel() == 1 => Tensor::ones(root.shape(), (root.dtype(), root.device()))?,
            None => {
                return Err(
                    Error::shape(op, "one element, or a gradient argument", root.shape())
                        .at(location),
                );
            }
        };
        pass.seed(root, gradient)?;
    }
    Ok(pass)
}
