//! The one error type: each variant says what was called, what was expected, what was found and,
//! where it is not plain, what to do.

use crate::memory::{LiveTensor, shortage};
use crate::{DType, Device, Shape};
use std::fmt;
use std::panic::Location;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A result whose error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The line of the user's program that an operator was called on, when it is known.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Site(Option<&'static Location<'static>>);

impl Site {
    /// Not known (yet): [`Error::at`] fills it in.
    pub const NONE: Site = Site(None);

    /// The line that called the function this is written in (which must be `#[track_caller]`).
    #[track_caller]
    pub fn caller() -> Site {
        Site(Some(Location::caller()))
    }

    /// The file, line and column.
    pub fn location(self) -> Option<&'static Location<'static>> {
        self.0
    }
}

impl From<&'static Location<'static>> for Site {
    fn from(location: &'static Location<'static>) -> Self {
        Site(Some(location))
    }
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(l) => write!(f, " (at {}:{}:{})", l.file(), l.line(), l.column()),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(l) => write!(f, "{}:{}:{}", l.file(), l.line(), l.column()),
            None => f.write_str("unknown"),
        }
    }
}

/// Everything that can go wrong, from a bad shape to a dead replica.
///
/// Clones are cheap enough to hand the error of one asynchronous step to every tensor that waited
/// for it.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
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
    /// No PJRT plugin was found anywhere.
    #[error("no PJRT plugin for {kind} found; looked in:\n{}\ninstall one with: {install}", .looked_in.iter().map(|p| format!("  {p}")).collect::<Vec<_>>().join("\n"))]
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
    /// Something the plugin does not offer.
    #[error("the plugin does not offer {what}{}", if *.since == (0, 0) { String::new() } else { format!(" (needs PJRT API {}.{})", .since.0, .since.1) })]
    Unsupported {
        /// The function or extension.
        what: &'static str,
        /// The API version that brought it, (0, 0) where that is not the reason.
        since: (i32, i32),
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
    /// An invariant of this library that did not hold: a bug here, never the user's.
    #[error("internal error in {what}: expected {expected}; please report this as a bug")]
    Internal {
        /// Where.
        what: &'static str,
        /// The invariant.
        expected: String,
    },
}

/// A name under which a saved state holds a tensor of another shape.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeConflict {
    /// The name.
    pub key: String,
    /// The shape it should have.
    pub expected: Vec<usize>,
    /// The shape it has in the state.
    pub got: Vec<usize>,
}

/// A name under which a saved state holds a tensor of another dtype.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DTypeConflict {
    /// The name.
    pub key: String,
    /// The dtype it should have.
    pub expected: DType,
    /// The dtype it has in the state.
    pub got: DType,
}

fn misfits(
    missing: &[String],
    unexpected: &[String],
    mismatched: &[ShapeConflict],
    mistyped: &[DTypeConflict],
) -> String {
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("missing: {}", missing.join(", ")));
    }
    if !unexpected.is_empty() {
        parts.push(format!("unexpected: {}", unexpected.join(", ")));
    }
    for ShapeConflict { key, expected, got } in mismatched {
        parts.push(format!("{key}: expected shape {expected:?}, got {got:?}"));
    }
    for DTypeConflict { key, expected, got } in mistyped {
        parts.push(format!("{key}: expected dtype {expected}, got {got}"));
    }
    parts.join("; ")
}

impl Error {
    /// A shape error; the caller's line is added by [`Error::at`].
    pub fn shape(op: &'static str, expected: impl Into<String>, got: impl fmt::Display) -> Self {
        Error::ShapeMismatch {
            op,
            expected: expected.into(),
            got: got.to_string(),
            at: Site::NONE,
        }
    }

    /// A dtype error; the caller's line is added by [`Error::at`].
    pub fn dtype(op: &'static str, expected: impl Into<String>, got: DType) -> Self {
        Error::DTypeMismatch {
            op,
            expected: expected.into(),
            got,
            at: Site::NONE,
        }
    }

    /// An argument error; the caller's line is added by [`Error::at`].
    pub fn argument(
        op: &'static str,
        argument: &'static str,
        expected: impl Into<String>,
        got: impl fmt::Display,
    ) -> Self {
        Error::Argument {
            op,
            argument,
            expected: expected.into(),
            got: got.to_string(),
            at: Site::NONE,
        }
    }

