//! Control flow on the device: loops whose body is recorded once, and barriers.
//!
//! A loop is one operator with several results. Each result is a node of its own with all operands;
//! lowering writes the loop once for all of them.

mod barrier;
mod derivative;
pub(super) mod hub;
mod looped;
mod run;
mod scan;
#[cfg(test)]
mod tests;
mod while_loop;

pub(crate) use barrier::after;
pub use barrier::optimization_barrier;
pub use scan::{ScanOptions, fori_loop, scan, scan_with};
pub use while_loop::{WhileOptions, while_loop, while_loop_with};
