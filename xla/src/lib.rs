//! Lazy tensors for Rust that XLA compiles, on any device with a PJRT plugin.
//!
//! Code looks like PyTorch's and runs one operator at a time as far as it can tell. In truth an
//! operator is only recorded; [`sync()`], or reading a value, compiles what was recorded into one
//! program and runs it. The next time the same operators are recorded, the compiled program is
//! found again by its key.
//!
//! # Tensors
//! ```
//! use xla::Tensor;
//! let device = xla::device()?;
//! let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0], [3], &device)?;
//! let y = ((&x * &x)? + 1.0)?; // recorded, not computed
//! assert_eq!(y.to_vec::<f32>()?, [2.0, 5.0, 10.0]); // compiled, run and read
//! # Ok::<(), xla::Error>(())
//! ```
//!
//! # Gradients
//! ```
//! # use xla::Tensor;
//! let w = Tensor::from_slice(&[3.0_f32], [1], ())?.requires_grad_(true)?;
//! (&w * &w)?.backward()?;
//! assert_eq!(w.grad().map(|g| g.item::<f32>()).transpose()?, Some(6.0));
//! # Ok::<(), xla::Error>(())
//! ```
//!
//! # Compiled functions
//! Recording costs little, but a step that is always the same need not be recorded at all. [`compile`]
//! takes a function of its state and its arguments; from the second call on only its program runs.
//!
//! ```
//! # use xla::{Tensor, nn, nn::Module, optim};
//! let model = nn::Linear::new(2, 1, ())?;
//! let optimizer = optim::Sgd::new(model.parameters(), 0.1).momentum(0.9);
//! let mut step = xla::compile(
//!     |(model, optimizer): &mut (nn::Linear, optim::Sgd), (x, y): (Tensor, Tensor)| {
//!         let loss = (model.forward(&x)? - y)?.square()?.mean((), false)?;
//!         loss.backward()?;
//!         optimizer.step()?;
//!         optimizer.zero_grad();
//!         Ok(loss)
//!     },
//! )
//! .full_graph(true);
//! let mut state = (model, optimizer);
//! let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2], ())?;
//! let y = Tensor::from_slice(&[1.0_f32, 0.0], [2, 1], ())?;
//! let first = step.call(&mut state, (&x, &y))?;
//! state.1.set_lr(0.02); // a number, which is data
//! let second = step.call(&mut state, (&x, &y))?;
//! assert_eq!(step.recordings(), 1);
//! # assert_ne!(first.item::<f32>()?, second.item::<f32>()?);
//! # Ok::<(), xla::Error>(())
//! ```
//!
//! # Coming from PyTorch
//! | PyTorch | here |
//! | --- | --- |
//! | `torch.zeros(2, 3, device=d)` | `Tensor::zeros([2, 3], d)`; last comes a device, a [`DType`], both, or `()` |
//! | `torch.tensor([1., 2.])` | `Tensor::from_slice(&[1.0_f32, 2.0], [2], ())` |
//! | `x * 2 + y` | `(x * 2 + y)?`, of tensors, references to them, and numbers of type `i64` or `f64` |
//! | `x.sum()`, `x.sum(1)` | `x.sum((), false)?`, `x.sum(1, false)?`; the last argument is `keepdim` |
//! | `x[0, 1:, mask]` | `x.index(&[0.into(), (1..).into(), (&mask).into()])?` |
//! | `x.size(-1)`, `x.shape` | `x.size(-1)?`, `x.dims()` |
//! | `F.gelu(x)`, `F.conv2d(x, w)` | `x.gelu(…)?`, [`nn::functional::conv2d`]: what is a method in PyTorch too is only that |
//! | `F.cross_entropy(x, y, label_smoothing=0.1)` | an options struct: `CrossEntropyOptions { label_smoothing: 0.1, ..Default::default() }` |
//! | `nn.Conv2d(3, 64, 7, stride=2)` | `Conv2d::builder(3, 64, 7).stride(2).build(d)?` |
//! | `class Net(nn.Module)` | `#[derive(Module)] struct Net`, with a method `forward` |
//! | `with torch.no_grad():` | `xla::no_grad(\|\| …)` |
//! | `loss.item()` | `loss.item::<f32>()?`, which runs what has been recorded and waits |
//! | end of a step | [`sync()`], which starts it |
//! | `torch.compile(f, fullgraph=True)` | `xla::compile(f).full_graph(true)` |
//! | `xm.add_step_closure(f, (loss,))` | [`add_step_closure`]`(loss, f)` |
//!
//! The examples `resnet`, `gpt` and `unet` are whole models in this way.
//!
//! # Several devices
//! [`launch()`] runs a function once for each device. What differs between the replicas is what
//! [`device`] and [`dist::get_rank`] answer, and the data they choose to read. The same program runs
//! with a thread a device, as several processes (`XLA_LAUNCH_PROCESSES=2`), under `torchrun
//! --no-python`, `xlarun`, Slurm and others, in a notebook, and in a single thread for debugging
//! (`XLA_LAUNCH_MODE=debug`); [`Launcher`] says how to choose.
//!
//! ```
//! use xla::data::{DataLoader, TensorDataset};
//! use xla::nn::Module;
//! use xla::{Literal, dist, nn, optim};
//!
//! /// Points of a plane, labelled by the side of a line they are on.
//! fn points() -> xla::Result<TensorDataset> {
//!     let points: Vec<f32> = (0..128).map(|i| ((i * 37) % 64) as f32 / 32.0 - 1.0).collect();
//!     let labels = points.chunks(2).map(|p| i64::from(p[0] > p[1])).collect();
//!     TensorDataset::new(Literal::from_vec(points, [64, 2])?, Literal::from_vec(labels, [64])?)
//! }
//!
//! fn train(rank: usize) -> xla::Result<()> {
//!     dist::init_process_group("xla", "xla://")?;
//!     xla::manual_seed(1)?;
//!     let device = xla::device()?;
//!     let model = nn::Sequential::new()
//!         .add(nn::Linear::new(2, 16, &device)?)
//!         .add(nn::Relu)
//!         .add(nn::Linear::new(16, 2, &device)?);
//!     let model = nn::DistributedDataParallel::new(model)?.gradient_as_bucket_view(true);
//!     let mut optimizer = optim::Sgd::new(model.parameters(), 0.5).momentum(0.9);
//!     let loader = DataLoader::new(points()?)
//!         .batch_size(32 / dist::get_world_size()?)
//!         .sampler(rank, dist::get_world_size()?);
//!     let mut losses = Vec::new();
//!     for _epoch in 0..20 {
//!         for batch in &loader {
//!             let (points, labels) = batch?;
//!             let loss = nn::cross_entropy(&model.forward(&points)?, &labels)?;
//!             loss.backward()?;
//!             optimizer.step()?;
//!             optimizer.zero_grad();
//!             xla::sync()?;
//!             losses.push(loss);
//!         }
//!     }
//!     let (first, last) = (losses[0].item::<f32>()?, losses[losses.len() - 1].item::<f32>()?);
//!     assert!(last < first / 2.0, "from {first} to {last}");
//!     Ok(())
//! }
//!
//! fn main() -> xla::Result<()> {
//!     xla::launch(train)
//! }
//! ```
//!
//! # One program over all devices
//! In SPMD mode ([`spmd`]) the device is a virtual one that stands for a mesh of real ones. Tensors are
//! spread over it, and XLA partitions what is computed from them, with the collectives that takes.
//! `XLA_USE_SPMD=1` runs a program so that [`launch()`]es and wraps its model in
//! [`nn::DistributedDataParallel`].
//!
//! ```
//! use xla::Tensor;
//! use xla::spmd::{self, Mesh, NamedSharding};
//! let mesh = Mesh::all("data")?;
//! spmd::enable(&mesh)?;
//! let rows = NamedSharding::new(&mesh, "data")?;
//! let x = Tensor::ones([8, 4], &rows)?;
//! let sums = x.sum(1, false)?;
//! assert_eq!(sums.to_vec::<f32>()?, [4.0; 8]);
//! assert_eq!(x.local_shards()?.len(), xla::device_count()?);
//! # Ok::<(), xla::Error>(())
//! ```
//!
//! # Where a device comes from
//! `PJRT_DEVICE` names the kind (`CPU`, `CUDA`, `ROCM`, `TPU`), and `PJRT_LIBRARY_PATH` a plugin to
//! use before any other; `CPU_NUM_DEVICES` is how many devices the host's processor offers. All are
//! read once, at the first use. A [`Device`] is a logical one, `xla:0`, `xla:1`, and so on;
//! [`real_devices`] lists the hardware behind them.
//!
//! # Seeing what happens
//! `XLA_DEBUG=log` prints a line for each compilation and execution: the call that caused it, sizes,
//! memory, what was not donated, and why a program had to be compiled again. [`metrics::report`]
//! has the totals under PyTorch/XLA's names, [`debug::pending`] the program recorded so far,
//! [`debug::capsule`] a program that ran, with its arguments, in a file to be run again,
//! [`debug::donations`] what became of the memory of state; [`testing::budget`] asserts in a test
//! what a step may cost. `XLA_DEBUG=nan` names the operator that made the first NaN,
//! `XLA_DEBUG=index` makes an index out of range an error, and [`profiler`] writes a timeline.
//!
//! # Deeper
//! This crate only re-exports. `xla-lazy` defines operators (a new one is an `impl` of its
//! `Operator` trait), `xla-runtime` speaks PJRT, and each can be used without the others above it.
#![forbid(unsafe_code)]

