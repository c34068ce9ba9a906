//! The executable cache: each distinct program is compiled once per process.

mod key;
mod why;
mod words;

pub(crate) use key::Placement;

use crate::compiled::{CompilerOption, FunctionOptions};
use crate::debug::checks::Checks;
use crate::debug::log;
use crate::debug::{Memory, Part, Size};
use crate::hash::Map;
use crate::lower::{self, Argument, Extent, Lowered};
use crate::sync::{Cause, LastNumbers, Spread};
use crate::trace::Recording;
use crate::ty::{Ty, ty};
use key::Key;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Instant;
use why::Difference;
use words::Words;
use xla_core::{Error, Result};
use xla_runtime::metrics::{self, Counter, Metric, Scope};
use xla_runtime::{Client, CompileOptions, Executable, OptionValue, Signature};

/// The name of the modules that are compiled.
pub(crate) const NAME: &str = "xla_rs";

/// A compiled program and how to call it.
pub(crate) struct Program {
    words: Words,
    compiled: OnceLock<Result<Compiled>>,
}

pub(crate) struct Compiled {
    pub(crate) executable: Executable,
    pub(crate) arguments: Vec<Argument>,
    /// How the results are spread over the mesh, where the program is for one.
    pub(crate) results: Vec<Spread>,
    /// Positions, among the arguments, of those that may be overwritten.
    pub(crate) donated: Vec<usize>,
    pub(crate) size: Size,
    /// What the results beyond the extent's tell.
    pub(crate) checks: Checks,
    pub(crate) numbers: LastNumbers,
}

/// Programs that are remembered for a line, to say how a new one differs.
const OF_A_LINE: usize = 16;

#[derive(Default)]
struct Cache {
    programs: Map<Key, Vec<Arc<Program>>>,
    /// The latest programs that each line had compiled, oldest first.
    lines: HashMap<Cause, VecDeque<Weak<Program>>>,
}

impl Cache {
    fn lock() -> MutexGuard<'static, Cache> {
        static CACHE: OnceLock<Mutex<Cache>> = OnceLock::new();
        CACHE
            .get_or_init(Mutex::default)
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a new program and returns those that the same line had compiled before.
    fn note(&mut self, cause: Cause, program: &Arc<Program>) -> Vec<Arc<Program>> {
        let known = self.lines.entry(cause).or_default();
        let earlier = known.iter().filter_map(Weak::upgrade).collect();
        if known.len() == OF_A_LINE {
            known.pop_front();
        }
        known.push_back(Arc::downgrade(program));
        earlier
    }
}

/// Forgets all programs that nobody runs just now.
pub(crate) fn clear() {
    let forgotten = std::mem::take(&mut *Cache::lock());
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
    let (program, earlier) = {
        let mut cache = Cache::lock();
        let bucket = cache.programs.entry(key.clone()).or_default();
        match bucket.iter().find(|p| p.words.matches(recording, extent)) {
            Some(program) => (Arc::clone(program), None),
            None => {
                let program = Arc::new(Program {
                    words: Words::of(recording, extent),
                    compiled: OnceLock::new(),
                });
                bucket.push(Arc::clone(&program));
                let earlier = cache.note(cause, &program);
                (program, Some(earlier))
            }
        }
    };
    let why = match earlier {
        Some(earlier) => {
            let why = program.difference(&earlier);
            metrics::add_with(Counter::UncachedCompile, 1, || match &why {
                Some(difference) => difference.to_string(),
                None => "the first program of this line".into(),
            });
            why
        }
        None => {
            metrics::add(Counter::CachedCompile, 1);
            None
        }
    };
    let outcome = program
        .compiled
        .get_or_init(|| compile(recording, extent, &key.placement, cause, why.as_ref()))
        .as_ref();
    if let Err(error) = outcome {
        let error = error.clone();
        if let Some(bucket) = Cache::lock().programs.get_mut(&key) {
            bucket.retain(|p| !Arc::ptr_eq(p, &program));
        }
        return Err(error);
    }
    Ok(program)
}

impl Program {
    /// How it differs from the nearest of the programs of its line, if there are any.
    fn difference(&self, earlier: &[Arc<Program>]) -> Option<Difference> {
        let nearest = earlier.iter().max_by_key(|p| p.words.common(&self.words))?;
        Some(why::difference(&nearest.words, &self.words))
    }

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
    why: Option<&Difference>,
) -> Result<Compiled> {
    let function = recording.function.as_deref();
    let began = Instant::now();
    let scope = Scope::new();
    let (lowered, executable, results) = built(recording, extent, placement, function)?;
    Metric::InputOutputAliasCount.record(lowered.donated.len() as f64);
    let size = Size {
        operators: lowered.operators,
        arguments: Part::of(lowered.arguments.iter().map(|(_, ty)| *ty)),
        results: Part::of(lowered.results.iter().copied()),
        donated: Part::of(lowered.donated.iter().map(|&at| lowered.arguments[at].1)),
        memory: executable.memory_stats().map(|m| Memory {
            temporaries: m.temporaries,
            code: m.generated_code,
        }),
    };
    if log::is_on() {
        let seconds = began.elapsed().as_secs_f64();
        let made = match scope.count(Counter::PersistentCacheHit) {
            0 => "compiled",
            _ => "loaded from the persistent cache",
        };
        log::print(format_args!("{made} for {cause} in {seconds:.3} s: {size}"));
        if let Some(why) = why {
            log::print(format_args!("  why again: {why}"));
        }
    }
    let arguments: Vec<Argument> = lowered.arguments.iter().map(|(a, _)| *a).collect();
    Ok(Compiled {
        executable,
        size,
        arguments,
        results,
        donated: lowered.donated,
        checks: lowered.checks,
        numbers: LastNumbers::default(),
    })
}

