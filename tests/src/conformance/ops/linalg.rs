//! Products and linear algebra.

use super::{Call, one};
use xla::nn::functional;

pub(super) fn find(name: &str) -> Option<Call> {
    Some(match name {
        "linear" => |x, _| one(functional::linear(&x[0], &x[1], x.get(2))),
        "matmul" => |x, _| one(x[0].matmul(&x[1])),
        _ => return None,
    })
}
