//! The one error type: each variant says what was called, what was expected, what was found and,
//! where it is not plain, what to do.

mod call;
mod conflict;
mod new;
mod site;
mod text;

pub use conflict::{DTypeConflict, ShapeConflict};
pub use site::Site;

use crate::memory::{LiveTensor, shortage};
use crate::{DType, Device};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use text::{indented, misfits, needed};

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, from a bad shape to a dead replica.
///
/// Clones are cheap enough to hand the error of one asynchronous step to every tensor that waited
/// for it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // Operands and arguments.
    /// Two shapes that do not broadcast.
    #[error(
        "{op}: shapes {left:?} and {right:?} do not broadcast: aligned at the last axis, lengths must be equal or 1{at}"
    )]
    Broadcast {
        /// The operator called.
        op: &'static str,
        /// Shape of the first operand.
        left: Vec<usize>,
        /// Shape of the second operand.
        right: Vec<usize>,
        /// The call.
        at: Site,
    },
    /// An operand whose shape the operator cannot take.
    #[error("{op}: expected {expected}, got {got}{at}")]
    ShapeMismatch {
        /// The operator called.
        op: &'static str,
        /// What the operator takes.
        expected: String,
        /// The shapes given.
        got: String,
        /// The call.
        at: Site,
    },
    /// An axis that the operand does not have.
    #[error("{op}: axis {axis} is out of range for rank {rank}: expected {}..{rank}{at}", -(*rank as i64))]
    Axis {
        /// The operator called.
        op: &'static str,
        /// The axis asked for.
        axis: i64,
        /// Number of axes there are.
        rank: usize,
        /// The call.
        at: Site,
    },
    /// A dtype that has no meaning for the operator.
    #[error("{op}: expected {expected}, got {got}{at}")]
    DTypeMismatch {
        /// The operator called.
        op: &'static str,
        /// The dtypes it takes.
        expected: String,
        /// The dtype given.
        got: DType,
        /// The call.
        at: Site,
    },
    /// Operands on two devices.
    #[error("{op}: operands are on {left} and {right}; move one with .to(&device){at}")]
    DeviceMismatch {
        /// The operator called.
        op: &'static str,
        /// Device of the first operand.
        left: Device,
        /// Device of the other.
        right: Device,
        /// The call.
        at: Site,
    },
    /// An index beyond the axis it selects from.
    #[error("{op}: index {index} is out of range for axis {axis} of size {size}{at}")]
    IndexOutOfRange {
        /// The operator called.
        op: &'static str,
        /// The offending index.
        index: i64,
        /// The axis selected from.
        axis: usize,
        /// Its length.
        size: usize,
        /// The call.
        at: Site,
    },
    /// An argument other than a shape, axis or dtype that the function cannot take.
    #[error("{op}: {argument}: expected {expected}, got {got}{at}")]
    Argument {
        /// The function called.
        op: &'static str,
        /// The argument's name.
        argument: &'static str,
        /// What it may be.
        expected: String,
        /// What it was.
        got: String,
        /// The call.
        at: Site,
    },
    /// A differentiation that has no meaning.
    #[error("{op}: {reason}; {advice}{at}")]
    Autograd {
        /// The function called.
        op: &'static str,
        /// What is wrong.
        reason: String,
        /// What to do instead.
        advice: &'static str,
        /// The call.
        at: Site,
    },
    /// What cannot be done in the body of a loop, or with a tensor of it.
    #[error("{op}: the body is recorded once and runs on the device, so {what}: {advice}{at}")]
    InBody {
        /// The loop.
        op: &'static str,
        /// What cannot be done.
        what: &'static str,
        /// What to do instead.
        advice: &'static str,
        /// The call of the loop.
        at: Site,
    },

    // Devices, meshes and the environment.
    /// A device that does not exist.
    #[error("device xla:{asked} does not exist: this process addresses {count} device(s), xla:0 to xla:{}; set CPU_NUM_DEVICES before the first use for more CPU devices", count.saturating_sub(1))]
    NoSuchDevice {
        /// The ordinal asked for.
        asked: usize,
        /// How many there are.
        count: usize,
    },
    /// A mesh that cannot be made of the devices there are, or whose parts contradict each other.
    #[error("{op}: expected {expected}, got {got}{at}")]
    Mesh {
        /// The function called.
        op: &'static str,
        /// What the mesh may be, given its other parts and the devices.
        expected: String,
        /// What was asked for.
        got: String,
        /// The call.
        at: Site,
    },
    /// A sharding that does not fit the mesh or the tensor it is for.
    #[error("{op}: the sharding {sharding} does not fit {target}: {reason}{at}")]
    Sharding {
        /// The function called.
        op: &'static str,
        /// The sharding's specification.
        sharding: String,
        /// The mesh or the tensor.
        target: String,
        /// What does not fit.
        reason: String,
        /// The call.
        at: Site,
    },
    /// An environment variable or option with a value that has no meaning.
    #[error("{name}: expected {expected}, got {got:?}")]
    Config {
        /// The variable or option.
        name: &'static str,
        /// What it may be.
        expected: String,
        /// What it was.
        got: String,
    },

    // Plugins.
    /// No PJRT plugin was found anywhere.
    #[error(
        "no PJRT plugin for {kind} found; looked in:\n{}\ninstall one with: {install}",
        indented(looked_in)
    )]
    PluginNotFound {
        /// The kind of device wanted.
        kind: String,
        /// Every place looked in, and why it did not serve.
        looked_in: Vec<String>,
        /// The command that installs one.
        install: String,
    },
    /// A file that is no PJRT plugin.
    #[error("{} is not a PJRT plugin: {reason}", path.display())]
    PluginInvalid {
        /// The file.
        path: PathBuf,
        /// How that showed.
        reason: String,
    },
    /// A plugin older than this crate can call.
    #[error("{} speaks PJRT API {}.{}; at least {}.{} is needed: install a newer plugin", path.display(), found.0, found.1, wanted.0, wanted.1)]
    PluginTooOld {
        /// The file.
        path: PathBuf,
        /// Its API version.
        found: (i32, i32),
        /// The oldest version that works.
        wanted: (i32, i32),
    },
    /// An error that the plugin returned.
    #[error("{call}: {message} (PJRT error code {code})")]
    Pjrt {
        /// The PJRT function.
        call: &'static str,
        /// Its error code, as in `absl::StatusCode`.
        code: i32,
        /// The plugin's words.
        message: String,
    },
    /// Something the plugin does not offer.
    #[error("the plugin does not offer {what}{}", needed(*.since))]
    Unsupported {
        /// The function or extension.
        what: &'static str,
        /// The API version that brought it, (0, 0) where that is not the reason.
        since: (i32, i32),
    },

    // Programs and their execution.
    /// A program for which a device has no memory left. Nothing was executed where the sizes are
    /// known, and what was there before is still there.
    #[error(
        "out of memory on {device}: {}; drop tensors, use smaller batches, or call xla::sync() at smaller intervals",
        shortage(*.needed, *.available, message, largest)
    )]
    OutOfMemory {
        /// The device.
        device: Device,
        /// Bytes that the program needs besides its arguments; 0 where only the plugin knows.
        needed: u64,
        /// Bytes that are left; `None` where only the plugin knows.
        available: Option<u64>,
        /// The plugin's words, where it was it that found out.
        message: String,
        /// The largest tensors on the device, largest first, with the lines that made them.
        largest: Vec<LiveTensor>,
    },
    /// A program the compiler refused.
    #[error("compiling {name} ({nodes} operators) failed: {message}")]
    Compile {
        /// The program.
        name: String,
        /// Operators in it.
        nodes: usize,
        /// The compiler's words.
        message: String,
    },
    /// A trace too long to compile.
    #[error(
        "the pending program has {nodes} operators; at most {limit} compile in one program: call xla::sync() more often, for instance once an iteration"
    )]
    ProgramTooLarge {
        /// Operators recorded since the last sync.
        nodes: usize,
        /// The most that compile.
        limit: usize,
    },
    /// An argument of an execution that does not fit the program.
    #[error("argument {index} of the program: expected {expected}, got {got}")]
    ExecuteArgument {
        /// Which argument.
        index: usize,
        /// What the program takes.
        expected: String,
        /// What was given.
        got: String,
    },
    /// A buffer whose memory was given to an execution.
    #[error(
        "{what}: the buffer was donated to an earlier execution or deleted; keep a copy before donating it"
    )]
    BufferDeleted {
        /// The use that failed.
        what: &'static str,
    },
    /// A NaN, where `XLA_DEBUG=nan` looks for them.
    #[error("{op}: produced a NaN{at}{note}")]
    NotANumber {
        /// The first operator of the program with one in its result.
        op: &'static str,
        /// Where it may come from (starts with its own separator).
        note: String,
        /// The call.
        at: Site,
    },
    /// Something did not happen in time.
    #[error("{what} did not finish within {after:?}{advice}")]
    Deadline {
        /// What was waited for.
        what: String,
        /// The deadline.
        after: Duration,
        /// What to do (starts with its own separator), or nothing.
        advice: &'static str,
    },
    /// An asynchronous step that failed after `sync` returned.
    #[error("step {step} failed: {source}; its last operator, {op}, was recorded{at}")]
    Step {
        /// The step's number on its replica, from 0.
        step: u64,
        /// The last operator of the step's program.
        op: &'static str,
        /// The line that recorded it.
        at: Site,
        /// What went wrong.
        source: Arc<Error>,
    },

    // Replicas and groups.
    /// Replicas that recorded different programs.
    #[error(
        "replicas diverged at operator {index}: rank {rank} recorded {left}, rank {other_rank} recorded {right}; every rank must record the same operators up to each collective"
    )]
    Divergence {
        /// Position in the trace.
        index: usize,
        /// One rank.
        rank: usize,
        /// What it recorded, with its line.
        left: String,
        /// Another rank.
        other_rank: usize,
        /// What that one recorded, with its line.
        right: String,
    },
    /// A replica that failed while others depended on it.
    #[error("rank {rank} failed: {message}")]
    ReplicaFailed {
        /// Its global rank.
        rank: usize,
        /// Its error or panic, in its own words.
        message: String,
    },
    /// A replica that returned, or destroyed its group, while others waited for it in a collective.
    #[error(
        "{what}: rank {rank} has left the group (its function returned, or it destroyed its group), so the collective cannot complete; every rank must call the same collectives"
    )]
    ReplicaLeft {
        /// What the others were waiting in.
        what: String,
        /// The rank that left.
        rank: usize,
    },
    /// A thread that belongs to no replica while a launch runs.
    #[error(
        "{what}: this thread belongs to no replica of the running launch; carry the context over with xla::context()?.enter()"
    )]
    NoReplicaContext {
        /// The call.
        what: &'static str,
    },
    /// A pending tensor with collectives used from another replica's trace.
    #[error(
        "{op}: an operand is a pending result of another thread's trace that holds collectives; call xla::sync() there first{at}"
    )]
    ForeignTrace {
        /// The operator called.
        op: &'static str,
        /// The call.
        at: Site,
    },
    /// No process group where one is needed, or a second one.
    #[error("{what}: {state}; {advice}")]
    ProcessGroup {
        /// The call.
        what: &'static str,
        /// What state the group is in.
        state: String,
        /// What to do.
        advice: &'static str,
    },
    /// A launch that the environment or another launch does not allow.
    #[error("launch: {reason}; {advice}")]
    Launch {
        /// What forbids it.
        reason: String,
        /// What to do.
        advice: &'static str,
    },

    // Processes and what connects them.
    /// A call of the operating system that failed.
    #[error("{call}: {source}")]
    System {
        /// What was asked for.
        call: &'static str,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// A store that could not be reached, that is gone, or that did not take a request.
    #[error("{call}: the store at {address}: {reason}{advice}")]
    Store {
        /// The call.
        call: &'static str,
        /// Where the store is.
        address: String,
        /// What is wrong.
        reason: String,
        /// What to do (starts with its own separator), or nothing.
        advice: &'static str,
    },
    /// A store and a process with different tokens.
    #[error(
        "the store at {address} and this process do not agree on XLA_STORE_TOKEN: {reason}; give every process of a run the same token, or none to all"
    )]
    StoreToken {
        /// Where the store is.
        address: String,
        /// Whose token is missing or wrong.
        reason: String,
    },
    /// Processes that did not find each other.
    #[error("rendezvous through {url}: {reason}; {advice}")]
    Rendezvous {
        /// The method.
        url: String,
        /// What is wrong, and who is missing.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
    /// Processes of a group that cannot reach each other.
    #[error(
        "connecting to process {process} of the group failed: {reason}; every process must be reachable at the address from which it reaches the store, or name the interface with GLOO_SOCKET_IFNAME"
    )]
    Transport {
        /// Its index in the group; the calling process's own where it could not even listen.
        process: usize,
        /// What is wrong.
        reason: String,
    },

    // Files and saved states.
    /// A file that cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<std::io::Error>,
    },
    /// A file whose contents are not what they should be.
    #[error("{}: expected {expected}, got {got}", path.display())]
    FileFormat {
        /// The file.
        path: PathBuf,
        /// What the format asks for.
        expected: String,
        /// What the file holds.
        got: String,
    },
    /// A saved state that does not fit what it is loaded into.
    #[error(
        "{op}: the state does not fit: {}{at}",
        misfits(missing, unexpected, mismatched, mistyped)
    )]
    StateDict {
        /// The function called.
        op: &'static str,
        /// Names that the state lacks.
        missing: Vec<String>,
        /// Names that only the state has.
        unexpected: Vec<String>,
        /// Names that are in both, with different shapes.
        mismatched: Vec<ShapeConflict>,
        /// Names that are in both, with different dtypes, where values are not converted.
        mistyped: Vec<DTypeConflict>,
        /// The call.
        at: Site,
    },

    // Compiled functions.
    /// A compiled function that would have to execute something while it is recorded, or do what
    /// cannot be repeated without running it again.
    #[error(
        "compiled function {function}: {reason}; a full graph needs all of it to be recorded: take it out of the function, or do without full_graph{at}"
    )]
    GraphBreak {
        /// The function's name.
        function: String,
        /// What it does.
        reason: String,
        /// The line that does it.
        at: Site,
    },
    /// A compiled function that was called with more kinds of arguments than it may be recorded for.
    #[error("compiled function {function}: this call needs graph {} where max_different_graphs allows {limit}: {difference}; pad or drop what varies, pass numbers as arguments, or allow more{at}", limit + 1)]
    TooManyGraphs {
        /// The function's name.
        function: String,
        /// How many it may have.
        limit: usize,
        /// How this call differs from the nearest one that was recorded.
        difference: String,
        /// The call.
        at: Site,
    },
    /// A number that a compiled function has captured, and that is not what it was when the function
    /// was recorded.
    #[error(
        "compiled function {function}: a number that was {recorded} when it was recorded is now {now}; pass it as an argument, or keep it in a HostNumber of the state{at}"
    )]
    CapturedNumber {
        /// The function's name.
        function: String,
        /// The number in the program.
        recorded: f64,
        /// The number now.
        now: f64,
        /// The line that uses it.
        at: Site,
    },
    /// A compiled function that records other operators than before for arguments of the same kind.
    #[error(
        "compiled function {function}: it records another program than before for arguments of the same kind: {difference}; pass what decides it as a bool argument, or show it as a fact of the state{at}"
    )]
    CapturedChoice {
        /// The function's name.
        function: String,
        /// The first operator that differs, and what was recorded there before.
        difference: String,
        /// The line of the operator.
        at: Site,
    },

    // This library.
    /// Something that this build was made without.
    #[error("{what} needs the feature `{feature}`, which this build lacks; to have it: {commands}")]
    MissingFeature {
        /// What needs it.
        what: &'static str,
        /// The cargo feature.
        feature: &'static str,
        /// The commands that give it.
        commands: &'static str,
    },
    /// An invariant of this library that did not hold: a bug here, never the user's.
    #[error("internal error in {what}: expected {expected}; please report this as a bug")]
    Internal {
        /// Where.
        what: &'static str,
        /// The invariant.
        expected: String,
    },
}