pub use xla_core::{
    Axes, DType, Device, Element, Error, IntoAxes, IntoDims, IntoShape, Literal, LiveTensor,
    Result, Shape, bf16, f16,
};
pub use xla_dist as dist;
pub use xla_launch::{Launcher, StartMethod, launch};
pub use xla_lazy::{
    AutocastOptions, BackwardOptions, Compiled, CompilerOption, Flat, FunctionContext,
    GeluApproximation, Generator, GradOptions, HookHandle, HostNumber, Index, MatmulPrecision,
    MeshgridIndexing, NanToNum, Notes, Number, Operand, OwnerId, PadMode, Parts, RoundingMode,
    ScanOptions, ScatterReduce, SolveTriangularOptions, State, StateVisitor, Stateless, SyncHandle,
    Tensor, TensorOptions, Tree, WhileOptions, add_step_closure, add_step_closure_async, autocast,
    autocast_with, checkpoint, compile, compile_fn, default_generator, enable_grad, fori_loop,
    function, get_float32_matmul_precision, grad, is_autocast_enabled, is_compiling,
    is_grad_enabled, manual_seed, no_grad, optimization_barrier, scan, scan_with,
    set_float32_matmul_precision, set_grad_enabled, sync, while_loop, while_loop_with,
    with_matmul_precision,
};
pub use xla_lazy::{debug, spmd, testing};
pub use xla_nn as nn;
pub use xla_nn::{data, optim};
pub use xla_runtime::context::ReplicaContext;
pub use xla_runtime::{RealDevice, metrics, profiler};

