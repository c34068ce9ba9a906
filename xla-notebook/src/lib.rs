//! The `xla` crate as one shared library, for notebooks.
//!
//! evcxr compiles each cell to a library of its own and loads it into the running session. With an
//! ordinary dependency every cell carries a copy of it, and so a device client, traces and process
//! groups of its own: a tensor of one cell would be a stranger in the next. A shared library is
//! loaded once, and all cells see the same state:
//!
//! ```text
//! :dep xla = { package = "xla-notebook", path = "…/xla-notebook" }
//! ```
//!
//! The cells then say `xla::` as any program does.
#![forbid(unsafe_code)]

pub use xla::*;