/// The program of a recording and, where it is for a mesh, how its results are spread.
fn built(
    recording: &Recording,
    extent: &Extent,
    placement: &Placement,
    function: Option<&FunctionOptions>,
) -> Result<(Lowered, Executable, Vec<Spread>)> {
    let lowering = Metric::LowerTime.start();
    let lowered = lower::lower(recording, extent, placement, name_of(function))?;
    lowering.stop();
    let executable = executable(&lowered, placement, function)?;
    let Some(partitioned) = placement.partitioned() else {
        return Ok((lowered, executable, Vec::new()));
    };
    let live = extent.live.iter();
    let mut types: Vec<Ty> = live.map(|&i| recording.nodes[i as usize].ty).collect();
    types.extend(lowered.results.iter().skip(types.len()));
    let chosen = match partitioned.mesh.len() {
        1 => Vec::new(),
        _ => executable.output_shardings()?,
    };
    match partitioned.spreads(&chosen, &types) {
        Ok(results) => Ok((lowered, executable, results)),
        Err(other) => {
            let placement = Placement::Partitioned(Box::new(other));
            built(recording, extent, &placement, function)
        }
    }
}

/// What the program is called.
pub(crate) fn name_of(function: Option<&FunctionOptions>) -> &'static str {
    function.map_or(NAME, |function| function.name)
}

fn executable(
    lowered: &Lowered,
    placement: &Placement,
    function: Option<&FunctionOptions>,
) -> Result<Executable> {
    let (signature, options) = given(lowered, placement, function)?;
    let compiled = Client::global()?.compile(&lowered.text, &signature, &options);
    compiled.map_err(|e| match e {
        Error::Pjrt { message, .. } => Error::Compile {
            name: name_of(function).into(),
            nodes: lowered.operators,
            message,
        },
        other => other,
    })
}

/// How many devices this process can run programs on.
///
/// # Errors
/// Those of [`Client::global`].
pub(crate) fn real_device_count() -> Result<usize> {
    Ok(Client::global()?.devices().len())
}

/// What the compiler is given besides the program's text.
///
/// # Errors
/// Those of [`Client::global`].
pub(crate) fn given(
    lowered: &Lowered,
    placement: &Placement,
    function: Option<&FunctionOptions>,
) -> Result<(Signature, CompileOptions)> {
    let types = |list: &mut dyn Iterator<Item = Ty>| {
        list.map(|t| (t.dtype(), t.shape().clone()))
            .collect::<Vec<_>>()
    };
    // An execution takes what one device stores of each argument.
    let stored = |&(argument, t): &(Argument, Ty)| match (argument, placement.partitioned()) {
        (Argument::Param(position), Some(partitioned)) => {
            let sharding = partitioned.parameter(position);
            ty(t.dtype(), &sharding.shard_shape(t.shape()))
        }
        _ => t,
    };
    let signature = Signature {
        inputs: types(&mut lowered.arguments.iter().map(stored)),
        outputs: types(&mut lowered.results.iter().copied()),
    };
    let mut options = match placement {
        Placement::Portable => CompileOptions::default(),
        Placement::Replicas(devices) => CompileOptions {
            device_assignment: devices.clone(),
            ..CompileOptions::replicated(devices.len())
        },
        Placement::Partitioned(partitioned) => CompileOptions {
            device_assignment: partitioned.mesh.devices().to_vec(),
            propagate_to_outputs: partitioned.chosen(lowered.results.len()),
            ..CompileOptions::partitioned(partitioned.mesh.len(), partitioned.shardy)
        },
    };
    options.donated = lowered.donated.clone();
    if Client::global()?.platform_name() == "cpu" {
        // XLA's CPU compiler otherwise takes `maximum(x, NaN)` for `x`.
        options.overrides.insert(
            "xla_cpu_enable_fast_min_max".into(),
            OptionValue::Bool(false),
        );
    }
    for (name, value) in function.iter().flat_map(|function| &function.compiler) {
        let value = match value.clone() {
            CompilerOption::Bool(value) => OptionValue::Bool(value),
            CompilerOption::Int(value) => OptionValue::Int(value),
            CompilerOption::Float(value) => OptionValue::Float(value),
            CompilerOption::Text(value) => OptionValue::String(value),
        };
        options.overrides.insert(name.clone(), value);
    }
    Ok((signature, options))
}

/// What XLA makes of a program, in HLO's text form.
///
/// # Errors
/// The compiler's; [`Error::Pjrt`] where the plugin does not export its programs.
pub(crate) fn optimized_hlo(lowered: &Lowered, placement: &Placement) -> Result<String> {
    executable(lowered, placement, None)?
        .optimized_hlo()?
        .to_text()
}
