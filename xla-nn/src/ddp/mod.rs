//! Data-parallel training: every replica holds the model, gradients are averaged between them. On a
//! mesh every device does, and the compiler sees to the gradients.

mod batch;
mod buckets;
mod reducer;

use crate::sharded::replicate_unmarked;
use crate::{Forward, Module};
use batch::Batch;
use reducer::{Hook, Reducer, take_over};
use std::ops::Deref;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use xla_core::{Error, Result};
use xla_dist::{self as dist, ProcessGroup};
use xla_lazy::spmd::{self, Mesh, SpecAxes};
use xla_lazy::{GradHook, Tensor, no_grad};

const MIB: f64 = 1024.0 * 1024.0;
const NEW: &str = "DistributedDataParallel::new";
/// PyTorch's size of a bucket.
const BUCKET_MIB: f64 = 25.0;

/// A module whose gradients are averaged over the process group.
///
/// Wrapping copies rank 0's parameters and buffers to every rank, so ranks may initialise or load them
/// differently. After each backward pass the gradients are averaged: collectives recorded in the same
/// program as the pass, which XLA joins and schedules next to the computation that remains. Those that
/// go to other processes are joined beforehand, in buckets.
/// Ranks thus take the same steps, equal to those of one replica with the whole batch when the loss
/// is a mean and all ranks have equally large batches.
///
/// Parameters of the wrapped module are `module.` plus their former paths. In a group of one nothing
/// is communicated.
///
/// Every rank must use the same parameters in each pass: a rank that leaves some out records another
/// program, and every rank gets [`Error::Divergence`]; where that is meant, say so by
/// [`find_unused_parameters`](Self::find_unused_parameters).
///
/// # On a mesh
/// Where tensors are made on a mesh ([`spmd::enable`], [`spmd::scope`], `XLA_USE_SPMD=1`), the one
/// program is that of all devices and there is nothing to communicate: each device holds the
/// parameters, those that are not split by [`fully_shard`](crate::fully_shard) or
/// [`parallelize_module`](crate::parallelize_module), and [`forward`](Self::forward) splits its input
/// along the first axis over the mesh's first ([`batch_axes`](Self::batch_axes)). Batches need not
/// divide evenly. The gradients are those of the whole batch, so the options about buckets, buffers
/// and unused parameters, and [`no_sync`](Self::no_sync), change nothing.
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
    // `None` in a group of one and on a mesh, where nothing is communicated.
    #[module(skip)]
    reducer: Option<Arc<Reducer>>,
    // On a mesh.
    #[module(skip)]
    batch: Option<Batch>,
}

impl<M: Module> DistributedDataParallel<M> {
    /// Wraps a module for the default process group and broadcasts rank 0's parameters and buffers.
    ///
    /// What was recorded before is run first: ranks that made their parameters in different ways
    /// then all record the same broadcasts.
    ///
    /// On a mesh it needs no process group.
    ///
    /// # Errors
    /// [`Error::ProcessGroup`] before `init_process_group`; [`Error::Autograd`] when a parameter
    /// does not take a gradient; what the broadcasts return, or moving the parameters to the mesh.
    #[track_caller]
    pub fn new(module: M) -> Result<Self> {
        let here = Location::caller();
        if let Some(mesh) = Mesh::of(spmd::default_device(NEW)?) {
            return Self::on_mesh(module, mesh).map_err(|e| e.relocated(here));
        }
        if !dist::is_initialized() {
            return Err(Error::ProcessGroup {
                what: NEW,
                state: "there is no process group".into(),
                advice: "call init_process_group(\"xla\", \"xla://\") first",
            });
        }
        Self::with_group(module, dist::default_group()?)
    }

