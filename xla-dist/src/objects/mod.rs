//! Values of the host between ranks, through the store: configuration, metrics, file names.
//!
//! Unlike the collectives of tensors these communicate at once, by hand of the calling thread, and
//! return what came. They are for small values: each goes through one process's store, which takes
//! up to 64 MiB a value.

mod round;

use crate::group::{ProcessGroup, current};
use round::Round;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::panic::Location;
use xla_core::{Error, Result};

/// An exchange's name, as errors and the other members know it.
macro_rules! named {
    ($name:literal) => {
        ($name, $name.to_owned())
    };
    ($name:literal, $($alike:tt)+) => {
        ($name, format!(concat!($name, "({})"), format!($($alike)+)))
    };
}

impl ProcessGroup {
    /// Every member's object, in the order of the ranks, on every member.
    ///
    /// # Errors
    /// [`Error::ReplicaLeft`], [`Error::ReplicaFailed`] or [`Error::Deadline`] for a member that
    /// does not come, [`Error::Divergence`] for one that calls another exchange instead,
    /// [`Error::Argument`] for an object that serde does not take apart or put together, and on a
    /// rank that is not a member; [`Error::Store`] for one above 64 MiB, and where the store is gone.
    #[track_caller]
    pub fn all_gather_object<T: Serialize + DeserializeOwned>(&self, object: &T) -> Result<Vec<T>> {
        let at = Location::caller();
        self.gather_everywhere(named!("all_gather_object"), object, at)
            .map_err(|error| error.at(at))
    }

    /// [`all_gather_object`](Self::all_gather_object) beside the order of exchanges, for a thread that
    /// does not go with its replica: members meet by the `tag`, which is the same on all of them, and
    /// is never used twice in the group.
    ///
    /// # Errors
    /// As [`all_gather_object`](Self::all_gather_object).
    #[track_caller]
    pub fn all_gather_object_as<T: Serialize + DeserializeOwned>(
        &self,
        tag: &str,
        object: &impl Serialize,
    ) -> Result<Vec<T>> {
        const CALL: &str = "all_gather_object_as";
        let at = Location::caller();
        let exchange = || {
            self.members(CALL, [])?;
            let own = self.position_of(CALL, "rank", self.rank())?;
            let round = Round::tagged(self, (CALL, format!("{CALL}({tag:?})")), at, tag);
            self.everybody(&round, own, object)
        };
        exchange().map_err(|error| error.at(at))
    }

    /// Every member's object, in the order of the ranks, on the rank `dst`; `None` on the others.
    ///
    /// # Errors
    /// As [`all_gather_object`](Self::all_gather_object); [`Error::Argument`] for a `dst` that is
    /// not a member.
    #[track_caller]
    pub fn gather_object<T: Serialize + DeserializeOwned>(
        &self,
        object: &T,
        dst: usize,
    ) -> Result<Option<Vec<T>>> {
        let at = Location::caller();
        self.exchange(named!("gather_object", "dst = {dst}"), at, |round, own| {
            let to = self.position_of("gather_object", "dst", dst)?;
            round.leave(&key(own), object)?;
            if own != to {
                return Ok(None);
            }
            let take = |from| {
                let object = round.take(&key(from), from)?;
                round.discard(&key(from))?;
                Ok(object)
            };
            (0..self.size()).map(take).collect::<Result<_>>().map(Some)
        })
    }

    /// The object of the rank `src`, on every member. Others than `src` may give `None`.
    ///
    /// # Errors
    /// As [`all_gather_object`](Self::all_gather_object); [`Error::Argument`] for a `src` that is
    /// not a member, or has no object.
    #[track_caller]
    pub fn broadcast_object<T: Serialize + DeserializeOwned>(
        &self,
        object: Option<&T>,
        src: usize,
    ) -> Result<T> {
        const CALL: &str = "broadcast_object";
        let at = Location::caller();
        self.exchange(
            named!("broadcast_object", "src = {src}"),
            at,
            |round, own| {
                let from = self.position_of(CALL, "src", src)?;
                if own == from {
                    let expected = || format!("a value on rank {src}, the source");
                    let object = object
                        .ok_or_else(|| Error::argument(CALL, "object", expected(), "None"))?;
                    round.leave(&key(from), object)?;
                }
                let object = round.take(&key(from), from)?;
                round.done(self.size())?;
                Ok(object)
            },
        )
    }

