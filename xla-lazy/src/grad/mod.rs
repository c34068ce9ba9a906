//! Reverse-mode differentiation over the trace.
//!
//! The trace is the tape: nodes that a gradient flows through carry a flag, and the backward pass
//! walks them by index. Nothing is saved while recording. Only when a program executes while a
//! tensor with unfinished history is still reachable is that history copied out into
//! [`GradNode`]s, with the values that the derivatives read.

mod function;
mod history;
mod hooks;
mod pass;
mod vjp;

pub(crate) use function::{Flow, Function, apply};
pub use function::{FunctionContext, function};
pub(crate) use history::{GradNode, freeze};
pub use hooks::HookHandle;
pub(crate) use hooks::Hooks;
pub use vjp::{Gradients, Vjp};

use crate::Tensor;
use crate::trace::no_grad;
use pass::{Target, start};
use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};
use xla_core::{Error, Result};

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
    hooks: Arc<Hooks>,
    afterwards: hooks::Afterwards,
}

impl Leaf {
    pub(crate) fn get(&self) -> Option<Tensor> {
        self.grad
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Whether there is a gradient.
    pub(crate) fn has_grad(&self) -> bool {
        let grad = self.grad.lock().unwrap_or_else(PoisonError::into_inner);
        grad.is_some()
    }

    pub(crate) fn set(&self, grad: Option<Tensor>) {
        let old = {
            let mut slot = self.grad.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *slot, grad)
        };
        drop(old);
    }

    fn accumulate(&self, grad: &Tensor) -> Result<()> {
        let sum = match self.get() {
            Some(sum) => sum.add(grad)?,
            // Others, as the caller, may hold the same tensor: what is done in place to one gradient
            // must not reach theirs.
            None => grad.copy()?,
        };
        self.set(Some(sum));
        Ok(())
    }

    fn hook(&self) -> Option<Arc<dyn GradHook>> {
        self.hook
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }
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

/// How [`grad`] runs.
#[derive(Debug, Clone, Default)]
pub struct GradOptions {
    /// Gradients of the outputs, one each; needed for outputs of more than one element.
    pub grad_outputs: Option<Vec<Tensor>>,
    /// Keeps the graph for another pass.
    pub retain_graph: bool,
    /// Records the pass itself, so that gradients can be differentiated again.
    pub create_graph: bool,
    /// Whether the outputs may be independent of an input.
    pub allow_unused: bool,
}

/// The gradients of `outputs`, summed, with respect to `inputs`, as `torch.autograd.grad`: nothing
/// is accumulated into leaves. `None`, where that is allowed, for an input that the outputs do not
/// depend on.
///
/// # Errors
/// [`Error::Autograd`] when an output or an input does not require a gradient, when the outputs do not
/// depend on an input, when the graph was freed, and when a value that a derivative reads was changed in
/// place. [`Error::Argument`] and
/// [`Error::ShapeMismatch`] when `grad_outputs` do not fit the outputs.
#[track_caller]
pub fn grad(
    outputs: &[&Tensor],
    inputs: &[&Tensor],
    options: GradOptions,
) -> Result<Vec<Option<Tensor>>> {
    let location = Location::caller();
    let seeds = options.grad_outputs.as_deref().unwrap_or(&[]);
    if options.grad_outputs.is_some() {
        pass::check_count("grad", outputs.len(), seeds.len(), location)?;
    }
    if let Some(input) = inputs.iter().find(|input| !input.requires_grad()) {
        return Err(Error::Autograd {
            op: "grad",
            reason: format!("an input ({}) does not require a gradient", input.ty()),
            advice: "call requires_grad_(true) on it before the outputs are computed",
            at: location.into(),
        });
    }
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
        pass.found(options.allow_unused)
    };
    if options.create_graph {
        run()
    } else {
        no_grad(run)
    }
}

/// The gradients of `outputs`, each with its own, with respect to nodes of the recording that the
/// outputs are pending in; `None` for a node that none reaches. `create` says whether the pass itself
/// is recorded.
pub(crate) fn of_nodes(
    op: &'static str,
    outputs: &[(&Tensor, &Tensor)],
    nodes: &[u32],
    create: bool,
    location: &'static Location<'static>,
) -> Result<Vec<Option<Tensor>>> {
    let roots: Vec<_> = outputs
        .iter()
        .filter(|(output, _)| output.requires_grad())
        .map(|(output, gradient)| (*output, Some(*gradient)))
        .collect();
    if roots.is_empty() {
        return Ok(vec![None; nodes.len()]);
    }
    crate::trace::set_grad_enabled(create, || {
        let target = Target::Nodes(nodes, vec![None; nodes.len()]);
        let mut pass = start(op, &roots, create, target, location)?;
        pass.run()?;
        Ok(pass.of_nodes())
    })
}

impl Tensor {
    /// Differentiates this tensor, which has one element, and adds the gradients to the `grad` of
    /// every leaf it depends on.
    ///
    /// # Errors
    /// [`Error::ShapeMismatch`] for more than one element, [`Error::Autograd`] when it does not
    /// require a gradient, its graph was freed by an earlier pass, or a value that a derivative reads
    /// was changed in place.
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

    /// The accumulated gradient of a leaf, or of a tensor that [`Tensor::retain_grad`] was called on.
    pub fn grad(&self) -> Option<Tensor> {
        self.leaf().or_else(|| self.retained())?.get()
    }

    /// Replaces the accumulated gradient; nothing happens on tensors that have none to keep.
    pub fn set_grad(&self, grad: Option<Tensor>) {
        if let Some(leaf) = self.leaf().or_else(|| self.retained()) {
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
        let leaf = self.leaf_for("on_grad_ready", Location::caller())?;
        *leaf.hook.lock().unwrap_or_else(PoisonError::into_inner) = Some(hook);
        Ok(())
    }

    fn leaf_for(&self, op: &'static str, at: &'static Location<'static>) -> Result<Arc<Leaf>> {
        self.leaf().ok_or_else(|| Error::Autograd {
            op,
            reason: "the tensor is not a leaf that requires a gradient".into(),
            advice: "call requires_grad_(true) first",
            at: at.into(),
        })
    }
}
