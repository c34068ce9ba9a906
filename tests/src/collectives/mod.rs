//! Collectives against closed forms, as functions of rank and world size: the same checks for
//! threads, processes, and both.
//!
//! Each function runs on every rank of a world that has a default process group, and panics where a
//! value is not the closed form's.

mod check;
mod gradients;
mod groups;
mod many;
mod mistakes;
mod movement;
mod reductions;
mod uneven;

pub use check::Checks;
pub use gradients::gradients;
pub use groups::{groups, partitions, two_groups_in_one_model};
pub use many::many;
pub use mistakes::mistakes;
pub use movement::{movement, rooted};
pub use reductions::reductions;
pub use uneven::uneven;

/// A check and its name.
pub type Case = (&'static str, fn(usize, usize) -> xla::Result<()>);

/// All of them.
pub const CASES: [Case; 10] = [
    ("reductions", reductions),
    ("movement", movement),
    ("rooted", rooted),
    ("many", many),
    ("groups", groups),
    ("partitions", partitions),
    ("two groups in one model", two_groups_in_one_model),
    ("gradients", gradients),
    ("uneven", uneven),
    ("mistakes", mistakes),
];

/// Runs all checks on this rank.
///
/// # Errors
/// Those of the collectives, which are not expected.
///
/// # Panics
/// Where a value differs from its closed form.
pub fn all(rank: usize, world: usize) -> xla::Result<()> {
    CASES.iter().try_for_each(|(_, case)| case(rank, world))
}
