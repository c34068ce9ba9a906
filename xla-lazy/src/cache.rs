//! The executable cache: each distinct program is compiled once per process.

use crate::hash::{self, Hash128};
use crate::lower::{self, Argument, Extent};
use crate::op::OpEntry;
use crate::trace::Recording;
use crate::ty::Ty;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use xla_core::{Error, Result};
use xla_runtime::{Client, CompileOptions, Executable, OptionValue, Signature};

/// Where a program runs.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Placement {
    /// On whichever device its arguments are.
    Portable,
    /// As one replica for each of these devices, in this order.
    Replicas(Vec<usize>),
}

/// What makes two programs the same. Nothing in it depends on addresses, timing or the order of a
/// hash map, so it is the same on every rank and every run.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    operators: Hash128,
    outputs: Hash128,
    donors: Hash128,
    ordered: bool,
    placement: Placement,
}

impl Key {
    fn new(recording: &Recording, extent: &Extent, placement: Placement) -> Self {
        let list = |items: &[u32]| hash::extend(hash::SEED, items);
        Key {
            operators: recording.chain[extent.len - 1],
            outputs: list(&extent.live),
            donors: list(&extent.donors),
            ordered: extent.ordered,
            placement,
        }
    }
}

/// The words that were hashed, to be compared when a key is met again: equal hashes alone never
/// make two programs one.
struct Log {
    nodes: Vec<(&'static OpEntry, Ty, u32, u16)>,
    operands: Vec<u32>,
    extent: Extent,
    numbers: [usize; 3],
    rebound: Vec<Option<u32>>,
}

impl Log {
    fn of(recording: &Recording, extent: &Extent) -> Self {
        Log {
            nodes: recording.nodes[..extent.len]
                .iter()
                .map(|n| {
                    let (first, count) = recording.operand_range(n);
                    (n.entry, n.ty, first, count)
                })
                .collect(),
            operands: recording.operand_words()[..operands_of(recording, extent.len)].to_vec(),
            extent: extent.clone(),
            numbers: extent.numbers(recording),
            rebound: rebound(recording, extent).collect(),
        }
    }

    fn matches(&self, recording: &Recording, extent: &Extent) -> bool {
        self.extent == *extent
            && self.numbers == extent.numbers(recording)
            && self.operands == recording.operand_words()[..operands_of(recording, extent.len)]
            && self
                .nodes
                .iter()
                .zip(&recording.nodes)
                .all(|(logged, node)| {
                    std::ptr::eq(logged.0, node.entry)
                        && std::ptr::eq(logged.1, node.ty)
                        && (logged.2, logged.3) == recording.operand_range(node)
                })
            && self.rebound.iter().copied().eq(rebound(recording, extent))
    }
}

fn operands_of(recording: &Recording, len: usize) -> usize {
    let (first, count) = recording.operand_range(&recording.nodes[len - 1]);
    first as usize + count as usize
}

/// Which output each donor becomes: part of the program.
fn rebound<'a>(recording: &'a Recording, extent: &'a Extent) -> impl Iterator<Item = Option<u32>> {
    extent
        .donors
        .iter()
        .map(|&d| recording.params[d as usize].rebound)
}

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
        .get_or_init(|| compile(recording, extent, &key.placement))
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

fn compile(recording: &Recording, extent: &Extent, placement: &Placement) -> Result<Compiled> {
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
    Ok(Compiled {
        executable,
        arguments: lowered.arguments.iter().map(|(a, _)| *a).collect(),
        donated: lowered.donated,
    })
}
