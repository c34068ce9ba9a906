//! Which mesh tensors are made on by default: that of the process, that of a scope, or none.

use super::Mesh;
use crate::Tensor;
use crate::storage::Storage;
use crate::sync::{self, Cause};
use crate::trace;
use std::cell::RefCell;
use std::panic::Location;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use xla_core::{Config, Device, Error, Result};
use xla_runtime::context::{self, Mode};

/// One more than the number of the process's mesh; 0 while there is none.
static PROCESS: AtomicUsize = AtomicUsize::new(0);

/// The axis of the mesh that a process gets which asks for partitioning and names none.
const DATA: &str = "data";

thread_local! {
    static SCOPES: RefCell<Vec<Mesh>> = const { RefCell::new(Vec::new()) };
}

/// Makes a mesh the device of the whole process: [`Mesh::device`] is from now on what tensors are made
/// on by default, and every program runs on all devices of the mesh, partitioned by the compiler.
/// `XLA_USE_SPMD=1` does it at the first use, with one axis `data` over all devices.
///
/// What the calling thread has recorded runs first. Tensors and generators that there are keep their
/// values, and are replicated over the mesh where they are used next.
///
/// # Errors
/// [`Error::Launch`] in a replica of a launch that runs several, and for a process that has another
/// mesh; those of what runs first.
///
/// ```no_run
/// use xla_lazy::{Tensor, spmd};
/// let mesh = spmd::Mesh::new(&[0, 1, 2, 3], &[2, 2], &["data", "model"])?;
/// spmd::enable(&mesh)?;
/// let x = Tensor::zeros([8, 4], ())?;
/// assert_eq!(x.device(), mesh.device());
/// # Ok::<(), xla_core::Error>(())
/// ```
#[track_caller]
pub fn enable(mesh: &Mesh) -> Result<()> {
    enable_at("spmd::enable", mesh, Location::caller())
}

fn enable_at(op: &'static str, mesh: &Mesh, at: &'static Location<'static>) -> Result<()> {
    let replica = context::current(op)?;
    if !matches!(replica.mode(), Mode::Single | Mode::Spmd | Mode::Debug) {
        return Err(Error::Launch {
            reason: format!("{op} was called in replica {} of a launch", replica.rank()),
            advice: "call it before the launch, which then runs the function once for all devices; \
                     or use spmd::scope",
        });
    }
    match process_mesh() {
        Some(known) if known == *mesh => return Ok(()),
        Some(known) => {
            return Err(Error::Launch {
                reason: format!("{op} was given the mesh {mesh}, but the process has {known}"),
                advice: "use spmd::scope for a part of the program on another mesh",
            });
        }
        None => {}
    }
    sync::sync_at(Cause::Sync {
        at: trace::recorder(at),
    })?;
    context::set_partitioned();
    PROCESS.store(mesh.device().number() + 1, Ordering::Release);
    Ok(())
}

/// Whether the process has a mesh: [`enable`] was called, or `XLA_USE_SPMD=1` has taken effect.
pub fn is_enabled() -> bool {
    PROCESS.load(Ordering::Relaxed) != 0
}

/// The mesh that tensors are made on by default, if they are made on one: that of the innermost
/// [`scope`], else the process's.
pub fn current_mesh() -> Option<Mesh> {
    SCOPES
        .with_borrow(|scopes| scopes.last().copied())
        .or_else(process_mesh)
}

/// The mesh of the process.
pub(crate) fn process_mesh() -> Option<Mesh> {
    match PROCESS.load(Ordering::Acquire) {
        0 => None,
        number => Mesh::of(Device::of_mesh((number - 1) >> 1)),
    }
}

/// The mesh that a virtual device stands for.
///
/// # Errors
/// [`Error::Internal`] for a real one.
pub(crate) fn mesh_of(device: Device) -> Result<Mesh> {
    Mesh::of(device).ok_or_else(|| Error::Internal {
        what: "spmd",
        expected: format!("a virtual device, not {device}"),
    })
}