use std::sync::Arc;
use xla_core::Config;
use xla_runtime::{Client, context as replica};

/// The device of the calling replica: `xla:i` in replica `i` of a launch, else `xla:0`; in SPMD mode
/// the virtual one, which stands for all devices of the mesh.
///
/// # Errors
/// [`Error::NoReplicaContext`] on a thread that belongs to no replica while a launch runs;
/// [`Error::Config`] for an environment variable without meaning.
pub fn device() -> Result<Device> {
    Config::global()?;
    spmd::default_device("device")
}

/// The device with this ordinal among [`devices`].
///
/// # Errors
/// [`Error::NoSuchDevice`] with the number of devices there are; whatever keeps the PJRT client
/// from starting.
pub fn device_at(ordinal: usize) -> Result<Device> {
    let devices = devices()?;
    devices.get(ordinal).copied().ok_or(Error::NoSuchDevice {
        asked: ordinal,
        count: devices.len(),
    })
}

/// All devices of this process, the same in every replica; in SPMD mode the one virtual device.
///
/// # Errors
/// Whatever keeps the PJRT client from starting.
pub fn devices() -> Result<Vec<Device>> {
    match spmd_device()? {
        Some(device) => Ok(vec![device]),
        None => Ok((0..device_count()?).map(Device::new).collect()),
    }
}

/// The hardware behind [`devices`], in the order of their ordinals; printed `CPU:0`.
///
/// # Errors
/// As [`devices`].
pub fn real_devices() -> Result<Vec<RealDevice>> {
    Ok(Client::global()?.devices().to_vec())
}

/// Number of [`real_devices`].
///
/// # Errors
/// As [`devices`].
pub fn device_count() -> Result<usize> {
    Ok(Client::global()?.devices().len())
}

/// The virtual device, in SPMD mode.
fn spmd_device() -> Result<Option<Device>> {
    let asked = Config::global()?.use_spmd || spmd::current_mesh().is_some();
    match asked {
        true => {
            spmd::default_device("devices").map(|device| Some(device).filter(|d| d.is_virtual()))
        }
        false => Ok(None),
    }
}

/// The calling replica's context. A thread that a replica starts is no part of it until it enters
/// the context:
///
/// ```
/// let context = xla::context()?;
/// std::thread::spawn(move || {
///     let _replica = context.enter();
///     xla::device()
/// });
/// # Ok::<(), xla::Error>(())
/// ```
///
/// # Errors
/// [`Error::NoReplicaContext`] on a thread that belongs to no replica while a launch runs.
pub fn context() -> Result<Arc<ReplicaContext>> {
    replica::current("context")
}
