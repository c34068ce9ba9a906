//! Custom calls: Rust functions that compiled programs call with their values in host memory.
//!
//! A program calls a handler by its registered name, with `api_version = 4` and its attributes in
//! `backend_config`:
//!
//! ```mlir
//! %0 = stablehlo.custom_call @my_crate_negate(%a) {
//!   has_side_effect = true, api_version = 4 : i32,
//!   backend_config = {k = 7 : i64, groups = array<i64: 0, 1>, name = "sum"}
//! } : (tensor<4xf32>) -> tensor<4xf32>
//! ```
//!
//! Without `has_side_effect` XLA merges equal calls and drops those whose result nobody reads.
//! A handler has to be registered before a program that calls it is compiled or loaded.
//!
//! # Handlers
//! A handler runs once for each replica and execution. It cannot fail: a replica that returned an error would leave the
//! others in their next collective, where XLA ends the process. A handler that has nothing to
//! return fills its outputs with something and says so elsewhere. One that panics is logged and
//! its outputs are zeros; nothing unwinds into the plugin.
//!
//! # Waiting in a handler
//! A handler may wait, for instance until those of other replicas have come. What that holds up was
//! measured with three CPU plugins (PJRT API 0.81, 0.106 and 0.115):
//! * It runs on a thread of the client, or, where the program is small, runs on one device and its
//!   arguments are ready, on the caller's: then `execute` itself returns only when the handler has.
//! * Executions on one device run in the order in which they were started: with two in flight on each
//!   of `T` devices, `T` handlers wait, not `2 T`. A thread more than devices is therefore enough
//!   for other work to go on; [`set_cpu_threads`](crate::set_cpu_threads) asks for more. Reading a
//!   value that is ready, uploads and compilation never wait.
//! * Executions of programs of *several replicas* are ordered over the whole client, also when their
//!   devices differ (but not in API 0.81): the second group's program waits for the first group's.
//!   Two processes that start the programs of two groups in different orders would then wait for
//!   each other in handlers until a deadline. So a program whose handlers wait for another process is
//!   to be compiled for one device (a portable one: [`CompileOptions::default`]) and started on each
//!   of its devices with a common launch id; programs of one device are ordered on that device only.
//!
//! [`CompileOptions::default`]: crate::CompileOptions
//!
//! Handlers are for CPU plugins: only there are a program's values in host memory.

mod call;
mod frame;
mod raw;

pub use call::{Call, Input, Output};

use crate::call::Extended;
use crate::plugin::Plugin;
use std::any::TypeId;
use std::collections::HashMap;
use std::ffi::c_void;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use xla_core::{Error, Result};

/// The platform that handlers are registered for, under the name that every version accepts.
const PLATFORM: &str = "Host";

/// Handlers by plugin and name. The plugins themselves ignore a second registration silently.
static REGISTERED: Mutex<Option<HashMap<(PathBuf, &'static str), TypeId>>> = Mutex::new(None);

/// Lets programs compiled by `plugin` call `handler` under this name. Registering the same function
/// again does nothing.
///
/// The plugin calls a bare C function, so `handler` must be a function's name or a closure that
/// captures nothing; others do not compile.
///
/// # Errors
/// [`Error::Unsupported`] for a plugin without custom calls of this kind, or whose PJRT API is older than
/// 0.81; [`Error::Argument`] for a
/// name that another function has, since a registration cannot be taken back; [`Error::Pjrt`] with
/// the plugin's words, also when its interface is older than version 0.2 of XLA's FFI.
///
/// ```
/// use std::time::Duration;
/// use xla_core::{DType, Literal, Shape};
/// use xla_runtime::{Client, CompileOptions, ExecuteOptions, Signature, ffi};
///
/// fn reverse(call: &mut ffi::Call<'_>) {
///     let (inputs, outputs) = call.buffers();
///     for (to, from) in outputs[0].bytes.iter_mut().zip(inputs[0].bytes.iter().rev()) {
///         *to = *from;
///     }
/// }
///
/// let client = Client::global()?;
/// ffi::register(client.plugin(), "doc_reverse", reverse)?;
/// let bytes = (DType::U8, Shape::new(&[3]));
/// let program = client.compile(
///     "func.func @main(%a: tensor<3xui8>) -> tensor<3xui8> {
///        %0 = stablehlo.custom_call @doc_reverse(%a) {has_side_effect = true, api_version = 4 : i32}
///            : (tensor<3xui8>) -> tensor<3xui8>
///        return %0 : tensor<3xui8>
///      }",
///     &Signature { inputs: vec![bytes.clone()], outputs: vec![bytes] },
///     &CompileOptions::default(),
/// )?;
/// let x = client.upload_owned(Literal::from_vec(vec![1u8, 2, 3], [3])?, 0)?;
/// let run = program.execute(&[&x], &ExecuteOptions::default())?;
/// let y = run.outputs[0].to_literal(Duration::from_secs(10))?;
/// assert_eq!(y.to_vec::<u8>()?, [3, 2, 1]);
/// # Ok::<(), xla_core::Error>(())
/// ```
pub fn register<F>(plugin: &Plugin, name: &'static str, handler: F) -> Result<()>
where
    F: Fn(&mut Call<'_>) + Copy + Send + Sync + 'static,
{
    const { assert!(size_of::<F>() == 0, "a handler captures nothing") };
    let _ = handler;
    let key = (plugin.path().to_owned(), name);
    let mut registered = REGISTERED.lock().unwrap_or_else(PoisonError::into_inner);
    let registered = registered.get_or_insert_default();
    match registered.get(&key) {
        Some(known) if *known == TypeId::of::<F>() => return Ok(()),
        Some(_) => {
            return Err(Error::argument(
                "ffi::register",
                "name",
                "one that no other handler has",
                name,
            ));
        }
        None => {}
    }
    let handler: raw::Handler = frame::enter::<F>;
    let mut args = Extended::<raw::RegisterArgs>::new(|a| {
        a.target_name = name.as_ptr().cast();
        a.target_name_size = name.len();
        a.handler = handler as *mut c_void;
        a.platform_name = PLATFORM.as_ptr().cast();
        a.platform_name_size = PLATFORM.len();
    });
    // SAFETY: names are copied by the plugin; the handler has the type that typed calls have, and
    // is never unloaded.
    unsafe { plugin.api().register_ffi_handler(&mut args) }?;
    registered.insert(key, TypeId::of::<F>());
    Ok(())
}
