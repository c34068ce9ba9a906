//! Which call each operator's name stands for, one file a family as in the crates.

/// Defines `find`, which knows the call of a name, and `NAMES`, which lists all names of a call.
macro_rules! operators {
    (fn find(name: &str) -> Option<Call> { $($($name:literal)|+ => $call:expr,)* }) => {
        pub(super) const NAMES: &[&[&str]] = &[$(&[$($name),+]),*];

        pub(super) fn find(name: &str) -> Option<Call> {
            Some(match name {
                $($($name)|+ => $call,)*
                _ => return None,
            })
        }
    };
}

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

/// All operators: the names of each.
pub(super) fn names() -> Vec<&'static [&'static str]> {
    [
        activation::NAMES,
        binary::NAMES,
        conv::NAMES,
        index::NAMES,
        linalg::NAMES,
        loss::NAMES,
        norm::NAMES,
        pool::NAMES,
        reduce::NAMES,
        scan::NAMES,
        shape::NAMES,
        sort::NAMES,
        unary::NAMES,
    ]
    .concat()
}

/// A call with one output.
fn one(output: Result<Tensor>) -> Result<Vec<Tensor>> {
    output.map(|output| vec![output])
}
