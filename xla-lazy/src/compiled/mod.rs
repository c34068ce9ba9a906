//! Compiled functions: recorded once for each kind of arguments, then run without being called.
//!
//! The first call is an ordinary one: the function records, one program is compiled and executed.
//! Besides, it is noted (`tracing`) what the recording does not say, and from both follows
//! (`graph`) where each input of the program comes from and where each result goes. A later call of
//! the same kind looks the values up there, runs the program, and puts the results away (`replay`).

mod arguments;
mod call;
mod graph;
mod kind;
mod number;
mod options;
mod replay;
mod state;
mod tracing;
mod tree;

pub use number::HostNumber;
pub use options::CompilerOption;
pub(crate) use options::FunctionOptions;
pub use state::{Notes, OwnerId, State, StateVisitor};
pub(crate) use tracing::{check, interrupted, is_active, made};
pub use tree::{Flat, Parts, Tree};

use kind::Graph;
use options::{Options, interned};
use std::fmt;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::panic::Location;
use xla_core::Result;

/// A function that is recorded once for each kind of arguments and state, and then runs as one
/// program, without any of its code: what `torch.compile` and `jax.jit` are elsewhere.
///
/// The function is called with its state, which it may change, and its arguments:
///
/// ```no_run
/// use xla_core::DType;
/// use xla_lazy::{Generator, Tensor, compile};
/// # fn demo(weight: Tensor, generator: Generator, batches: Vec<(Tensor, Tensor)>) -> xla_core::Result<()> {
/// let mut step = compile(
///     |(weight, generator): &mut (Tensor, Generator), (x, y, rate): (Tensor, Tensor, Tensor)| {
///         let noise = generator.randn(x.shape(), DType::F32)?;
///         let loss = (&x + &noise)?.matmul(weight)?.sub(&y)?.square()?.mean((), false)?;
///         loss.backward()?;
///         let gradient = weight.grad().map(|g| g.mul(&rate)).transpose()?;
///         if let Some(change) = gradient {
///             xla_lazy::no_grad(|| weight.sub_(&change))?;
///         }
///         weight.zero_grad();
///         Ok(loss)
///     },
/// )
/// .name("train");
/// let mut state = (weight, generator);
/// for (x, y) in batches {
///     let loss = step.call(&mut state, (x, y, 0.1))?;
/// }
/// # Ok(())
/// # }
/// ```
///
/// # What may vary
/// * **Arguments**: tensors, and numbers, which are scalar tensors inside ([`Tree`]). What the
///   function does to them in place does not reach the caller's tensors, and no gradient flows
///   through them.
/// * **State** ([`State`]): modules, optimizers with their learning rates and step counts,
///   generators, tensors. Its values are read, and changed in place, where they are at each call.
/// * **Captured tensors** are read at each call from where they are, and may be changed in place.
///   Captured numbers, and tensors that the function makes from host data, are constants.
/// * Code that does anything else than record (printing, counting) runs only while it is recorded.
///
/// What distinguishes graphs is: the arguments' dtypes, shapes and device, flags and lengths among
/// them, which tensors the state has and which of them have gradients, the facts that it shows
/// (training or evaluation), and whether gradients are recorded.
///
/// Results are values of their own, to which no gradient flows.
///
/// # What it must not do
/// Read a value, or [`sync`](crate::sync): then something would have to be executed in the middle.
/// Such a function, or one that leaves a tensor somewhere else than in its results and its state, is
/// called each time as ordinary code, and a warning says so once; with
/// [`full_graph`](Compiled::full_graph) it is an error.
///
/// # Collectives
/// Each replica has a compiled function of its own. At each call the replicas meet, compare and vote
/// as they do for what is recorded by hand; one that runs something else is an error on all.
pub fn compile<F, S, I, T>(function: F) -> Compiled<F, S, I, T>
where
    F: FnMut(&mut S, I) -> Result<T>,
    S: State,
    T: Tree<Inside = T>,
{
    Compiled::new(function)
}

/// [`compile`] for a function without a state, which only reads what it captures.
///
/// ```no_run
/// use xla_lazy::{Tensor, compile_fn};
/// # fn demo(x: Tensor) -> xla_core::Result<()> {
/// let mut normalise = compile_fn(|x: Tensor| x.sub(&x.mean((), false)?)?.div(&x.std((), 1, false)?));
/// let y = normalise.call(&x)?;
/// # Ok(())
/// # }
/// ```
pub fn compile_fn<F, I, T>(function: F) -> Compiled<F, Stateless, I, T>
where
    F: FnMut(I) -> Result<T>,
    T: Tree<Inside = T>,
{
    Compiled::new(function)
}

/// Whether the calling thread is recording a compiled function: what the code that asks does besides
/// recording will not be done at later calls.
pub fn is_compiling() -> bool {
    is_active()
}

