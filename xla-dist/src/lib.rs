//! dist
#![forbid(unsafe_code)]
mod gang;
