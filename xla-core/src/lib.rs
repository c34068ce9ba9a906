//! The vocabulary that every other crate of *xla for Rust* speaks: dtypes, shapes and their
//! broadcasting rules, blocks of arrays, host literals, device names, typed errors, and configuration
//! that is read from the environment once.
//!
//! Nothing here talks to a device, opens a file or contains `unsafe` code. A program that only
//! wants to describe data (a data loader, say) can depend on this crate alone.
#![forbid(unsafe_code)]

pub mod blocks;
pub mod config;
mod device;
mod dtype;
mod error;
mod literal;
mod memory;
mod shape;
mod tiling;

pub use config::Config;
pub use device::{Device, DeviceKind};
pub use dtype::{Category, DType, Element};
pub use error::{DTypeConflict, Error, Result, ShapeConflict, Site};
pub use half::{bf16, f16};
pub use literal::Literal;
pub use memory::LiveTensor;
pub use shape::{Axes, Dims, IntoAxes, IntoDims, IntoShape, Shape};
pub use tiling::Tiling;