/// In the place of a state: a function that has none.
#[derive(Debug)]
pub enum Stateless {}

/// A compiled function; [`compile`] makes one.
pub struct Compiled<F, S, I, T> {
    function: F,
    options: Options,
    graphs: Vec<Graph>,
    recordings: usize,
    signature: PhantomData<fn(&mut S, I) -> T>,
}

impl<F, S, I, T> Compiled<F, S, I, T> {
    fn new(function: F) -> Self {
        Compiled {
            function,
            options: Options::default(),
            graphs: Vec::new(),
            recordings: 0,
            signature: PhantomData,
        }
    }

    /// What errors, warnings and the compiler call it: `compiled` unless set.
    #[must_use]
    pub fn name(mut self, name: &str) -> Self {
        self.options.function.name = interned(name);
        self
    }

    /// Whether all of the function must be one program: `false` unless set. Whatever would execute
    /// something inside is then [`Error::GraphBreak`](xla_core::Error::GraphBreak), with the line.
    #[must_use]
    pub fn full_graph(mut self, full_graph: bool) -> Self {
        self.options.full_graph = full_graph;
        self
    }

    /// For how many kinds of arguments the function may be recorded; no limit unless set. A call that
    /// needs one more is [`Error::TooManyGraphs`](xla_core::Error::TooManyGraphs).
    #[must_use]
    pub fn max_different_graphs(mut self, limit: usize) -> Self {
        self.options.max_different_graphs = Some(limit);
        self
    }

    /// Sets one of XLA's debug options for the programs of this function, by its name, such as
    /// `xla_cpu_enable_fast_math`. One that XLA does not know is an error of the first call.
    #[must_use]
    pub fn compiler_option(mut self, name: &str, value: impl Into<CompilerOption>) -> Self {
        let options = &mut self.options.function.compiler;
        options.insert(name.into(), value.into());
        self
    }

    /// After how many calls of a kind the function is called once more, to see whether it still
    /// records the same: 16 unless set, and never in a build without debug assertions. A number that
    /// it has captured and that has changed is then
    /// [`Error::CapturedNumber`](xla_core::Error::CapturedNumber), another operator
    /// [`Error::CapturedChoice`](xla_core::Error::CapturedChoice). 0 means never.
    #[must_use]
    pub fn verify_every(mut self, calls: u32) -> Self {
        self.options.verify_every = NonZeroU32::new(calls);
        self
    }

    /// How often the function has been called to be recorded, or because it cannot be.
    pub fn recordings(&self) -> usize {
        self.recordings
    }

    /// For how many kinds of arguments there is a graph now.
    pub fn graphs(&self) -> usize {
        self.graphs.len()
    }
}

impl<F, S, I, T> Compiled<F, S, I, T>
where
    F: FnMut(&mut S, I) -> Result<T>,
    S: State,
    T: Tree<Inside = T>,
{
    /// Calls the function, and starts the program that it is. The results are tensors that are being
    /// computed; nothing waits for them. What has been recorded before is executed before.
    ///
    /// # Errors
    /// Those of the function itself while it is recorded; [`Error::GraphBreak`],
    /// [`Error::TooManyGraphs`], [`Error::CapturedNumber`] and [`Error::CapturedChoice`] as the
    /// options say; [`Error::IndexOutOfRange`] for an index among the arguments; otherwise as
    /// [`sync`](crate::sync).
    ///
    /// [`Error::GraphBreak`]: xla_core::Error::GraphBreak
    /// [`Error::TooManyGraphs`]: xla_core::Error::TooManyGraphs
    /// [`Error::CapturedNumber`]: xla_core::Error::CapturedNumber
    /// [`Error::CapturedChoice`]: xla_core::Error::CapturedChoice
    /// [`Error::IndexOutOfRange`]: xla_core::Error::IndexOutOfRange
    #[track_caller]
    pub fn call(&mut self, state: &mut S, arguments: impl Tree<Inside = I>) -> Result<T> {
        self.call_with(
            state,
            arguments,
            Location::caller(),
            |function, state, inside| function(state, inside),
        )
    }
}

impl<F, I, T> Compiled<F, Stateless, I, T>
where
    F: FnMut(I) -> Result<T>,
    T: Tree<Inside = T>,
{
    /// As for a function with a state.
    ///
    /// # Errors
    /// As there.
    #[track_caller]
    pub fn call(&mut self, arguments: impl Tree<Inside = I>) -> Result<T> {
        self.call_with(
            &mut (),
            arguments,
            Location::caller(),
            |function, (), inside| function(inside),
        )
    }
}

impl<F, S, I, T> fmt::Debug for Compiled<F, S, I, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled")
            .field("name", &self.options.function.name)
            .field("graphs", &self.graphs.len())
            .field("recordings", &self.recordings)
            .finish_non_exhaustive()
    }
}
