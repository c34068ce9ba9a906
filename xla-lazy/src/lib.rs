//! Lazy tensors: operators record, XLA compiles, a device runs.
//!
//! A [`Tensor`] is a handle on a storage, or on a view of one. An operator ([`Operator`]) called on
//! tensors appends a node to its replica's trace; [`sync`] (and reading a value) lowers the live
//! part of the trace to StableHLO, compiles it once, executes it, and puts the resulting buffers
//! into the tensors that wait for them.
//!
//! Where things are: `tensor`, `storage`, `view` hold values; `op` is the operator contract and
//! `ops` the operators; `trace` records; `lower` and `stablehlo` make the program's text; `cache`
//! compiles; `sync` executes; `grad` differentiates; `gang` is what is known of other replicas.
//!
//! No PJRT type is named outside `cache` and `sync`, no process is started and no network used.
#![forbid(unsafe_code)]

pub mod autocast;
mod cache;
mod checkpoint;
mod compiled;
pub mod debug;
mod gang;
mod grad;
mod handle;
mod hash;
mod intern;
mod lower;
mod op;
mod ops;
mod precision;
pub mod spmd;
pub mod stablehlo;
mod step_closure;
mod storage;
mod sync;
mod tensor;
pub mod testing;
mod trace;
mod ty;
mod view;

pub use autocast::{AutocastOptions, autocast, autocast_with, is_autocast_enabled};
pub use checkpoint::checkpoint;
pub use compiled::{
    Compiled, CompilerOption, Flat, HostNumber, Notes, OwnerId, Parts, State, StateVisitor,
    Stateless, Tree, compile, compile_fn, is_compiling,
};
pub use gang::{Collective, Gang, Hash128, Outcome, Proposal, Settlement, Start};
pub use grad::{
    BackwardOptions, FunctionContext, GradHook, GradOptions, Gradients, HookHandle, Vjp, function,
    grad,
};
pub use op::{Derivative, InputType, Number, OpEntry, Operand, Operator, Saves, entry, promote};
pub use ops::{
    GeluApproximation, Generator, Index, MeshgridIndexing, NanToNum, PadMode, RoundingMode,
    ScanOptions, ScatterReduce, SolveTriangularOptions, WhileOptions, default_generator, fori_loop,
    manual_seed, optimization_barrier, scan, scan_with, while_loop, while_loop_with,
};
pub use precision::{
    MatmulPrecision, get_float32_matmul_precision, set_float32_matmul_precision,
    with_matmul_precision,
};
pub use step_closure::{add_step_closure, add_step_closure_async};
pub use sync::{SyncHandle, sync};
pub use tensor::{Tensor, TensorOptions};
pub use trace::{
    enable_grad, is_grad_enabled, no_grad, record, record_collective, record_op, recorded_by,
    set_grad_enabled,
};
pub use ty::{TensorType, Ty, ty};
pub use view::{Strides, ViewRule};