    /// Wraps a module for the members of a group, whose first rank's parameters and buffers become
    /// those of all.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::ProcessGroup`] on a mesh for a group of several: a mesh's
    /// devices are those of one process.
    #[track_caller]
    pub fn with_group(module: M, group: Arc<ProcessGroup>) -> Result<Self> {
        let here = Location::caller();
        match Mesh::of(spmd::default_device("DistributedDataParallel::with_group")?) {
            Some(mesh) if group.size() == 1 => {
                return Self::on_mesh(module, mesh).map_err(|e| e.relocated(here));
            }
            Some(mesh) => return Err(batch::several(mesh, &group)),
            None if group.size() == 1 => {
                return Ok(DistributedDataParallel {
                    module,
                    reducer: None,
                    batch: None,
                });
            }
            None => {}
        }
        xla_lazy::sync()?;
        let (all, buffers) = (module.parameters(), module.buffers());
        no_grad(|| {
            take_over(&group, &all)?;
            take_over(&group, &buffers)
        })?;
        let reducer = Arc::new(Reducer {
            group,
            parameters: all.into_iter().filter(Tensor::requires_grad).collect(),
            buffers,
            bucket_bytes: AtomicUsize::new((BUCKET_MIB * MIB) as usize),
            views: AtomicBool::new(false),
            find_unused: AtomicBool::new(false),
            broadcast_buffers: AtomicBool::new(true),
            paused: AtomicUsize::new(0),
            running: Mutex::new(()),
        });
        let hook: Arc<dyn GradHook> = Arc::new(Hook(Arc::downgrade(&reducer)));
        for parameter in &reducer.parameters {
            parameter.on_grad_ready(Arc::clone(&hook))?;
        }
        Ok(DistributedDataParallel {
            module,
            reducer: Some(reducer),
            batch: None,
        })
    }

    fn on_mesh(module: M, mesh: Mesh) -> Result<Self> {
        if dist::is_initialized() {
            let group = dist::default_group()?;
            if group.size() > 1 {
                return Err(batch::several(mesh, &group));
            }
        }
        replicate_unmarked(&module.parameters(), &mesh)?;
        replicate_unmarked(&module.buffers(), &mesh)?;
        Ok(DistributedDataParallel {
            module,
            reducer: None,
            batch: Some(Batch::of(mesh)),
        })
    }

    /// The axes of the mesh that batches are split over: the mesh's first unless set. Without a mesh
    /// it changes nothing.
    ///
    /// ```no_run
    /// # use xla_lazy::spmd::{self, Mesh};
    /// # use xla_nn::{DistributedDataParallel, Linear};
    /// let mesh = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["model", "data"])?;
    /// spmd::enable(&mesh)?;
    /// let model = DistributedDataParallel::new(Linear::new(784, 10, ())?)?.batch_axes("data")?;
    /// # Ok::<(), xla_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Sharding`] for an axis that the mesh does not have, or one named twice.
    #[track_caller]
    pub fn batch_axes(mut self, axes: impl Into<SpecAxes>) -> Result<Self> {
        let here = Location::caller();
        if let Some(batch) = &mut self.batch {
            let axes = batch.checked(axes.into());
            batch.axes = axes.map_err(|e| e.relocated(here))?;
        }
        Ok(self)
    }

    /// An input of the module, on a mesh split along its first axis over [`batch_axes`]: for modules
    /// whose `forward` takes other arguments than one tensor. What the other axes are split over
    /// stays; so does an input without axes, and one whose first axis is split already.
    ///
    /// [`batch_axes`]: Self::batch_axes
    ///
    /// ```no_run
    /// # use xla_core::Result;
    /// # use xla_lazy::Tensor;
    /// # use xla_nn::{DistributedDataParallel, MultiheadAttention, MultiheadAttentionOptions};
    /// # fn demo(model: &DistributedDataParallel<MultiheadAttention>, x: &Tensor) -> Result<Tensor> {
    /// let x = model.scatter(x)?;
    /// let (y, _) = model.forward(&x, &x, &x, MultiheadAttentionOptions::default())?;
    /// # Ok(y)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Sharding`] for a tensor that is not on the mesh.
    #[track_caller]
    pub fn scatter(&self, input: &Tensor) -> Result<Tensor> {
        match &self.batch {
            Some(batch) => batch.split(input),
            None => Ok(input.clone()),
        }
    }

