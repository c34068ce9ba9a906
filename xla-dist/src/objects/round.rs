//! One exchange of objects: what each member leaves in the store, and who takes it.

use crate::group::ProcessGroup;
use serde::{Deserialize, Serialize};
use std::panic::Location;
use std::time::{Duration, Instant};
use xla_core::{Error, Result};
use xla_runtime::context::{Launch, Standing};
use xla_store::Store;

/// How often a member that waits looks whether the one that it waits for is still there.
const LOOK: Duration = Duration::from_millis(200);

/// What a member leaves for others.
#[derive(Serialize, Deserialize)]
struct Parcel {
    /// The call, with what all members must give it alike.
    call: String,
    /// The line of the call.
    line: String,
    #[serde(with = "serde_bytes")]
    object: Vec<u8>,
}

/// One exchange, as one member sees it.
///
/// Members call the same exchanges in the same order, so the n-th of one meets the n-th of the
/// others; a parcel says which call it is of, so that another order is noticed.
pub(crate) struct Round<'a> {
    store: Store,
    number: u64,
    what: &'static str,
    call: String,
    line: String,
    launch: &'a Launch,
    ranks: &'a [usize],
    own: usize,
    end: Instant,
}

impl<'a> Round<'a> {
    /// The group's next exchange: a call by its name, and with what all members must give it alike.
    pub(crate) fn next(
        group: &'a ProcessGroup,
        call: (&'static str, String),
        at: &'static Location<'static>,
    ) -> Round<'a> {
        let number = group.next_exchange();
        Round::of(group, call, at, number, &number.to_string())
    }

    /// One that members find by its tag, whatever else they exchange meanwhile.
    pub(crate) fn tagged(
        group: &'a ProcessGroup,
        call: (&'static str, String),
        at: &'static Location<'static>,
        tag: &str,
    ) -> Round<'a> {
        Round::of(group, call, at, 0, &format!("tagged/{tag}"))
    }

    fn of(
        group: &'a ProcessGroup,
        (what, call): (&'static str, String),
        at: &'static Location<'static>,
        number: u64,
        key: &str,
    ) -> Round<'a> {
        let launch = group.world().launch();
        Round {
            store: group.store().prefixed(&format!("objects/{key}")),
            number,
            what,
            call,
            line: format!("{}:{}", at.file(), at.line()),
            end: Instant::now() + launch.deadline(),
            launch,
            ranks: group.ranks(),
            own: group.rank(),
        }
    }

    /// Leaves an object under this member's name, or what it has for another.
    pub(crate) fn leave(&self, key: &str, object: &(impl Serialize + ?Sized)) -> Result<()> {
        let packed = rmp_serde::to_vec_named(object).map_err(|error| {
            let expected = "a value that serde can take apart";
            Error::argument(self.what, "object", expected, error)
        })?;
        let parcel = Parcel {
            call: self.call.clone(),
            line: self.line.clone(),
            object: packed,
        };
        let parcel = rmp_serde::to_vec(&parcel).map_err(|error| self.internal(&error))?;
        self.store.set(key, &parcel)
    }

    /// The object that the member at `from` leaves under a key, once it does.
    pub(crate) fn take<T: for<'de> Deserialize<'de>>(&self, key: &str, from: usize) -> Result<T> {
        let rank = self.rank(from);
        let bytes = self.await_key(key, rank)?;
        let parcel: Parcel =
            rmp_serde::from_slice(&bytes).map_err(|error| self.internal(&error))?;
        if parcel.call != self.call {
            return Err(Error::Divergence {
                index: usize::try_from(self.number).unwrap_or(usize::MAX),
                rank: self.own,
                left: format!("{} (at {})", self.call, self.line),
                other_rank: rank,
                right: format!("{} (at {})", parcel.call, parcel.line),
            });
        }
        rmp_serde::from_slice(&parcel.object).map_err(|error| {
            let expected = std::any::type_name::<T>();
            Error::argument(
                self.what,
                "object",
                format!("from rank {rank} a {expected}"),
                format!("a value of another type: {error}"),
            )
        })
    }

    /// Removes a key that nobody else takes.
    pub(crate) fn discard(&self, key: &str) -> Result<()> {
        self.store.delete(key).map(drop)
    }

    /// Says that this member has taken what it takes; the last of `members` removes everything.
    pub(crate) fn done(&self, members: usize) -> Result<()> {
        const DONE: &str = "done";
        if usize::try_from(self.store.add(DONE, 1)?) == Ok(members) {
            for key in self.store.keys("")? {
                self.store.delete(&key)?;
            }
        }
        Ok(())
    }

    /// A key's value, unless the rank that sets it ends first, or another one fails.
    fn await_key(&self, key: &str, rank: usize) -> Result<Vec<u8>> {
        loop {
            // Asked before the store is: a rank may set its key and end.
            let gone = self.gone(rank);
            let left = self.end.saturating_duration_since(Instant::now());
            let patience = match gone {
                Some(_) => Duration::ZERO,
                None => left.min(LOOK),
            };
            match (self.store.get(key, patience), gone) {
                (Ok(value), _) => return Ok(value),
                (Err(Error::Deadline { .. }), Some(gone)) => return Err(gone),
                (Err(Error::Deadline { .. }), None) if left.is_zero() => {
                    return Err(Error::Deadline {
                        what: format!("{} that rank {rank} did not come to", self.what),
                        after: self.launch.deadline(),
                        advice: "; every rank must call it, in the same order",
                    });
                }
                (Err(Error::Deadline { .. }), None) => {}
                (Err(error), _) => return Err(error),
            }
        }
    }

    /// Why a rank's object will not come.
    fn gone(&self, rank: usize) -> Option<Error> {
        let standings = self.launch.standings();
        if standings.get(rank) == Some(&Standing::Left) {
            return Some(Error::ReplicaLeft {
                what: self.what.into(),
                rank,
            });
        }
        self.ranks
            .iter()
            .find_map(|&rank| match standings.get(rank)? {
                Standing::Failed(message) => Some(Error::ReplicaFailed {
                    rank,
                    message: message.clone(),
                }),
                _ => None,
            })
    }

    fn rank(&self, position: usize) -> usize {
        self.ranks.get(position).copied().unwrap_or(position)
    }

    fn internal(&self, error: &dyn std::error::Error) -> Error {
        Error::Internal {
            what: self.what,
            expected: format!("a parcel that can be packed and unpacked ({error})"),
        }
    }
}
