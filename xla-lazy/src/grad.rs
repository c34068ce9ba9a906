//! Reverse-mode differentiation over the trace.
//!
//! The trace is the tape: nodes that a gradient flows through carry a flag, and the backward pass
//! walks them by index. Nothing is saved while recording. Only when a program executes while a
//! tensor with unfinished history is still reachable is that history copied out into
//! [`GradNode`]s, with the values that the derivatives read.

use crate::Tensor;
use crate::op::{Number, OpEntry, Operand};
use crate::storage::{Contents, History, Value};
use crate::trace::{self, Input, Recording, State, Trace, flag, no_grad};
use crate::ty::Ty;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use xla_core::{Error, Result, Shape};

/// One gradient for each input of an operator; `None` where there is none.
pub type Gradients = SmallVec<[Option<Tensor>; 3]>;

/// Called once after a backward pass that reached a leaf carrying it.
pub trait GradHook: Send + Sync {
    /// The gradients of the pass are in their leaves. Runs on the thread that called `backward`,
    /// without recording gradients.
    ///
    /// # Errors
    /// Becomes the error of `backward`.
    fn finished(&self) -> Result<()>;
}

/// What a leaf of the gradient graph carries.
#[derive(Default)]
pub(crate) struct Leaf {
    grad: Mutex<Option<Tensor>>,
    hook: Mutex<Option<Arc<dyn GradHook>>>,
}

impl Leaf {
    fn get(&self) -> Option<Tensor> {
        self.grad
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set(&self, grad: Option<Tensor>) {
        let old = {
            let mut slot = self.grad.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *slot, grad)
        };
        drop(old);
    }

    fn hook(&self) -> Option<Arc<dyn GradHook>> {
        self.hook
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
}

/// An operand of a derivative rule.
enum SavedInput {
    Tensor {
        ty: Ty,
        value: Option<Tensor>,
        needs: bool,
    },
    Number(Number),
}

/// What a derivative rule is given: the output's gradient, and the values it said it reads.
pub struct Vjp<'a> {
    entry: &'static OpEntry,
    grad: &'a Tensor,
    inputs: &'a [SavedInput],
    output: Option<&'a Tensor>,
    output_type: Ty,
}

impl Vjp<'_> {
    /// The gradient of the output.
    pub fn grad(&self) -> &Tensor {
        self.grad
    }

    /// Number of operands.
    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    /// Whether the operator has no operands.
    pub fn is_empty(&self) -> bool {
        self.inputs.is_empty()
    }

    /// An input that is a tensor or a number.
    ///
    /// # Errors
    /// [`Error::Internal`] when the operator did not declare that its rule reads this input.
    pub fn operand(&self, index: usize) -> Result<Operand<'_>> {
        match self.inputs.get(index) {
            Some(SavedInput::Tensor {
                value: Some(value), ..
            }) => Ok(Operand::Tensor(value)),
            Some(SavedInput::Number(number)) => Ok(Operand::Number(*number)),
            _ => Err(self.undeclared(format!("input {index} among the saved values"))),
        }
    }

    /// An input that is a tensor.
    ///
    /// # Errors
    /// As [`Vjp::operand`]; also when it is a number.
    pub fn input(&self, index: usize) -> Result<&Tensor> {
        match self.inputs.get(index) {
            Some(SavedInput::Tensor {
                value: Some(value), ..
            }) => Ok(value),
            _ => Err(self.undeclared(format!("tensor input {index} among the saved values"))),
        }
    }

    /// The output.
    ///
    /// # Errors
    /// [`Error::Internal`] when the operator did not declare that its rule reads the output.
    pub fn output(&self) -> Result<&Tensor> {
        self.output
            .ok_or_else(|| self.undeclared("the output among the saved values".into()))
    }

    /// The output's type.
    pub fn output_type(&self) -> Ty {
        self.output_type
    }

    /// The shape of an input; a scalar's for a number.
    pub fn shape(&self, index: usize) -> Shape {
        match self.inputs.get(index) {
            Some(SavedInput::Tensor { ty, .. }) => ty.shape().clone(),
            _ => Shape::scalar(),
        }
    }

    /// The dtype of a tensor input; the output's for a number.
    pub fn dtype(&self, index: usize) -> xla_core::DType {
        match self.inputs.get(index) {
            Some(SavedInput::Tensor { ty, .. }) => ty.dtype(),
            _ => self.output_type.dtype(),
        }
    }

    /// A number operand.
    pub fn number(&self, index: usize) -> Option<Number> {
        match self.inputs.get(index) {
            Some(SavedInput::Number(number)) => Some(*number),
            _ => None,
        }
    }

    /// Whether the gradient of this input is wanted.
    pub fn needs(&self, index: usize) -> bool {
        matches!(
            self.inputs.get(index),
            Some(SavedInput::Tensor { needs: true, .. })
        )
    }

    /// The gradients of an operator with one tensor input.
    ///
    /// # Errors
    /// The error of computing it.
    pub fn only(&self, gradient: Result<Tensor>) -> Result<Gradients> {
        Ok(smallvec::smallvec![Some(gradient?)])
    }

    /// One gradient for each input, computed only where it is wanted.
    ///
    /// # Errors
    /// The first error of `gradient`.
    pub fn each(&self, mut gradient: impl FnMut(usize) -> Result<Tensor>) -> Result<Gradients> {
        (0..self.len())
            .map(|i| {
                if self.needs(i) {
                    gradient(i).map(Some)
                } else {
                    Ok(None)
                }
            })
            .collect()
    }

    /// `gradient`, which has the output's shape, summed over the axes that broadcasting added and
    /// converted, so that it fits input `index`.
    ///
    /// # Errors
    /// The error of recording that.
    pub fn reduce(&self, index: usize, gradient: &Tensor) -> Result<Tensor> {
        gradient
            .sum_to_size(&self.shape(index))?
            .to_dtype(self.dtype(index))
    }

    fn undeclared(&self, expected: String) -> Error {
        Error::Internal {
            what: self.entry.name,
            expected,
        }
    }
}

