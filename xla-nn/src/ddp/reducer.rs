//! What follows each backward pass: gradients are averaged, buffers are made equal.

use super::buckets::buckets;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use xla_core::{Literal, Result};
use xla_dist::{ProcessGroup, ReduceOp};
use xla_lazy::{GradHook, Tensor};

/// PyTorch's size: the first bucket is small, so that it fills while the backward pass has only
/// begun.
const FIRST_BUCKET: usize = 1024 * 1024;

/// PyTorch's size of what is broadcast at once, in MiB: many tensors travel together, and a large
/// model is not held twice.
const BROADCAST_MIB: f64 = 250.0;

/// What parameters call after a backward pass. Weak: else parameter and reducer would keep each
/// other alive.
pub(super) struct Hook(pub(super) Weak<Reducer>);

impl GradHook for Hook {
    fn finished(&self) -> Result<()> {
        match self.0.upgrade() {
            Some(reducer) => reducer.pass_finished(),
            None => Ok(()),
        }
    }
}

pub(super) struct Reducer {
    pub(super) group: Arc<ProcessGroup>,
    /// Those that take a gradient.
    pub(super) parameters: Vec<Tensor>,
    pub(super) buffers: Vec<Tensor>,
    pub(super) bucket_bytes: AtomicUsize,
    pub(super) views: AtomicBool,
    pub(super) find_unused: AtomicBool,
    pub(super) broadcast_buffers: AtomicBool,
    /// Depth of `no_sync`.
    pub(super) paused: AtomicUsize,
    /// Two backward passes on two threads must not interleave their collectives.
    pub(super) running: Mutex<()>,
}

impl Reducer {
    fn pass_finished(&self) -> Result<()> {
        if self.paused.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if self.find_unused.load(Ordering::Relaxed) {
            self.average_used()?;
        } else {
            let gradients = self.parameters.iter().map(Tensor::grad).collect();
            self.average(gradients)?;
        }
        if self.broadcast_buffers.load(Ordering::Relaxed) {
            self.equalise_buffers()?;
        }
        Ok(())
    }

    /// Averages the gradients there are; `None` where a parameter has none.
    fn average(&self, gradients: Vec<Option<Tensor>>) -> Result<()> {
        // The backward pass reaches the last layers first, so their buckets come first.
        let with_gradient = self.parameters.iter().zip(gradients).rev();
        let ready: Vec<(&Tensor, Tensor)> =
            with_gradient.filter_map(|(p, g)| Some((p, g?))).collect();
        let views = self.views.load(Ordering::Relaxed);
        if !self.group.spans_processes() {
            // XLA joins the collectives of a program without laying their operands side by side.
            for (parameter, gradient) in &ready {
                let averaged = self.group.all_reduce(gradient, ReduceOp::Mean)?;
                parameter.set_grad(Some(averaged));
            }
            return Ok(());
        }
        let cap = self.bucket_bytes.load(Ordering::Relaxed);
        let sizes = ready
            .iter()
            .map(|(_, g)| (g.dtype(), g.numel() * g.dtype().size()));
        for bucket in buckets(sizes, cap.min(FIRST_BUCKET), cap) {
            let gradients: Vec<&Tensor> = bucket.iter().map(|i| &ready[*i].1).collect();
            let averaged = self.group.all_reduce_many(&gradients, ReduceOp::Mean)?;
            for (i, gradient) in bucket.into_iter().zip(averaged) {
                let gradient = match views {
                    true => gradient,
                    false => gradient.copy()?,
                };
                ready[i].0.set_grad(Some(gradient));
            }
        }
        Ok(())
    }

    /// Averages the gradients of the parameters that some rank has used; a rank that has not adds
    /// zeros. What no rank has used keeps no gradient.
    fn average_used(&self) -> Result<()> {
        // Ranks that use different layers have recorded different programs, which they can only run
        // each by itself: what they record together starts here.
        xla_lazy::sync()?;
        let device = self.group.device();
        let gradients: Vec<Option<Tensor>> = self.parameters.iter().map(Tensor::grad).collect();
        let used: Vec<i32> = gradients.iter().map(|g| g.is_some().into()).collect();
        let used = Tensor::from_slice(&used, [used.len()], device)?;
        let used = self
            .group
            .all_reduce(&used, ReduceOp::Max)?
            .to_vec::<i32>()?;
        let filled = self.parameters.iter().zip(gradients).zip(used);
        let filled = filled.map(|((parameter, gradient), used)| match gradient {
            None if used > 0 => zeros(parameter).map(Some),
            gradient => Ok(gradient),
        });
        self.average(filled.collect::<Result<_>>()?)
    }

    /// Gives all ranks rank 0's buffers. PyTorch does so before the next forward pass; nothing reads
    /// them in between, and here they already are in the step's program.
    fn equalise_buffers(&self) -> Result<()> {
        let first = firsts(&self.group, &self.buffers)?;
        let mut pairs = self.buffers.iter().zip(&first);
        pairs.try_for_each(|(buffer, first)| buffer.copy_(first).map(drop))
    }
}

/// From the host, not recorded: for the ranks that have a gradient it is an argument of the program.
fn zeros(like: &Tensor) -> Result<Tensor> {
    let zeros = Literal::from_fill(like.dtype(), like.shape(), |_| Ok(()))?;
    Tensor::from_literal(zeros, like.device())
}

/// What `broadcast` gives of rank 0's tensors becomes the value of all ranks'.
pub(super) fn take_over(group: &ProcessGroup, tensors: &[Tensor]) -> Result<()> {
    let first = firsts(group, tensors)?;
    let mut pairs = tensors.iter().zip(&first);
    pairs.try_for_each(|(tensor, first)| tensor.set_data(first))
}

/// What the group's first rank holds of these.
fn firsts(group: &ProcessGroup, tensors: &[Tensor]) -> Result<Vec<Tensor>> {
    let tensors: Vec<&Tensor> = tensors.iter().collect();
    group.broadcast_bucketed(&tensors, group.ranks()[0], BROADCAST_MIB)
}
