//! Which replica the calling thread drives: its device, its rank, and the launch it belongs to.
//!
//! Outside a launch every thread is the one replica of the process: device `xla:0`, rank 0 of 1.
//! While a launch runs, each of its replica threads carries a [`ReplicaContext`]; a thread without
//! one gets an error rather than a silent `xla:0`, and [`ReplicaContext::enter`] carries a
//! context over to a worker thread.

mod launch;

pub use launch::{Launch, Mode, Standing, Topology};

use std::any::{Any, TypeId};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use xla_core::{Device, Error, Result};

/// One replica: a device with the thread that drives it.
pub struct ReplicaContext {
    device: Device,
    rank: usize,
    launch: Arc<Launch>,
    extensions: Mutex<HashMap<TypeId, Arc<dyn Any + Send + Sync>>>,
}

thread_local! {
    static CURRENT: RefCell<Vec<Arc<ReplicaContext>>> = const { RefCell::new(Vec::new()) };
}

/// Launches whose replicas run on threads of their own just now.
static ACTIVE: AtomicUsize = AtomicUsize::new(0);

/// The replica that the calling thread drives.
///
/// # Errors
/// [`Error::NoReplicaContext`] on a thread that belongs to no replica while a launch runs; `what`
/// names the call in it.
pub fn current(what: &'static str) -> Result<Arc<ReplicaContext>> {
    if let Some(context) = CURRENT.with_borrow(|stack| stack.last().cloned()) {
        return Ok(context);
    }
    if ACTIVE.load(Ordering::Acquire) > 0 {
        return Err(Error::NoReplicaContext { what });
    }
    static ROOT: OnceLock<Arc<ReplicaContext>> = OnceLock::new();
    Ok(Arc::clone(ROOT.get_or_init(|| {
        let deadline = xla_core::Config::global()
            .map_or(xla_core::config::DEFAULT_DEADLINE, |config| config.deadline);
        ReplicaContext::new(Launch::new(Mode::Single, 1, deadline), Device::new(0), 0)
    })))
}

/// Whether programs of this process run on all devices of a mesh.
static PARTITIONED: AtomicBool = AtomicBool::new(false);

/// Notes that programs of this process run on all devices of a mesh from now on: a launch then calls
/// its function once.
pub fn set_partitioned() {
    PARTITIONED.store(true, Ordering::Release);
}

/// Whether [`set_partitioned`] was called.
pub fn is_partitioned() -> bool {
    PARTITIONED.load(Ordering::Acquire)
}

/// Whether the calling thread is inside a replica of a launch.
pub fn in_launch() -> bool {
    CURRENT.with_borrow(|stack| !stack.is_empty())
}

/// What waits for the work that a thread has started; set by whoever starts work.
static AWAIT_WORK: OnceLock<fn() -> Result<()>> = OnceLock::new();

/// Has `wait` called on each replica's thread when its function has returned, so that an error of
/// its last asynchronous step is the launch's. The first caller's function is kept.
pub fn await_work_with(wait: fn() -> Result<()>) {
    let _ = AWAIT_WORK.set(wait);
}

/// Waits for what the calling thread has started.
///
/// # Errors
/// The error of a step that failed.
pub fn await_work() -> Result<()> {
    AWAIT_WORK.get().map_or(Ok(()), |wait| wait())
}

/// Marks a launch whose replicas run on threads of their own, until dropped.
#[derive(Debug)]
pub struct ActiveLaunch(());

impl ActiveLaunch {
    /// From now on a thread without a context is no replica.
    #[allow(clippy::new_without_default)] // it has an effect: a default would hide that
    pub fn new() -> Self {
        ACTIVE.fetch_add(1, Ordering::AcqRel);
        ActiveLaunch(())
    }
}

impl Drop for ActiveLaunch {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::AcqRel);
    }
}

impl ReplicaContext {
    /// The replica of `launch` with this global rank, on this device.
    pub fn new(launch: Arc<Launch>, device: Device, rank: usize) -> Arc<Self> {
        Arc::new(ReplicaContext {
            device,
            rank,
            launch,
            extensions: Mutex::new(HashMap::new()),
        })
    }

    /// The device that tensors are made on by default.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Global rank, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Position among the replicas of this process, from 0.
    pub fn local_rank(&self) -> usize {
        self.rank.saturating_sub(self.launch.local_ranks().start)
    }

    /// Number of replicas in the launch, over all its processes.
    pub fn world_size(&self) -> usize {
        self.launch.world_size()
    }

    /// How the replicas are run.
    pub fn mode(&self) -> Mode {
        self.launch.mode()
    }

    /// The launch it belongs to.
    pub fn launch(&self) -> &Arc<Launch> {
        &self.launch
    }

    /// The one value of this type that the replica carries, made by `init` at the first call. Crates
    /// above keep their own state here (a generator, a process group).
    pub fn extension<T: Send + Sync + 'static>(&self, init: impl FnOnce() -> T) -> Arc<T> {
        let mut extensions = self
            .extensions
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let value = extensions
            .entry(TypeId::of::<T>())
            .or_insert_with(|| Arc::new(init()));
        match Arc::clone(value).downcast::<T>() {
            Ok(value) => value,
            Err(_) => unreachable!("the map is keyed by the type of its values"),
        }
    }

    /// Makes the calling thread part of this replica until the guard is dropped.
    pub fn enter(self: &Arc<Self>) -> Entered {
        CURRENT.with_borrow_mut(|stack| stack.push(Arc::clone(self)));
        Entered(PhantomData)
    }
}

impl fmt::Debug for ReplicaContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaContext")
            .field("device", &self.device)
            .field("rank", &self.rank)
            .field("world_size", &self.world_size())
            .field("mode", &self.mode())
            .finish_non_exhaustive()
    }
}

/// Keeps the calling thread part of a replica; see [`ReplicaContext::enter`].
#[derive(Debug)]
#[must_use = "the thread leaves the replica when this is dropped"]
pub struct Entered(PhantomData<*const ()>);

impl Drop for Entered {
    fn drop(&mut self) {
        CURRENT.with_borrow_mut(|stack| {
            stack.pop();
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_replica_knows_its_place_in_process_and_world() {
        let topology = Topology {
            processes: 3,
            process_index: 1,
            replicas: 2,
        };
        let launch = Launch::spanning(Mode::External, topology, Duration::from_secs(1));
        let replica = ReplicaContext::new(launch, Device::new(1), 3);
        assert_eq!((replica.local_rank(), replica.world_size()), (1, 6));
    }

    #[test]
    fn contexts_nest_and_extensions_are_per_replica() {
        let launch = Launch::new(Mode::Debug, 1, Duration::from_secs(1));
        let context = ReplicaContext::new(launch, Device::new(3), 0);
        {
            let _inside = context.enter();
            assert_eq!(current("device").unwrap().device(), Device::new(3));
        }
        assert!(!in_launch());
        assert_eq!(*context.extension(|| 7u32), 7);
        assert_eq!(*context.extension(|| 8u32), 7);
    }
}
