//! How a compiled function is recorded and compiled.

use crate::hash::{self, Hash128};
use std::collections::BTreeMap;
use std::collections::HashSet;
use std::num::NonZeroU32;
use std::sync::{Mutex, OnceLock, PoisonError};

/// The value of one of XLA's options.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum CompilerOption {
    /// A truth value.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A number.
    Float(f64),
    /// Text.
    Text(String),
}

macro_rules! from {
    ($($t:ty => $variant:ident),*) => {$(
        impl From<$t> for CompilerOption {
            fn from(value: $t) -> Self {
                CompilerOption::$variant(value.into())
            }
        }
    )*};
}

from!(bool => Bool, i32 => Int, i64 => Int, f64 => Float, &str => Text, String => Text);

/// What a recording knows of the compiled function that it is of.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct FunctionOptions {
    pub(crate) name: &'static str,
    /// XLA's options, by name.
    pub(crate) compiler: BTreeMap<String, CompilerOption>,
}

impl FunctionOptions {
    /// Where the hash of the program begins: programs with other options are others.
    pub(crate) fn seed(&self) -> Hash128 {
        if self.compiler.is_empty() {
            return hash::SEED;
        }
        hash::extend(hash::SEED, &format!("{:?}", self.compiler))
    }
}

/// The options of one compiled function.
pub(super) struct Options {
    pub(super) function: FunctionOptions,
    pub(super) full_graph: bool,
    pub(super) max_different_graphs: Option<usize>,
    /// After how many calls of a graph the function is called once more, to compare.
    pub(super) verify_every: Option<NonZeroU32>,
}

impl Default for Options {
    fn default() -> Self {
        let every = if cfg!(debug_assertions) { 16 } else { 0 };
        Options {
            function: FunctionOptions {
                name: "compiled",
                compiler: BTreeMap::new(),
            },
            full_graph: false,
            max_different_graphs: None,
            verify_every: NonZeroU32::new(every),
        }
    }
}

/// A name that lives as long as the process; equal ones are one.
pub(super) fn interned(name: &str) -> &'static str {
    static NAMES: OnceLock<Mutex<HashSet<&'static str>>> = OnceLock::new();
    let names = NAMES.get_or_init(Mutex::default);
    let mut names = names.lock().unwrap_or_else(PoisonError::into_inner);
    match names.get(name) {
        Some(known) => known,
        None => {
            let new: &'static str = Box::leak(name.into());
            names.insert(new);
            new
        }
    }
}
