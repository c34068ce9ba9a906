//! The parts of messages that a format string alone does not say.

use super::{DTypeConflict, ShapeConflict};

/// Each place on a line of its own.
pub(super) fn indented(places: &[String]) -> String {
    let lines: Vec<String> = places.iter().map(|place| format!("  {place}")).collect();
    lines.join("\n")
}

/// The API version that something needs, with its own separator; nothing for (0, 0).
pub(super) fn needed(since: (i32, i32)) -> String {
    match since {
        (0, 0) => String::new(),
        (major, minor) => format!(" (needs PJRT API {major}.{minor})"),
    }
}

/// What [`Error::StateDict`](crate::Error::StateDict) says, one part for each name that does not fit.
pub(super) fn misfits(
    missing: &[String],
    unexpected: &[String],
    mismatched: &[ShapeConflict],
    mistyped: &[DTypeConflict],
) -> String {
    let mut parts = Vec::new();
    if !missing.is_empty() {
        parts.push(format!("missing: {}", missing.join(", ")));
    }
    if !unexpected.is_empty() {
        parts.push(format!("unexpected: {}", unexpected.join(", ")));
    }
    for ShapeConflict { key, expected, got } in mismatched {
        parts.push(format!("{key}: expected shape {expected:?}, got {got:?}"));
    }
    for DTypeConflict { key, expected, got } in mistyped {
        parts.push(format!("{key}: expected dtype {expected}, got {got}"));
    }
    parts.join("; ")
}