    /// Replaces the objects by those of the rank `src`, on every member.
    ///
    /// # Errors
    /// As [`broadcast_object`](Self::broadcast_object); [`Error::Argument`] where the lists differ
    /// in length.
    #[track_caller]
    pub fn broadcast_object_list<T: Serialize + DeserializeOwned>(
        &self,
        objects: &mut [T],
        src: usize,
    ) -> Result<()> {
        const CALL: &str = "broadcast_object_list";
        let at = Location::caller();
        self.exchange(
            named!("broadcast_object_list", "src = {src}"),
            at,
            |round, own| {
                let from = self.position_of(CALL, "src", src)?;
                if own == from {
                    return round
                        .leave(&key(from), &*objects)
                        .and_then(|()| round.done(self.size()));
                }
                let came: Vec<T> = round.take(&key(from), from)?;
                round.done(self.size())?;
                if came.len() != objects.len() {
                    let expected = format!("{} as on rank {src}", came.len());
                    return Err(Error::argument(CALL, "objects", expected, objects.len()));
                }
                for (object, came) in objects.iter_mut().zip(came) {
                    *object = came;
                }
                Ok(())
            },
        )
    }

    /// The member's own of the objects of the rank `src`, which has one for each member, in the
    /// order of the ranks. Others may give `None`.
    ///
    /// # Errors
    /// As [`broadcast_object`](Self::broadcast_object); [`Error::Argument`] for another number of
    /// objects than members.
    #[track_caller]
    pub fn scatter_object<T: Serialize + DeserializeOwned>(
        &self,
        objects: Option<&[T]>,
        src: usize,
    ) -> Result<T> {
        const CALL: &str = "scatter_object";
        let at = Location::caller();
        self.exchange(named!("scatter_object", "src = {src}"), at, |round, own| {
            let from = self.position_of(CALL, "src", src)?;
            if own == from {
                let objects = objects.unwrap_or_default();
                if objects.len() != self.size() {
                    let expected = format!("{} on rank {src}, one for each member", self.size());
                    return Err(Error::argument(CALL, "objects", expected, objects.len()));
                }
                for (to, object) in objects.iter().enumerate() {
                    round.leave(&key(to), object)?;
                }
            }
            let object = round.take(&key(own), from)?;
            round.discard(&key(own))?;
            Ok(object)
        })
    }