    /// Whether ranks may use different parameters in a pass: `false` unless set. A parameter that
    /// only some ranks have used is averaged with zeros from the others, and one that none has used
    /// keeps its gradient as it is.
    ///
    /// A step then is two programs, and waits: each rank first runs what it has recorded, and all
    /// read which parameters were used.
    #[must_use]
    pub fn find_unused_parameters(self, find: bool) -> Self {
        if let Some(reducer) = &self.reducer {
            reducer.find_unused.store(find, Ordering::Relaxed);
        }
        self
    }

    /// Whether all ranks take over rank 0's buffers (running statistics) in each step: `true` unless
    /// set.
    #[must_use]
    pub fn broadcast_buffers(self, broadcast: bool) -> Self {
        if let Some(reducer) = &self.reducer {
            reducer
                .broadcast_buffers
                .store(broadcast, Ordering::Relaxed);
        }
        self
    }

    /// Whether gradients become views of the averaged buckets instead of copies: `false` unless set,
    /// as in PyTorch. With views, gradients that are kept beyond a sync share the bucket's memory;
    /// writing to one in place writes to the bucket. Within a process there are no buckets.
    #[must_use]
    pub fn gradient_as_bucket_view(self, views: bool) -> Self {
        if let Some(reducer) = &self.reducer {
            reducer.views.store(views, Ordering::Relaxed);
        }
        self
    }

    /// The size in MiB at which a bucket is sent: 25 unless set, and at most 1 for the first. With 0
    /// every gradient is sent by itself. Within a process there are no buckets.
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
            .at(Location::caller()));
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
    ///
    /// Where nothing is synced or read between the passes, all of them, the average and the
    /// optimizer's update are one program with one set of collectives:
    ///
    /// ```no_run
    /// # use xla_core::Result;
    /// # use xla_lazy::Tensor;
    /// # use xla_nn::{DistributedDataParallel, Forward, Linear, optim::{Optimizer, Sgd}};
    /// # fn demo(model: DistributedDataParallel<Linear>, mut optimizer: Sgd, batches: &[Tensor]) -> Result<()> {
    /// let pass = |x: &Tensor| -> Result<()> {
    ///     model.forward(x)?.mean((), false)?.div(batches.len() as f64)?.backward()
    /// };
    /// if let Some((last, others)) = batches.split_last() {
    ///     model.no_sync(|| others.iter().try_for_each(pass))?;
    ///     pass(last)?;
    /// }
    /// optimizer.step()?;
    /// optimizer.zero_grad();
    /// xla_lazy::sync()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Its size grows with the number of batches. [`xla_lazy::scan()`] over the batches, with
    /// [`xla_lazy::grad()`] in the body and the sums of the gradients as the carry, compiles one.
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

/// A wrapped module is called as it is: `model.forward(…)`, with whatever arguments it has. On a mesh
/// one with other arguments than one tensor is given what [`DistributedDataParallel::scatter`] returns.
impl<M> Deref for DistributedDataParallel<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.module
    }
}

impl<M: Forward> DistributedDataParallel<M> {
    /// What the module makes of its input, which on a mesh is split first: see
    /// [`scatter`](Self::scatter).
    ///
    /// # Errors
    /// Those of the module; as [`scatter`](Self::scatter).
    #[track_caller]
    pub fn forward(&self, input: &Tensor) -> Result<Tensor> {
        match &self.batch {
            Some(batch) => self.module.forward(&batch.split(input)?),
            None => self.module.forward(input),
        }
    }
}

impl<M: Forward> Forward for DistributedDataParallel<M> {
    #[track_caller]
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        DistributedDataParallel::forward(self, input)
    }
}