/// Where the gradient of an input goes.
#[derive(Clone)]
enum Edge {
    Leaf(Arc<Leaf>),
    History(History),
}

/// An operator of a program that has executed, kept for a backward pass to come.
pub(crate) struct GradNode {
    /// Position in the order of recording, over all traces.
    id: u64,
    entry: &'static OpEntry,
    ty: Ty,
    inputs: Vec<SavedInput>,
    edges: Mutex<Vec<Option<Edge>>>,
    output: Option<Tensor>,
}

impl GradNode {
    fn edges(&self) -> Vec<Option<Edge>> {
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
        let frozen = GradNode {
            id: base + u64::from(i),
            entry: node.entry,
            ty: node.ty,
            inputs,
            edges: Mutex::new(edges),
            output,
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
fn saved<E>(
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
    for (k, operand) in operands.into_iter().enumerate() {
        match operand {
            Input::Node(j) => {
                let source = state.recording.nodes[j as usize];
                let needs = source.has(flag::GRAD);
                let value = saves.reads_input(k).then(|| state.handle(trace, j));
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

/// How a backward pass runs.
#[derive(Debug, Clone, Default)]
pub struct BackwardOptions {
    /// The gradient of the tensor itself; needed unless it has one element.
    pub gradient: Option<Tensor>,
    /// Keeps the graph for a second pass.
    pub retain_graph: bool,
    /// Records the pass itself, so that gradients can be differentiated again.
    pub create_graph: bool,
}

/// What receives the gradients of a pass.
enum Target<'a> {
    /// Accumulate into every leaf reached.
    Leaves,
    /// Collect those of these tensors.
    Inputs(&'a [&'a Tensor], Vec<Option<Tensor>>),
}

/// One backward pass.
struct Pass<'a> {
    trace: Arc<Trace>,
    epoch: u64,
    /// Gradients of nodes of the current trace, by index.
    pending: Vec<Option<Tensor>>,
    /// Gradients of operators of earlier programs, latest first.
    frozen: BTreeMap<u64, (Arc<GradNode>, Tensor)>,
    hooks: Vec<Arc<dyn GradHook>>,
    retain: bool,
    target: Target<'a>,
    op: &'static str,
    location: &'static Location<'static>,
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

    fn to_node(&mut self, index: u32, grad: Tensor) -> Result<()> {
        let slot = &mut self.pending[index as usize];
        *slot = Some(match slot.take() {
            Some(sum) => sum.add(&grad)?,
            None => grad,
        });
        Ok(())
    }

    fn to_history(&mut self, history: &History, grad: Tensor) -> Result<()> {
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

    fn to_leaf(&mut self, leaf: &Arc<Leaf>, grad: Tensor) -> Result<()> {
        match &mut self.target {
            Target::Inputs(inputs, found) => {
                for (input, slot) in inputs.iter().zip(found.iter_mut()) {
                    if input.leaf().is_some_and(|l| Arc::ptr_eq(&l, leaf)) {
                        *slot = Some(match slot.take() {
                            Some(sum) => sum.add(&grad)?,
                            None => grad.clone(),
                        });
                    }
                }
            }
            Target::Leaves => {
                let sum = match leaf.get() {
                    Some(sum) => sum.add(&grad)?,
                    None => grad,
                };
                leaf.set(Some(sum));
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
                if is(input) {
                    *slot = Some(grad.clone());
                }
            }
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
            return self.to_history(&history, gradient);
        }
        let seeded = trace::with_node(self.op, root, self.location, |trace, state, index| {
            (Arc::clone(trace), state.recording.epoch, index)
        })?;
        let (trace, epoch, index) = seeded;
        if self.pending.is_empty() {
            self.trace = trace;
            self.epoch = epoch;
        } else if !Arc::ptr_eq(&trace, &self.trace) || epoch != self.epoch {
            return Err(Error::ForeignTrace {
                op: self.op,
                at: self.location.into(),
            });
        }
        if self.pending.len() <= index as usize {
            self.pending.resize(index as usize + 1, None);
        }
        self.to_node(index, gradient)
    }

    fn run(&mut self) -> Result<()> {
        for index in (0..self.pending.len() as u32).rev() {
            if let Some(grad) = self.pending[index as usize].take() {
                self.visit(index, grad)?;
            }
        }
        while let Some((_, (node, grad))) = self.frozen.pop_last() {
            self.visit_frozen(&node, grad)?;
        }
        for hook in std::mem::take(&mut self.hooks) {
            no_grad(|| hook.finished())?;
        }
        Ok(())
    }

    fn visit(&mut self, index: u32, grad: Tensor) -> Result<()> {
        let trace = Arc::clone(&self.trace);
        let mut state = trace.lock();
        if state.recording.epoch != self.epoch {
            return Err(Error::Autograd {
                op: self.op,
                reason: "the trace was executed during the backward pass".into(),
                advice: "do not sync or read tensors inside a backward pass",
                at: self.location.into(),
            });
        }
        let node = state.recording.nodes[index as usize];
        let slot = crate::trace::Slot::new(self.epoch, index);
        self.note_input(
            |t| t.view.is_none() && t.storage.slot() == slot && t.leaf().is_none(),
            &grad,
        );
        if let Some(leaf) = state.recording.leaves.get(&index).cloned() {
            drop(state);
            return self.to_leaf(&leaf, grad);
        }
        if let Some(history) = state.recording.histories.get(&index).cloned() {
            drop(state);
            return self.to_history(&history, grad);
        }
        if !node.has(flag::GRAD) || node.has(flag::PARAM) {
            return Ok(());
        }
        if node.has(flag::FREED) {
            return Err(self.freed());
        }
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
        };
        let gradients = gradients_of(&vjp, node.location)?;
        for (edge, gradient) in edges.into_iter().zip(gradients) {
            if let (Some(j), Some(gradient)) = (edge, gradient) {
                self.to_node(j, gradient)?;
            }
        }
        Ok(())
    }

    fn visit_frozen(&mut self, node: &Arc<GradNode>, grad: Tensor) -> Result<()> {
        self.note_input(
            |t| {
                t.view.is_none()
                    && matches!(&t.storage.lock().history, Some(History::Node(n)) if Arc::ptr_eq(n, node))
            },
            &grad,
        );
        let edges = if self.retain {
            node.edges()
        } else {
            std::mem::take(&mut *node.edges.lock().unwrap_or_else(PoisonError::into_inner))
        };
        if edges.is_empty() && !node.inputs.is_empty() {
            return Err(self.freed());
        }
        let vjp = Vjp {
            entry: node.entry,
            grad: &grad,
            inputs: &node.inputs,
            output: node.output.as_ref(),
            output_type: node.ty,
        };
        let gradients = gradients_of(&vjp, self.location)?;
        for (edge, gradient) in edges.iter().zip(gradients) {
            match (edge, gradient) {
                (Some(Edge::Leaf(leaf)), Some(gradient)) => self.to_leaf(leaf, gradient)?,
                (Some(Edge::History(history)), Some(gradient)) => {
                    self.to_history(history, gradient)?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// The inputs' gradients: by the operator's rule, or zeros where its derivative is zero.
fn gradients_of(vjp: &Vjp<'_>, location: &'static Location<'static>) -> Result<Gradients> {
    match vjp.entry.op.vjp(vjp).map_err(|e| e.at(location))? {
        Some(gradients) => Ok(gradients),
        None => vjp.each(|i| Tensor::zeros(vjp.shape(i), (vjp.dtype(i), vjp.grad().device()))),
    }
}

fn start<'a>(
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
        trace: Trace::of_thread(first.device()),
        epoch: 0,
        pending: Vec::new(),
        frozen: BTreeMap::new(),
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

/// How [`grad`] runs.
#[derive(Debug, Clone, Default)]
pub struct GradOptions {
    /// Gradients of the outputs; needed for outputs of more than one element.
    pub grad_outputs: Option<Vec<Tensor>>,
    /// Keeps the graph for another pass.
    pub retain_graph: bool,
    /// Records the pass itself, so that gradients can be differentiated again.
    pub create_graph: bool,
}

/// The gradients of `outputs`, summed, with respect to `inputs`, as `torch.autograd.grad`: nothing
/// is accumulated into leaves. `None` for an input that the outputs do not depend on.
///
/// # Errors
/// [`Error::Autograd`] when an output does not require a gradient or the graph was freed.
#[track_caller]
pub fn grad(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    options: GradOptions,
) -> Result<Vec<Option<Tensor>>> {
    let location = Location::caller();
    let seeds = options.grad_outputs.as_deref().unwrap_or(&[]);
    let roots: Vec<_> = outputs
        .iter()
        .enumerate()
        .map(|(i, output)| (*output, seeds.get(i)))
        .collect();
    let target = Target::Inputs(inputs, vec![None; inputs.len()]);
    let retain = options.retain_graph || options.create_graph;
    let run = || {
        let mut pass = start("grad", &roots, retain, target, location)?;
        pass.run()?;
        match pass.target {
            Target::Inputs(_, found) => Ok(found),
            Target::Leaves => Ok(Vec::new()),
        }
    };
    if options.create_graph {
        run()
    } else {
        no_grad(run)
    }
}

impl Tensor {
    /// Differentiates this tensor, which has one element, and adds the gradients to the `grad` of
    /// every leaf it depends on.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for more than one element, [`Error::Autograd`] when it does not
    /// require a gradient or its graph was freed by an earlier pass.
    #[track_caller]
    pub fn backward(&self) -> Result<()> {
        self.backward_with(BackwardOptions::default())
    }

    /// [`Tensor::backward`] with a gradient of its own, or with the graph retained.
    ///
    /// # Errors
    /// As [`Tensor::backward`].
    #[track_caller]
    pub fn backward_with(&self, options: BackwardOptions) -> Result<()> {
        let location = Location::caller();
        let retain = options.retain_graph || options.create_graph;
        let run = || {
            let roots = [(self, options.gradient.as_ref())];
            start("backward", &roots, retain, Target::Leaves, location)?.run()
        };
        if options.create_graph {
            run()
        } else {
            no_grad(run)
        }
    }

    /// The accumulated gradient of a leaf.
    pub fn grad(&self) -> Option<Tensor> {
        self.leaf()?.get()
    }

    /// Replaces the accumulated gradient of a leaf; nothing happens on other tensors.
    pub fn set_grad(&self, grad: Option<Tensor>) {
        if let Some(leaf) = self.leaf() {
            leaf.set(grad);
        }
    }

    /// Forgets the accumulated gradient of a leaf.
    pub fn zero_grad(&self) {
        self.set_grad(None);
    }

    /// Has `hook` called once after each backward pass that reaches this leaf; the same hook on
    /// several leaves is called once for all. It replaces an earlier one.
    ///
    /// # Errors
    /// [`Error::Autograd`] when the tensor is not a leaf that requires a gradient.
    #[track_caller]
    pub fn on_grad_ready(&self, hook: Arc<dyn GradHook>) -> Result<()> {
        let Some(leaf) = self.leaf() else {
            return Err(Error::Autograd {
                op: "on_grad_ready",
                reason: "the tensor is not a leaf that requires a gradient".into(),
                advice: "call requires_grad_(true) first",
                at: Location::caller().into(),
            });
        };
        *leaf.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(hook);
        Ok(())
    }
}
