//! Selections and writes by indices and masks.

use super::{Call, one};

pub(super) fn find(name: &str) -> Option<Call> {
    Some(match name {
        "index_select" => |x, a| one(x[0].index_select(a.i64("dim")?, &x[1])),
        "gather" => |x, a| one(x[0].gather(a.i64("dim")?, &x[1])),
        _ => return None,
    })
}
