//! Collectives as operators: each a block of shape rule, lowering and derivative, like any other.
//!
//! All members of the gang record the same operator, with the whole partition into groups rather
//! than the group they are in: XLA compiles one program for all replicas. Where a program must know
//! which member runs it, the member's position is an operand: a number is data, so the program stays
//! the same.
//!
//! A derivative is recorded with the gang of its operator, whatever group is the default one by then.

mod all_gather;
mod all_reduce;
mod all_to_all;
mod broadcast;
mod default_group;
mod exchanged;
mod list;
mod lowering;
mod many;
mod permute;
mod reduce_op;
mod reduce_scatter;
mod replica_groups;
mod rooted;
mod separate;
mod uneven;

pub use all_to_all::AllToAllOptions;
pub use default_group::*;
pub use permute::Transfer;
pub use reduce_op::{AllReduceOptions, ReduceOp};
pub(crate) use replica_groups::ReplicaGroups;
