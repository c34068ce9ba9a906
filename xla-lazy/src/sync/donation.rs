//! Which arguments of a program are not overwritten by the values that take their place.

use super::{DeviceValue, Pending};
use crate::cache::Compiled;
use crate::debug::{MissedDonation, NotDonated};
use crate::gang::Proposal;
use crate::lower::{Argument, Extent};
use crate::storage::Storage;
use crate::trace::Recording;
use crate::ty::Ty;
use smallvec::SmallVec;

/// Donated arguments that something besides the recording holds: they are copied at execution
/// rather than overwritten.
pub(super) fn withheld<'a>(
    compiled: &Compiled,
    value: impl Fn(u32) -> &'a DeviceValue,
) -> SmallVec<[usize; 8]> {
    compiled
        .donated
        .iter()
        .copied()
        .filter(|&position| match compiled.arguments[position] {
            Argument::Param(p) => !value(p).is_exclusive(),
            Argument::Numbers(_) | Argument::Order => true,
        })
        .collect()
}

/// What could have been donated and was not: what is withheld, and what was changed in place but
/// could not be a donor of this program.
pub(super) fn missed(
    pending: &Pending,
    extent: &Extent,
    compiled: &Compiled,
    withheld: &[usize],
) -> SmallVec<[MissedDonation; 4]> {
    let recording = &pending.recording;
    let shared = withheld
        .iter()
        .filter_map(|&position| match compiled.arguments[position] {
            Argument::Param(p) => Some((p, NotDonated::Shared)),
            Argument::Numbers(_) | Argument::Order => None,
        });
    let kept = kept(recording, extent, &compiled.arguments);
    let own = match kept.is_empty() {
        true => Vec::new(),
        false => pending.donors(extent.len),
    };
    let kept = kept.into_iter().map(|p| match own.binary_search(&p) {
        Ok(_) => (p, NotDonated::OtherReplica),
        Err(_) => (p, NotDonated::ReadLater),
    });
    let all = shared.chain(kept);
    all.map(|(p, reason)| describe(recording, p, reason))
        .collect()
}

/// The parameters that another node takes the place of, but not in their memory. Replicas that run one
/// program need not have the same ones.
fn kept(recording: &Recording, extent: &Extent, arguments: &[Argument]) -> SmallVec<[u32; 4]> {
    if extent.len == recording.nodes.len() && recording.gang.is_none() {
        return SmallVec::new();
    }
    let taken_over = |to: u32| to as usize >= extent.len || extent.live.binary_search(&to).is_ok();
    let parameters = arguments.iter().filter_map(|argument| match argument {
        Argument::Param(p) => Some(*p),
        Argument::Numbers(_) | Argument::Order => None,
    });
    parameters
        .filter(|p| extent.donors.binary_search(p).is_err())
        .filter(|p| {
            let rebound = recording.params[*p as usize].rebound;
            rebound.is_some_and(taken_over)
        })
        .collect()
}

/// Arguments whose tensors are gone, as far as results of their type are computed into new memory.
pub(super) fn replaced(
    recording: &Recording,
    extent: &Extent,
    compiled: &Compiled,
) -> Vec<MissedDonation> {
    let aliased: Vec<u32> = recording.params.iter().filter_map(|p| p.rebound).collect();
    let mut fresh: Vec<Ty> = extent
        .live
        .iter()
        .filter(|node| !aliased.contains(node))
        .map(|&node| recording.nodes[node as usize].ty)
        .collect();
    let mut found = Vec::new();
    for argument in &compiled.arguments {
        let Argument::Param(p) = *argument else {
            continue;
        };
        let param = &recording.params[p as usize];
        let ty = recording.nodes[param.node as usize].ty;
        let dropped = match &recording.storages[param.node as usize] {
            Some(storage) => !Storage::is_held(storage),
            None => false,
        };
        // The recording's own storage of the parameter is the value's second holder.
        if param.rebound.is_none()
            && dropped
            && param.value.holders() <= 2
            && let Some(at) = fresh.iter().position(|other| *other == ty)
        {
            fresh.swap_remove(at);
            found.push(describe(recording, p, NotDonated::Replaced));
        }
    }
    found
}

fn describe(recording: &Recording, param: u32, reason: NotDonated) -> MissedDonation {
    let param = &recording.params[param as usize];
    let node = &recording.nodes[param.node as usize];
    let changed = param.rebound.map(|to| {
        // What was recorded last is often a plain copy of the result; the operator before says more.
        let by = recording.overwrite_of(param.node);
        let by = by.map(|overwrite| (overwrite.op, overwrite.location));
        let to = &recording.nodes[to as usize];
        by.unwrap_or((to.entry.name, to.location))
    });
    MissedDonation::new(node.ty, node.location, changed, reason)
}
