//! Data-parallel training: every replica holds the model, gradients are averaged between them.

use crate::{Forward, Module};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use xla_core::{DType, Error, Result};
use xla_dist::{self as dist, ReduceOp};
use xla_lazy::{GradHook, Tensor, no_grad};

const MIB: f64 = 1024.0 * 1024.0;

/// PyTorch's sizes: the first bucket is small, so that it fills while the backward pass has only
/// begun.
const FIRST_BUCKET: usize = 1024 * 1024;
const BUCKET_MIB: f64 = 25.0;

/// A module whose gradients are averaged over the process group.
///
/// Wrapping copies rank 0's parameters and buffers to every rank, so ranks may initialise or load them
/// differently. After each backward pass the gradients are averaged in buckets: collectives recorded
/// in the same program as the pass, which XLA schedules next to the computation that remains.
/// Ranks thus take the same steps, equal to those of one replica with the whole batch when the loss
/// is a mean and all ranks have equally large batches.
///
/// Parameters of the wrapped module are `module.` plus their former paths. In a group of one nothing
/// is communicated.
///
/// Every rank must use the same parameters in each pass: a rank that leaves some out records another
/// program, and every rank gets [`Error::Divergence`].
///
/// ```no_run
/// use xla_nn::{DistributedDataParallel, Linear, Module, optim};
/// # fn replica() -> xla_core::Result<()> {
/// xla_dist::init_process_group("xla", "xla://")?;
/// let model = DistributedDataParallel::new(Linear::new(784, 10, ())?)?;
/// let optimizer = optim::Sgd::new(model.parameters(), 0.1);
/// # Ok(())
/// # }
/// ```
#[derive(Module)]
pub struct DistributedDataParallel<M> {
    module: M,
    // Parameters carry a weak hook on this: else parameter and reducer would keep each other alive.
    #[module(skip)]
    reducer: Option<Arc<Reducer>>,
}

impl<M: Module> DistributedDataParallel<M> {
    /// Wraps a module and broadcasts rank 0's parameters and buffers.
    ///
    /// What was recorded before is run first: ranks that made their parameters in different ways
    /// then all record the same broadcasts.
    ///
    /// # Errors
    /// [`Error::ProcessGroup`] before `init_process_group`; [`Error::Autograd`] when a parameter
    /// does not take a gradient; what the broadcasts return.
    #[track_caller]
    pub fn new(module: M) -> Result<Self> {
        if !dist::is_initialized() {
            return Err(Error::ProcessGroup {
                what: "DistributedDataParallel::new",
                state: "there is no process group".into(),
                advice: "call init_process_group(\"xla\", \"xla://\") first",
            });
        }
        if dist::get_world_size()? == 1 {
            return Ok(DistributedDataParallel {
                module,
                reducer: None,
            });
        }
        xla_lazy::sync()?;
        let parameters = module.parameters();
        no_grad(|| {
            for tensor in parameters.iter().chain(&module.buffers()) {
                tensor.set_data(&dist::broadcast(tensor, 0)?)?;
            }
            Ok::<(), Error>(())
        })?;
        let reducer = Arc::new(Reducer {
            parameters,
            bucket_bytes: AtomicUsize::new((BUCKET_MIB * MIB) as usize),
            views: AtomicBool::new(false),
            paused: AtomicUsize::new(0),
            running: Mutex::new(()),
        });
        let hook: Arc<dyn GradHook> = Arc::new(Hook(Arc::downgrade(&reducer)));
        for parameter in &reducer.parameters {
            if parameter.requires_grad() {
                parameter.on_grad_ready(Arc::clone(&hook))?;
            }
        }
        Ok(DistributedDataParallel {
            module,
            reducer: Some(reducer),
        })
    }

    /// Whether gradients become views of the averaged buckets instead of copies: `false` unless set,
    /// as in PyTorch. With views, gradients that are kept beyond a sync share the bucket's memory;
    /// writing to one in place writes to the bucket.
    #[must_use]
    pub fn gradient_as_bucket_view(self, views: bool) -> Self {
        if let Some(reducer) = &self.reducer {
            reducer.views.store(views, Ordering::Relaxed);
        }
        self
    }

    /// The size in MiB at which a bucket is sent: 25 unless set, and at most 1 for the first. With 0
    /// every gradient is sent by itself.
    ///
    /// # Errors
    /// [`Error::Argument`] for a size that is negative or not a number.
    #[track_caller]
    pub fn bucket_cap_mb(self, megabytes: f64) -> Result<Self> {
        if megabytes.is_nan() || megabytes < 0.0 {
            return Err(Error::argument(
                "DistributedDataParallel::bucket_cap_mb",
                "megabytes",
                "a number of at least 0",
                megabytes,
            )
            .at(std::panic::Location::caller()));
        }
        if let Some(reducer) = &self.reducer {
            // The conversion saturates: more than memory holds means one bucket.
            reducer
                .bucket_bytes
                .store((megabytes * MIB) as usize, Ordering::Relaxed);
        }
        Ok(self)
    }

