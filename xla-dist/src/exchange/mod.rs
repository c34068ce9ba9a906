//! Collectives of groups that span processes: one custom call each.
//!
//! XLA's own collectives on CPU know the replicas of one process. Here the handlers of a process's
//! members meet in shared memory, and the last to come does the whole collective for all of them: it
//! works on their memory directly and exchanges with the other processes what they need, once a
//! process and not once a member.
//!
//! A handler never fails, since the others would wait for it: it marks the execution as failed
//! ([`Launched::fail`]), fills its results with zeros, which nobody will see, and returns.
//!
//! [`Launched::fail`]: crate::gang::Launched::fail

mod algorithm;
mod handler;
mod meetings;
mod spec;
#[cfg(all(test, feature = "gloo"))]
mod tests;

pub(crate) use meetings::Meetings;
pub(crate) use spec::Exchange;

use crate::ops::ReplicaGroups;
use xla_core::{Error, Result};
use xla_lazy::Ty;
use xla_lazy::stablehlo::{Func, Value};
use xla_runtime::{Client, ffi};

/// The handler's name.
const TARGET: &str = "xla_dist_exchange";

/// Appends a collective of the members of each group, as an effect of the program.
///
/// Everything is in terms of the first axis, in equal blocks: a gather puts the members' operands one
/// after the other, a scatter gives each member one block, in the order of the group.
///
/// # Errors
/// [`Error::Internal`] in a program whose gang does not span processes.
pub(crate) fn call(
    f: &mut Func,
    exchange: &Exchange,
    groups: &ReplicaGroups,
    operand: Value,
    out: Ty,
) -> Result<Value> {
    let attributes = spec::attributes(exchange, groups);
    let results = f.effect(TARGET, &attributes, &[operand], &[out])?;
    results.first().copied().ok_or_else(|| Error::Internal {
        what: "lowering",
        expected: "a result of an exchange".into(),
    })
}

/// Lets programs that are compiled from now on exchange with other processes.
///
/// # Errors
/// [`Error::Unsupported`] for a plugin without custom calls, and what making the client returns.
pub(crate) fn register() -> Result<()> {
    ffi::register(Client::global()?.plugin(), TARGET, handler::handle)
}