    fn gather_everywhere<T: Serialize + DeserializeOwned>(
        &self,
        call: (&'static str, String),
        object: &T,
        at: &'static Location<'static>,
    ) -> Result<Vec<T>> {
        self.exchange(call, at, |round, own| self.everybody(round, own, object))
    }

    fn everybody<T: DeserializeOwned>(
        &self,
        round: &Round<'_>,
        own: usize,
        object: &impl Serialize,
    ) -> Result<Vec<T>> {
        round.leave(&key(own), object)?;
        let all = (0..self.size()).map(|from| round.take(&key(from), from));
        let all = all.collect::<Result<_>>()?;
        round.done(self.size())?;
        Ok(all)
    }

    /// Runs the next exchange, given this member's position.
    fn exchange<R>(
        &self,
        call: (&'static str, String),
        at: &'static Location<'static>,
        run: impl FnOnce(&Round<'_>, usize) -> Result<R>,
    ) -> Result<R> {
        let exchange = || {
            self.check_replicas(call.0, "call it before or after the shard_map")?;
            // Fails where the group is over, or this rank no member.
            self.members(call.0, [])?;
            let own = self.position_of(call.0, "rank", self.rank())?;
            run(&Round::next(self, call, at), own)
        };
        exchange().map_err(|error| error.at(at))
    }
}

fn key(position: usize) -> String {
    position.to_string()
}

/// [`ProcessGroup::all_gather_object`] in the default group: every rank's object, on every rank.
///
/// ```
/// # xla_dist::init_process_group("xla", "xla://")?;
/// let losses: Vec<f32> = xla_dist::all_gather_object(&0.25_f32)?;
/// assert_eq!(losses, [0.25]);
/// # xla_dist::destroy_process_group()?;
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// # Errors
/// As there; [`Error::ProcessGroup`] when there is no default group.
#[track_caller]
pub fn all_gather_object<T: Serialize + DeserializeOwned>(object: &T) -> Result<Vec<T>> {
    current("all_gather_object")?.all_gather_object(object)
}

/// [`ProcessGroup::gather_object`] in the default group: every rank's object, on one rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`] when there is no default group.
#[track_caller]
pub fn gather_object<T: Serialize + DeserializeOwned>(
    object: &T,
    dst: usize,
) -> Result<Option<Vec<T>>> {
    current("gather_object")?.gather_object(object, dst)
}

/// [`ProcessGroup::broadcast_object`] in the default group: one rank's object, on every rank.
///
/// # Errors
/// As there; [`Error::ProcessGroup`] when there is no default group.
#[track_caller]
pub fn broadcast_object<T: Serialize + DeserializeOwned>(
    object: Option<&T>,
    src: usize,
) -> Result<T> {
    current("broadcast_object")?.broadcast_object(object, src)
}

/// [`ProcessGroup::broadcast_object_list`] in the default group: replaces the objects by one rank's.
///
/// # Errors
/// As there; [`Error::ProcessGroup`] when there is no default group.
#[track_caller]
pub fn broadcast_object_list<T: Serialize + DeserializeOwned>(
    objects: &mut [T],
    src: usize,
) -> Result<()> {
    current("broadcast_object_list")?.broadcast_object_list(objects, src)
}

/// [`ProcessGroup::scatter_object`] in the default group: a rank's own of one rank's objects.
///
/// # Errors
/// As there; [`Error::ProcessGroup`] when there is no default group.
#[track_caller]
pub fn scatter_object<T: Serialize + DeserializeOwned>(
    objects: Option<&[T]>,
    src: usize,
) -> Result<T> {
    current("scatter_object")?.scatter_object(objects, src)
}

/// What `reduce` makes of every rank's value, in the order of the ranks, on every rank: for metrics
/// that live on the host. As PyTorch/XLA's `xm.mesh_reduce`.
///
/// The tag names the call: all ranks must give the same one.
///
/// ```
/// # xla_dist::init_process_group("xla", "xla://")?;
/// let mean = |all: Vec<f32>| all.iter().sum::<f32>() / all.len() as f32;
/// let accuracy = xla_dist::mesh_reduce("accuracy", &0.75, mean)?;
/// assert_eq!(accuracy, 0.75);
/// # xla_dist::destroy_process_group()?;
/// # Ok::<(), xla_core::Error>(())
/// ```
///
/// # Errors
/// As [`all_gather_object`]; [`Error::Divergence`] for another tag.
#[track_caller]
pub fn mesh_reduce<T: Serialize + DeserializeOwned, R>(
    tag: &str,
    value: &T,
    reduce: impl FnOnce(Vec<T>) -> R,
) -> Result<R> {
    let at = Location::caller();
    let group = current("mesh_reduce")?;
    let all = group.gather_everywhere(named!("mesh_reduce", "{tag:?}"), value, at)?;
    Ok(reduce(all))
}

/// Whether the calling thread drives rank 0; with or without a process group.
///
/// Not on a thread that belongs to no replica while a launch runs.
pub fn is_master() -> bool {
    crate::get_rank().is_ok_and(|rank| rank == 0)
}

/// Prints a line on rank 0 alone, as [`println!`] does.
///
/// ```
/// xla_dist::master_print!("epoch {}", 1);
/// ```
#[macro_export]
macro_rules! master_print {
    ($($arguments:tt)*) => {
        if $crate::is_master() {
            ::std::println!($($arguments)*);
        }
    };
}

#[cfg(test)]
mod tests;
