//! Reverse-mode differentiation over the trace.
//!
//! The trace is the tape: nodes that a gradient flows through carry a flag, and the backward pass
//! walks them by index. Nothing is saved while recording. Only when a program executes while a
//! tensor with unfinished history is still reachable is that history copied out into
//! [`GradNode`]s, with the values that the derivatives read.

mod history;
mod pass;
mod vjp;

pub(crate) use history::{GradNode, freeze};
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
/// [`Error::Autograd`] when an output does not require a gradient, when the graph was freed, and for
/// an input that is a view which no pending operator reads.
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
        pass.check_views()?;
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
