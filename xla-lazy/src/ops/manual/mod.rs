//! Manual regions: functions of the blocks that each device of a mesh holds.
//!
//! The closure is recorded once, into a region; each result is a node with all operands, and lowering
//! writes the region once for all of them.

mod derivative;
mod mapped;
mod place;
mod shard_map;

pub use place::axis_index;
pub use shard_map::shard_map;
