//! XLA for Rust.
