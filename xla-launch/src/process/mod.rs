//! Replicas in processes that a launch starts.
//!
//! A child is this program, run again from its beginning with the same arguments. It learns from one
//! variable ([`xla_store::environment::LAUNCH_CHILD`]) whose child it is and which launch of its parent it is part of.
//! What the program does before that launch happens in the child too, except that earlier launches
//! return what they returned to the parent. The launch itself runs the child's replicas, tells the
//! parent how each ended, and ends the process.
//!
//! The parent runs no replica: it hosts the store through which the children find each other, so
//! that the store outlives every rank, and supervises.

mod child;
mod fork;
mod parent;
mod protocol;
mod verdict;

pub(crate) use child::Child;
pub(crate) use parent::{Settings, run};
pub(crate) use protocol::{Recorded, decode, encode};
