//! What is noted while a compiled function is recorded: everything that a later call must know and
//! that the recording itself does not say.

use super::number::HostNumber;
use super::state::Notes;
use crate::Tensor;
use crate::storage::{Storage, Value};
use crate::sync::Cause;
use crate::trace::NumberClass;
use crate::ty::Ty;
use crate::view::View;
use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::{Arc, Weak};
use xla_core::{Error, Result, Site};

thread_local! {
    // Beside the notes, so that asking costs one load.
    static ACTIVE: Cell<bool> = const { Cell::new(false) };
    static NOTED: RefCell<Option<Noted>> = const { RefCell::new(None) };
}

/// A check of the range of an argument's elements, which has to be made again for others.
pub(super) struct Check {
    pub(super) argument: usize,
    /// The type of the tensor that was checked, and which part of it.
    pub(super) ty: Ty,
    pub(super) view: Option<Arc<View>>,
    pub(super) rule: Rule,
    /// What the rule said.
    pub(super) result: bool,
}

/// Says of a tensor of indices whether they are known to be in range, or what is wrong.
pub(crate) type Rule = Arc<dyn Fn(&Tensor) -> Result<bool> + Send + Sync>;

/// Why a function cannot be run again without being called.
#[derive(Debug, Clone)]
pub(super) struct Stop {
    pub(super) reason: String,
    pub(super) at: Site,
}

impl Stop {
    pub(super) fn new(reason: impl Into<String>, at: impl Into<Site>) -> Self {
        Stop {
            reason: reason.into(),
            at: at.into(),
        }
    }

    pub(super) fn error(&self, function: &str) -> Error {
        Error::GraphBreak {
            function: function.into(),
            reason: self.reason.clone(),
            at: self.at,
        }
    }
}

/// What has been noted so far.
pub(crate) struct Noted {
    function: &'static str,
    full_graph: bool,
    pub(super) notes: Notes,
    pub(super) numbers: Vec<((NumberClass, u32), HostNumber)>,
    /// Storages of values that the function has sent to the device.
    pub(super) made: Vec<Weak<Storage>>,
    pub(super) checks: Vec<Check>,
    /// Ranges of other tensors from the host that the program relies on.
    pub(super) ranges: Vec<(Weak<Storage>, (i64, i64))>,
    pub(super) stopped: Option<Stop>,
}

/// Notes what the calling thread records until it is ended or dropped.
pub(super) struct Tracing(());

impl Tracing {
    pub(super) fn begin(function: &'static str, full_graph: bool) -> Self {
        NOTED.set(Some(Noted {
            function,
            full_graph,
            notes: Notes::default(),
            numbers: Vec::new(),
            made: Vec::new(),
            checks: Vec::new(),
            ranges: Vec::new(),
            stopped: None,
        }));
        ACTIVE.set(true);
        Tracing(())
    }

    pub(super) fn end(self) -> Result<Noted> {
        ACTIVE.set(false);
        NOTED.take().ok_or_else(|| Error::Internal {
            what: "compiled",
            expected: "notes of the function that was recorded".into(),
        })
    }
}

impl Drop for Tracing {
    fn drop(&mut self) {
        ACTIVE.set(false);
        drop(NOTED.take());
    }
}

/// Whether the calling thread records a compiled function.
#[inline]
pub(crate) fn is_active() -> bool {
    ACTIVE.get()
}

/// Notes something, if the calling thread records a compiled function.
pub(super) fn with(note: impl FnOnce(&mut Noted)) {
    if is_active() {
        NOTED.with_borrow_mut(|noted| noted.as_mut().map(note));
    }
}

/// A value was sent to the device and is this storage's.
pub(crate) fn made(storage: &Arc<Storage>) {
    with(|noted| noted.made.push(Arc::downgrade(storage)));
}

/// `rule` of a tensor; in a compiled function it is asked at each call again, of the argument given
/// then.
///
/// # Errors
/// Those of `rule`.
pub(crate) fn check(
    tensor: &Tensor,
    rule: impl Fn(&Tensor) -> Result<bool> + Send + Sync + 'static,
) -> Result<bool> {
    let result = rule(tensor)?;
    if !is_active() {
        return Ok(result);
    }
    let contents = tensor.storage.lock();
    let (argument, range) = (contents.argument, contents.range);
    let is_value = matches!(contents.value, Value::Ready(_));
    drop(contents);
    with(|noted| match (argument, range) {
        (Some(argument), _) => noted.checks.push(Check {
            argument: argument as usize,
            ty: tensor.storage.ty(),
            view: tensor.view.clone(),
            rule: Arc::new(rule),
            result,
        }),
        (None, Some(range)) if is_value => {
            noted.ranges.push((Arc::downgrade(&tensor.storage), range));
        }
        (None, _) => {}
    });
    Ok(result)
}

/// Something is about to be executed.
///
/// # Errors
/// [`Error::GraphBreak`] while a function is recorded that must be one graph.
#[inline]
pub(crate) fn interrupted(cause: Cause) -> Result<()> {
    if !is_active() {
        return Ok(());
    }
    stop(reason(cause), cause.location())
}

/// Notes why the function cannot be run again without being called.
///
/// # Errors
/// [`Error::GraphBreak`] where it must be.
#[cold]
pub(super) fn stop(reason: String, at: &'static Location<'static>) -> Result<()> {
    let stop = Stop::new(reason, at);
    NOTED.with_borrow_mut(|noted| match noted {
        Some(noted) => {
            let error = noted.full_graph.then(|| stop.error(noted.function));
            noted.stopped.get_or_insert(stop);
            error.map_or(Ok(()), Err)
        }
        None => Ok(()),
    })
}

fn reason(cause: Cause) -> String {
    match cause {
        Cause::Sync { .. } => "it calls sync()".into(),
        Cause::Read { what, .. } => format!("{what}() reads a value in it"),
        Cause::Operand { op, .. } => format!("{op} needs a value that is pending elsewhere"),
        Cause::OtherGang { op, .. } => {
            format!("{op} belongs to another process group than the collective before it")
        }
        other => other.to_string(),
    }
}