    /// An error of the operating system.
    pub fn system(call: &'static str, source: std::io::Error) -> Self {
        Error::System {
            call,
            source: Arc::new(source),
        }
    }

    /// An I/O error on a path.
    pub fn io(path: impl Into<PathBuf>, source: std::io::Error) -> Self {
        Error::Io {
            path: path.into(),
            source: Arc::new(source),
        }
    }

    /// The same error with the call's line, unless it has one already.
    #[must_use]
    pub fn at(mut self, location: &'static Location<'static>) -> Self {
        if let Some(site) = self.site_mut()
            && site.0.is_none()
        {
            *site = location.into();
        }
        self
    }

    /// The same error with this line in place of the one it has: for code that calls on behalf of
    /// its own caller through a trait object, which does not pass the line on.
    #[must_use]
    pub fn relocated(mut self, location: &'static Location<'static>) -> Self {
        if let Some(site) = self.site_mut() {
            *site = location.into();
        }
        self
    }

    /// The same error of another operator, where it names one: for an operator that is another one
    /// and something more, as `add_` is `add`.
    #[must_use]
    pub fn named(mut self, name: &'static str) -> Self {
        if let Error::Broadcast { op, .. }
        | Error::ShapeMismatch { op, .. }
        | Error::Axis { op, .. }
        | Error::DTypeMismatch { op, .. }
        | Error::DeviceMismatch { op, .. }
        | Error::IndexOutOfRange { op, .. }
        | Error::Argument { op, .. }
        | Error::Mesh { op, .. }
        | Error::Sharding { op, .. }
        | Error::Autograd { op, .. }
        | Error::InBody { op, .. }
        | Error::ForeignTrace { op, .. } = &mut self
        {
            *op = name;
        }
        self
    }

    /// The line of the call, where it is known.
    pub fn location(&self) -> Option<&'static Location<'static>> {
        let mut copy = self.clone();
        copy.site_mut().and_then(|site| site.0)
    }

    fn site_mut(&mut self) -> Option<&mut Site> {
        match self {
            Error::Broadcast { at, .. }
            | Error::ShapeMismatch { at, .. }
            | Error::Axis { at, .. }
            | Error::DTypeMismatch { at, .. }
            | Error::DeviceMismatch { at, .. }
            | Error::IndexOutOfRange { at, .. }
            | Error::Argument { at, .. }
            | Error::Mesh { at, .. }
            | Error::Sharding { at, .. }
            | Error::Autograd { at, .. }
            | Error::InBody { at, .. }
            | Error::NotANumber { at, .. }
            | Error::Step { at, .. }
            | Error::StateDict { at, .. }
            | Error::GraphBreak { at, .. }
            | Error::TooManyGraphs { at, .. }
            | Error::CapturedNumber { at, .. }
            | Error::CapturedChoice { at, .. }
            | Error::ForeignTrace { at, .. } => Some(at),
            _ => None,
        }
    }
}

impl From<&Shape> for Vec<usize> {
    fn from(shape: &Shape) -> Self {
        shape.dims().to_vec()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_operator_shapes_and_line() {
        let here = Location::caller();
        let error = Error::Broadcast {
            op: "add",
            left: vec![2, 3],
            right: vec![4],
            at: Site::NONE,
        };
        let text = error.at(here).to_string();
        assert!(
            text.starts_with("add: shapes [2, 3] and [4] do not broadcast"),
            "{text}"
        );
        assert!(
            text.contains(&format!("error.rs:{}", here.line())),
            "{text}"
        );
    }

    #[test]
    fn an_error_can_be_anothers() {
        let error = Error::dtype("exp", "a float dtype", DType::I64).named("exp_");
        assert_eq!(error.to_string(), "exp_: expected a float dtype, got i64");
    }

    #[test]
    fn the_first_line_wins() {
        let first = Location::caller();
        let error = Error::dtype("exp", "a float dtype", DType::I64).at(first);
        let second = Location::caller();
        let error = error.at(second);
        assert_eq!(error.location().map(Location::line), Some(first.line()));
        assert_eq!(error.relocated(second).location(), Some(second));
    }
}