/// Calls `f` with a mesh's device as the one that tensors are made on by default. What the calling
/// thread has recorded runs before and after.
///
/// Tensors made outside stay where they are; [`Tensor::to`] brings them to [`Mesh::device`].
///
/// # Errors
/// Those of `f` and of what runs.
///
/// ```no_run
/// use xla_lazy::{Tensor, spmd};
/// let mesh = spmd::Mesh::all("data")?;
/// let sum = spmd::scope(&mesh, || {
///     let x = Tensor::ones([1024], ())?;
///     spmd::mark_sharding(&x, &mesh, ["data"])?;
///     x.sum((), false)
/// })?;
/// assert_eq!(sum.item::<f32>()?, 1024.0);
/// # Ok::<(), xla_core::Error>(())
/// ```
#[track_caller]
pub fn scope<T>(mesh: &Mesh, f: impl FnOnce() -> Result<T>) -> Result<T> {
    let cause = Cause::Sync {
        at: trace::recorder(Location::caller()),
    };
    sync::sync_at(cause)?;
    inside(mesh, || {
        let result = f()?;
        sync::sync_at(cause)?;
        Ok(result)
    })
}

/// [`scope`] without running anything.
pub(super) fn inside<T>(mesh: &Mesh, f: impl FnOnce() -> T) -> T {
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            SCOPES.with_borrow_mut(Vec::pop);
        }
    }
    SCOPES.with_borrow_mut(|scopes| scopes.push(*mesh));
    let _leave = Leave;
    f()
}

/// The device that tensors are made on by default: the calling replica's, or the virtual one of a mesh.
///
/// # Errors
/// [`Error::NoReplicaContext`] on a thread that belongs to no replica while a launch runs.
#[track_caller]
pub fn default_device(what: &'static str) -> Result<Device> {
    if let Some(mesh) = SCOPES.with_borrow(|scopes| scopes.last().copied()) {
        return Ok(mesh.device());
    }
    if let Some(mesh) = process_mesh() {
        return Ok(mesh.device());
    }
    let replica = context::current(what)?;
    let asked = match replica.mode() {
        Mode::Spmd => true,
        Mode::Single => Config::global().is_ok_and(|config| config.use_spmd),
        _ => false,
    };
    if !asked {
        return Ok(replica.device());
    }
    let mesh = Mesh::all(DATA)?;
    enable_at(what, &mesh, Location::caller())?;
    Ok(mesh.device())
}

/// The error of operands on two devices, which names the meshes if that is what they are.
#[cold]
pub(crate) fn apart(
    op: &'static str,
    left: Device,
    right: Device,
    at: &'static Location<'static>,
) -> Error {
    match (Mesh::of(left), Mesh::of(right)) {
        (Some(left), Some(right)) => Error::Mesh {
            op,
            expected: format!("operands on one mesh, that of {left}"),
            got: format!("one on that of {right}; to_sharding() brings it over"),
            at: at.into(),
        },
        _ => Error::DeviceMismatch {
            op,
            left,
            right,
            at: at.into(),
        },
    }
}

/// Where a tensor on this device is used: in a process with a mesh, on that.
pub(crate) fn used_on(device: Device) -> Device {
    match is_enabled() && !device.is_virtual() {
        true => process_mesh().map_or(device, |mesh| mesh.device()),
        false => device,
    }
}

/// Replicates a value that was made before the process had its mesh, or on a real device, over the mesh.
///
/// # Errors
/// Those of computing the value; the runtime's.
#[cold]
pub(crate) fn adopt(
    storage: &Arc<Storage>,
    op: &'static str,
    at: &'static Location<'static>,
) -> Result<()> {
    let device = used_on(storage.device());
    if device == storage.device() {
        return Ok(());
    }
    move_to(storage, device, op, at)
}

/// Moves a value to another device; every handle on it is there then.
///
/// # Errors
/// Those of computing the value; the runtime's.
pub(crate) fn move_to(
    storage: &Arc<Storage>,
    device: Device,
    op: &'static str,
    at: &'static Location<'static>,
) -> Result<()> {
    let value = sync::materialise(&Tensor::of(Arc::clone(storage)), op, at)?;
    storage.relocate(device, value.copy_to(device)?);
    Ok(())
}
