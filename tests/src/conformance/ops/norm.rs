//! Normalisation.

use super::Call;

pub(super) fn find(name: &str) -> Option<Call> {
    Some(match name {
        _ => return None,
    })
}
