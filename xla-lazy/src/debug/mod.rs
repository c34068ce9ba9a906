//! Seeing what happens: what is compiled and executed, and why.

pub(crate) mod checks;
pub(crate) mod donation;
pub(crate) mod log;
mod program;
mod size;

pub use crate::sync::capsule;
pub use donation::{Donations, MissedDonation, NotDonated, donations};
pub use program::{Program, pending};

pub(crate) use size::{Memory, Part, Size};