    /// Runs `passes` without averaging the gradients of the backward passes in it: for accumulating
    /// gradients over several batches. The next pass outside averages what has been accumulated.
    pub fn no_sync<T>(&self, passes: impl FnOnce() -> T) -> T {
        struct Resume<'a>(Option<&'a Reducer>);
        impl Drop for Resume<'_> {
            fn drop(&mut self) {
                if let Some(reducer) = self.0 {
                    reducer.paused.fetch_sub(1, Ordering::Relaxed);
                }
            }
        }
        if let Some(reducer) = &self.reducer {
            reducer.paused.fetch_add(1, Ordering::Relaxed);
        }
        let _resume = Resume(self.reducer.as_deref());
        passes()
    }

    /// The wrapped module.
    pub fn module(&self) -> &M {
        &self.module
    }
}

/// A wrapped module is called as it is: `model.forward(…)`, with whatever arguments it has.
impl<M> Deref for DistributedDataParallel<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.module
    }
}

impl<M: Forward> Forward for DistributedDataParallel<M> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        self.module.forward(input)
    }
}

/// What parameters call after a backward pass.
struct Hook(Weak<Reducer>);

impl GradHook for Hook {
    fn finished(&self) -> Result<()> {
        match self.0.upgrade() {
            Some(reducer) => reducer.reduce(),
            None => Ok(()),
        }
    }
}

struct Reducer {
    parameters: Vec<Tensor>,
    bucket_bytes: AtomicUsize,
    views: AtomicBool,
    /// Depth of `no_sync`.
    paused: AtomicUsize,
    /// Two backward passes on two threads must not interleave their collectives.
    running: Mutex<()>,
}

impl Reducer {
    fn reduce(&self) -> Result<()> {
        if self.paused.load(Ordering::Relaxed) > 0 {
            return Ok(());
        }
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        // The backward pass reaches the last layers first, so their buckets come first.
        let ready: Vec<(&Tensor, Tensor)> = self
            .parameters
            .iter()
            .rev()
            .filter_map(|parameter| Some((parameter, parameter.grad()?)))
            .collect();
        let cap = self.bucket_bytes.load(Ordering::Relaxed);
        let sizes = ready
            .iter()
            .map(|(_, g)| (g.dtype(), g.numel() * g.dtype().size()));
        for bucket in buckets(sizes, cap.min(FIRST_BUCKET), cap) {
            let gradients: Vec<&Tensor> = bucket.iter().map(|i| &ready[*i].1).collect();
            let averaged = dist::all_reduce_many(&gradients, ReduceOp::Mean)?;
            for (i, gradient) in bucket.into_iter().zip(averaged) {
                let gradient = match self.views.load(Ordering::Relaxed) {
                    true => gradient,
                    false => gradient.copy()?,
                };
                ready[i].0.set_grad(Some(gradient));
            }
        }
        Ok(())
    }
}

/// Indices of tensors that travel together: of one dtype, in order, a bucket closed once it holds
/// `cap` bytes (the first of each dtype `first_cap`). Buckets are ordered by their first tensor.
fn buckets(
    tensors: impl Iterator<Item = (DType, usize)>,
    first_cap: usize,
    cap: usize,
) -> Vec<Vec<usize>> {
    struct Open {
        dtype: DType,
        bucket: usize,
        bytes: usize,
        cap: usize,
    }
    let mut buckets: Vec<Vec<usize>> = Vec::new();
    let mut open: Vec<Open> = Vec::new();
    for (index, (dtype, bytes)) in tensors.enumerate() {
        let at = match open.iter().position(|o| o.dtype == dtype) {
            Some(at) => at,
            None => {
                open.push(Open {
                    dtype,
                    bucket: usize::MAX,
                    bytes: 0,
                    cap: first_cap,
                });
                open.len() - 1
            }
        };
        let current = &mut open[at];
        if current.bucket == usize::MAX {
            current.bucket = buckets.len();
            buckets.push(Vec::new());
        }
        buckets[current.bucket].push(index);
        current.bytes = current.bytes.saturating_add(bytes);
        if current.bytes >= current.cap {
            *current = Open {
                dtype,
                bucket: usize::MAX,
                bytes: 0,
                cap,
            };
        }
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_closes_when_it_is_full() {
        let sizes = [40, 40, 40, 100, 10, 10].map(|bytes| (DType::F32, bytes));
        let first_is_small = buckets(sizes.into_iter(), 40, 100);
        assert_eq!(first_is_small, [vec![0], vec![1, 2, 3], vec![4, 5]]);
        let one = buckets(sizes.into_iter(), usize::MAX, usize::MAX);
        assert_eq!(one, [vec![0, 1, 2, 3, 4, 5]]);
        let each = buckets(sizes.into_iter(), 0, 0);
        assert_eq!(each.len(), 6);
        assert!(buckets(std::iter::empty(), 1, 1).is_empty());
    }

    #[test]
    fn dtypes_do_not_share_a_bucket() {
        let tensors = [
            (DType::F32, 4),
            (DType::BF16, 2),
            (DType::F32, 4),
            (DType::BF16, 2),
        ];
        assert_eq!(
            buckets(tensors.into_iter(), 64, 64),
            [vec![0, 2], vec![1, 3]]
        );
    }
}
