//! Groups of some of the ranks.

use crate::group::{Members, ProcessGroup, current};
use crate::ops::ReplicaGroups;
use std::panic::Location;
use std::sync::Arc;
use xla_core::{Error, Result};
use xla_runtime::context;

/// A replica's own subgroup, if it is in one, and all subgroups.
pub type Subgroups = (Option<Arc<ProcessGroup>>, Vec<Arc<ProcessGroup>>);

/// Makes a group of some of the default group's ranks, given in any order; members wait for each
/// other.
///
/// As in PyTorch, all ranks of the default group make the same groups in the same order, also those
/// that are not members: they get a group in which communicating is an error.
///
/// The members are a gang of their own: what they communicate here is compiled and executed by them
/// alone, whenever they do. One program holds collectives of one gang. So where a rank goes from one
/// gang to another what is pending is executed, in the order recorded: a model whose layers use one
/// group and whose gradients another runs as several programs. Where ranks of different groups
/// communicate later, they must have cut their programs alike: what one reads early, all read. Groups
/// that together hold every rank need not be cut apart: see [`new_subgroups_by_enumeration`].
///
/// # Errors
/// [`Error::Argument`] for no ranks, a rank twice, or a rank that is not in the default group;
/// [`Error::ProcessGroup`] when there is no default group, or another rank asked for other ranks in
/// its turn; [`Error::ReplicaLeft`], [`Error::ReplicaFailed`] or [`Error::Deadline`] for a member
/// that does not come.
///
/// ```
/// # xla_dist::init_process_group("xla", "xla://")?;
/// let group = xla_dist::new_group(&[0])?;
/// assert_eq!((group.size(), group.is_member()), (1, true));
/// assert!(xla_dist::new_group(&[1]).is_err());
/// # xla_dist::destroy_process_group()?;
/// # Ok::<(), xla_core::Error>(())
/// ```
#[track_caller]
pub fn new_group(ranks: &[usize]) -> Result<Arc<ProcessGroup>> {
    const CALL: &str = "new_group";
    let at = Location::caller();
    let world = current(CALL)?;
    let ranks = checked(CALL, &world, ranks).map_err(|e| e.at(at))?;
    make(CALL, &world, ranks)
}

/// Makes groups of ranks none of which is in two, and returns the calling rank's own and all.
///
/// Groups of one size that together hold all ranks are a partition of the default group: their
/// collectives are recorded in its programs, so that one program may hold both, and nothing is
/// executed for going from one to the other. It follows that all groups communicate in the same way
/// at the same place of the program. Otherwise each group is made as by [`new_group`].
///
/// # Errors
/// [`Error::Argument`] for a rank in two groups; otherwise as [`new_group`].
#[track_caller]
pub fn new_subgroups_by_enumeration(ranks_per_subgroup: &[Vec<usize>]) -> Result<Subgroups> {
    let at = Location::caller();
    let world = current("new_subgroups_by_enumeration")?;
    subgroups("new_subgroups_by_enumeration", &world, ranks_per_subgroup).map_err(|e| e.at(at))
}

/// Cuts the default group into groups of `group_size` consecutive ranks, as
/// [`new_subgroups_by_enumeration`], and returns the calling rank's own and all.
///
/// # Errors
/// [`Error::Argument`] for a size that does not divide the number of ranks; otherwise as
/// [`new_group`].
#[track_caller]
pub fn new_subgroups(group_size: usize) -> Result<(Arc<ProcessGroup>, Vec<Arc<ProcessGroup>>)> {
    const CALL: &str = "new_subgroups";
    let at = Location::caller();
    let world = current(CALL)?;
    if group_size == 0 || !world.size().is_multiple_of(group_size) {
        let expected = format!("a divisor of {}, the number of ranks", world.size());
        return Err(Error::argument(CALL, "group_size", expected, group_size).at(at));
    }
    let parts: Vec<Vec<usize>> = world.ranks().chunks(group_size).map(Vec::from).collect();
    let (own, all) = subgroups(CALL, &world, &parts).map_err(|e| e.at(at))?;
    match own {
        Some(own) => Ok((own, all)),
        None => Err(Error::Internal {
            what: CALL,
            expected: "each rank in one of the groups".into(),
        }),
    }
}

/// The ranks of a group, ascending.
fn checked(call: &'static str, world: &ProcessGroup, ranks: &[usize]) -> Result<Vec<usize>> {
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    if sorted.is_empty() || sorted.windows(2).any(|pair| pair[0] == pair[1]) {
        let expected = "at least one rank, and each once";
        return Err(Error::argument(
            call,
            "ranks",
            expected,
            format!("{ranks:?}"),
        ));
    }
    for &rank in &sorted {
        world.position_of(call, "ranks", rank)?;
    }
    Ok(sorted)
}

/// A group with a gang of its own.
fn make(call: &'static str, world: &ProcessGroup, ranks: Vec<usize>) -> Result<Arc<ProcessGroup>> {
    let context = context::current(call)?;
    let number = (world.generation(), world.next_child());
    let gang = world.world().gang(call, &context, number, &ranks)?;
    let group = ProcessGroup::new(&context, Arc::clone(world.world()), number, ranks, gang);
    Ok(Arc::new(group))
}

fn subgroups(call: &'static str, world: &ProcessGroup, parts: &[Vec<usize>]) -> Result<Subgroups> {
    let mut all = Vec::with_capacity(parts.len());
    for part in parts {
        let part = checked(call, world, part)?;
        if let Some(other) = all
            .iter()
            .find(|other: &&Vec<usize>| other.iter().any(|rank| part.contains(rank)))
        {
            let expected = "groups that no rank is in two of";
            let got = format!("{other:?} and {part:?}");
            return Err(Error::argument(call, "ranks", expected, got));
        }
        all.push(part);
    }
    let even = all.windows(2).all(|pair| pair[0].len() == pair[1].len());
    let complete = all.iter().map(Vec::len).sum::<usize>() == world.size();
    let groups = match world.members(call, [])? {
        Some(members) if even && complete => partition(world, members, all)?,
        _ => all
            .into_iter()
            .map(|ranks| make(call, world, ranks))
            .collect::<Result<Vec<_>>>()?,
    };
    let own = groups.iter().find(|group| group.is_member()).cloned();
    Ok((own, groups))
}

/// The groups of a partition, in the gang of the whole.
fn partition(
    world: &ProcessGroup,
    members: &Members,
    parts: Vec<Vec<usize>>,
) -> Result<Vec<Arc<ProcessGroup>>> {
    let positions = |ranks: &Vec<usize>| ranks.iter().map(|rank| world.group_rank(*rank)).collect();
    let positions = parts
        .iter()
        .map(positions)
        .collect::<Result<Vec<Vec<usize>>>>()?;
    let groups = ReplicaGroups::partition(&positions);
    let child = world.next_child();
    Ok(parts
        .into_iter()
        .map(|ranks| Arc::new(world.part(members, groups.clone(), child, ranks)))
        .collect())
}
