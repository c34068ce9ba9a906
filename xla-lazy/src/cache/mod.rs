//! The executable cache: each distinct program is compiled once per process.

mod key;
mod words;

pub(crate) use key::Placement;

use crate::debug::log;
use crate::lower::{self, Argument, Extent};
use crate::sync::Cause;
use crate::trace::Recording;
use crate::ty::Ty;
use key::Key;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use words::Log;
use xla_core::{Error, Result};
use xla_runtime::{Client, CompileOptions, Executable, OptionValue, Signature};

/// A compiled program and how to call it.
pub(crate) struct Program {
    log: Log,
    compiled: OnceLock<Result<Compiled>>,
}

pub(crate) struct Compiled {
    pub(crate) executable: Executable,
    pub(crate) arguments: Vec<Argument>,
    /// Positions, among the arguments, of those that may be overwritten.
    pub(crate) donated: Vec<usize>,
}

type Programs = Mutex<HashMap<Key, Vec<Arc<Program>>>>;

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(Mutex::default)
}

/// Forgets all programs that nobody runs just now.
pub(crate) fn clear() {
    let forgotten = std::mem::take(&mut *programs().lock().unwrap_or_else(PoisonError::into_inner));
    // Freed without the lock: that calls the plugin.
    drop(forgotten);
}

/// The program of a recording, compiled if no replica has compiled it yet. Replicas that ask at the
/// same time wait for one compilation.
///
/// # Errors
/// [`Error::Compile`], or what lowering returns. A failure is not kept: the next call tries again.
pub(crate) fn program(
    recording: &Recording,
    extent: &Extent,
    placement: Placement,
    cause: Cause,
) -> Result<Arc<Program>> {
    let key = Key::new(recording, extent, placement);
    let program = {
        let mut map = programs().lock().unwrap_or_else(PoisonError::into_inner);
        let bucket = map.entry(key.clone()).or_default();
        match bucket.iter().find(|p| p.log.matches(recording, extent)) {
            Some(program) => Arc::clone(program),
            None => {
                let log = Log::of(recording, extent);
                let program = Arc::new(Program {
                    log,
                    compiled: OnceLock::new(),
                });
                bucket.push(Arc::clone(&program));
                program
            }
        }
    };
    let outcome = program
        .compiled
        .get_or_init(|| compile(recording, extent, &key.placement, cause))
        .as_ref();
    if let Err(error) = outcome {
        let error = error.clone();
        let mut map = programs().lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = map.get_mut(&key) {
            bucket.retain(|p| !Arc::ptr_eq(p, &program));
        }
        return Err(error);
    }
    Ok(program)
}

impl Program {
    /// The compiled form.
    ///
    /// # Errors
    /// None for a program that [`program`] returned.
    pub(crate) fn compiled(&self) -> Result<&Compiled> {
        match self.compiled.get() {
            Some(Ok(compiled)) => Ok(compiled),
            Some(Err(error)) => Err(error.clone()),
            None => Err(Error::Internal {
                what: "cache",
                expected: "a compiled program".into(),
            }),
        }
    }
}

fn compile(
    recording: &Recording,
    extent: &Extent,
    placement: &Placement,
    cause: Cause,
) -> Result<Compiled> {
    let name = "xla_rs";
    let lowered = lower::lower(recording, extent, name)?;
    let types = |list: &mut dyn Iterator<Item = Ty>| {
        list.map(|t| (t.dtype(), t.shape().clone()))
            .collect::<Vec<_>>()
    };
    let signature = Signature {
        inputs: types(&mut lowered.arguments.iter().map(|(_, t)| *t)),
        outputs: types(&mut lowered.results.iter().copied()),
    };
    let mut options = match placement {
        Placement::Portable => CompileOptions::default(),
        Placement::Replicas(devices) => CompileOptions {
            device_assignment: devices.clone(),
            ..CompileOptions::replicated(devices.len())
        },
    };
    options.donated = lowered.donated.clone();
    let client = Client::global()?;
    if client.platform_name() == "cpu" {
        // XLA's CPU compiler otherwise takes `maximum(x, NaN)` for `x`.
        options.overrides.insert(
            "xla_cpu_enable_fast_min_max".into(),
            OptionValue::Bool(false),
        );
    }
    let executable = client
        .compile(&lowered.text, &signature, &options)
        .map_err(|e| match e {
            Error::Pjrt { message, .. } => Error::Compile {
                name: name.into(),
                nodes: lowered.operators,
                message,
            },
            other => other,
        })?;
    if log::is_on() {
        log::print(format_args!(
            "compiled {} operators, {} arguments, {} results for {cause}",
            lowered.operators,
            lowered.arguments.len(),
            lowered.results.len(),
        ));
    }
    Ok(Compiled {
        executable,
        arguments: lowered.arguments.iter().map(|(a, _)| *a).collect(),
        donated: lowered.donated,
    })
}
