//! Which call each operator's name stands for, one file a family as in the crates.

mod activation;
mod binary;
mod conv;
mod index;
mod linalg;
mod loss;
mod norm;
mod pool;
mod reduce;
mod scan;
mod shape;
mod sort;
mod unary;

use super::Kwargs;
use xla::{Result, Tensor};

/// An operator on a case's inputs and arguments.
pub(super) type Call = fn(&[Tensor], &Kwargs) -> Result<Vec<Tensor>>;

/// The call of this name.
pub(super) fn find(name: &str) -> Option<Call> {
    [
        activation::find,
        binary::find,
        conv::find,
        index::find,
        linalg::find,
        loss::find,
        norm::find,
        pool::find,
        reduce::find,
        scan::find,
        shape::find,
        sort::find,
        unary::find,
    ]
    .iter()
    .find_map(|find: &fn(&str) -> Option<Call>| find(name))
}

/// A call with one output.
fn one(output: Result<Tensor>) -> Result<Vec<Tensor>> {
    output.map(|output| vec![output])
}
