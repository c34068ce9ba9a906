//! Starts the replicas of a program and supervises them.
//!
//! [`launch`] runs one function once for each device and returns when every replica has returned,
//! with the error of the replica that failed first, if one did. The function does not know how it is
//! run: [`plan`] decides that from options, environment and device count, without starting anything,
//! and [`Launcher`] does what the plan says. The same `main` serves a thread a device, processes
//! that this crate starts, torchrun and other launchers, notebooks, and one call in a debugger.
//!
//! By default replicas are threads of one process, because they then share one PJRT client: one
//! compile serves all of them, and collectives never leave the process. Processes are for replicas
//! that need an address space of their own, and for more than one machine; `xlarun` starts those
//! where there is no torchrun.
//!
//! Nothing here knows what a tensor is: the crate depends on `xla-core`, `xla-store` and
//! `xla-runtime` only.
#![forbid(unsafe_code)]

pub mod agent;
pub mod plan;

mod external;
mod failure;
mod launcher;
mod panics;
mod process;
mod supervise;
mod thread;

pub use launcher::Launcher;
pub use plan::{Options, Plan, StartMethod};

use std::error::Error as StdError;
use xla_core::Result;

/// Any error a replica's function may return.
type BoxError = Box<dyn StdError + Send + Sync>;

/// Runs `f(rank)` once for each device and waits for all of them:
/// [`Launcher::run_serialized`] with nothing set.
///
/// # Errors
/// As [`Launcher::run_serialized`].
pub fn launch<F, E>(f: F) -> Result<()>
where
    F: Fn(usize) -> std::result::Result<(), E> + Send + Sync,
    E: Into<BoxError>,
{
    Launcher::new().run_serialized(f).map(drop)
}
