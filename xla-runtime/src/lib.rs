//! PJRT behind safe types: plugin, client, buffers, executables and events, and the context of the
//! replica that a thread drives. No tensors and no operators.
//!
//! ```text
//! Plugin ─ create ─→ Client ─ upload ──→ Buffer ─ to_literal ─→ Literal
//!                      └──── compile ─→ Executable ─ execute ─→ Execution { Buffer…, Event }
//! ```
//!
//! All of these are `Send + Sync` and keep alive what they depend on. Whatever is known to end the
//! process inside a plugin (a count of zero, an unknown dtype, an argument of another size, a buffer
//! that was donated, another build's machine code) is checked before the call and is an
//! [`Error`](xla_core::Error) instead. Everything that waits takes a deadline. Plugins from API 0.54
//! to the newest work alike.
//!
//! # Where the layer begins
//! Raw types come from the `pjrt-sys` crate, generated from the C header, and protobuf messages from
//! `pjrt`. The safe wrapper that `pjrt` also publishes, `pjrt::Client` and what belongs to it, is not
//! used:
//! * its `Client` is reference-counted without atomics, so neither it nor a buffer of it can leave
//!   the thread that made it, while replicas are threads;
//! * it cannot create a client on today's plugins, which refuse the size that it states for the
//!   arguments (`Unexpected PJRT_Client_Create_Args size: expected 88, got 72`), as structs have
//!   grown since API 0.54;
//! * its key-value callbacks free memory that they do not own.
//!
//! Here every argument struct is followed by zeros, which newer plugins read as "not given".
//!
//! # Floors
//! `call` calls C functions and converts their errors; `handle` owns what they hand out; the public
//! types own handles, and the client last. No `unsafe` is needed above this crate.
//!
//! ```
//! use std::time::Duration;
//! use xla_core::{DType, Literal, Shape};
//! use xla_runtime::{Client, CompileOptions, ExecuteOptions, Signature};
//!
//! let client = Client::global()?;
//! let vector = (DType::F32, Shape::new(&[2]));
//! let program = client.compile(
//!     "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
//!        %0 = stablehlo.add %a, %a : tensor<2xf32>
//!        return %0 : tensor<2xf32>
//!      }",
//!     &Signature { inputs: vec![vector.clone()], outputs: vec![vector] },
//!     &CompileOptions::default(),
//! )?;
//! let x = client.upload_owned(Literal::from_vec(vec![1.0f32, 2.0], [2])?, 0)?;
//! let run = program.execute(&[&x], &ExecuteOptions::default())?;
//! let doubled = run.outputs[0].to_literal(Duration::from_secs(10))?;
//! assert_eq!(doubled.to_vec::<f32>()?, [2.0, 4.0]);
//! # Ok::<(), xla_core::Error>(())
//! ```

pub mod context;
pub mod ffi;
pub mod kv;
pub mod literal_file;
pub mod meeting;
pub mod metrics;
pub mod owner_lock;
pub mod process;
pub mod profiler;

mod abandon;
mod blob;
mod buffer;
mod cache;
mod call;
mod capsule;
mod client;
mod device;
mod disk_cache;
mod event;
mod executable;
mod execute;
mod exit;
mod find;
mod flags;
mod global;
mod handle;
mod hlo_text;
mod host_memory;
mod live;
mod memory;
mod named_value;
mod options;

mod plugin;
mod shardings;
mod signature;
mod threads;

pub use abandon::abandon_process;
pub use buffer::Buffer;
pub use capsule::{Capsule, Difference, Replay, Versions};
pub use client::Client;
pub use device::{MemoryStats, RealDevice};
pub use disk_cache::PersistentCache;
pub use event::Event;
pub use executable::{CompiledMemory, Executable, OptimizedProgram};
pub use execute::{Execution, fresh_launch_id};
pub use exit::when_main_ends;
pub use kv::{Cluster, KeyValueStore, set_cluster};
pub use named_value::AttributeValue;
pub use options::{ClientOptions, CompileOptions, ExecuteOptions, OptionValue};

pub use plugin::Plugin;
pub use signature::Signature;
pub use threads::{CpuThreads, set_cpu_threads};
