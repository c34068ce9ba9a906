//! Seeing what happens: what is compiled and executed, and why.

pub(crate) mod log;
