//! Variables that a launch of this project gives to the processes that it starts, and to nobody
//! else.

use std::os::unix::process::parent_id;
use std::sync::OnceLock;

/// The variable that tells a process which launch has started it; its value begins with the id of
/// the launching process and a colon. Whatever such a process starts inherits it, so it counts only in
/// children of that process.
pub const LAUNCH_CHILD: &str = "XLA_LAUNCH_CHILD";

/// What a launch gives beside it.
const GIVEN: [&str; 9] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "XLA_STORE_ADDR",
    "XLA_STORE_TOKEN",
    "XLA_LAUNCH_DEVICES",
];

/// A variable of this process's environment, unless a launch gave it to somebody else: to a process
/// that has started this one, which is then no part of the launch.
pub fn variable(name: &str) -> Option<String> {
    static STRANGER: OnceLock<bool> = OnceLock::new();
    let stranger = *STRANGER.get_or_init(|| {
        std::env::var(LAUNCH_CHILD)
            .is_ok_and(|value| !value.is_empty() && !is_of(&value, parent_id()))
    });
    match stranger {
        true => variable_before_launch(name),
        false => std::env::var(name).ok(),
    }
}

/// A variable of this process's environment, as it was before a launch gave this process any: for
/// what the process does before it comes to that launch.
pub fn variable_before_launch(name: &str) -> Option<String> {
    (!GIVEN.contains(&name))
        .then(|| std::env::var(name).ok())
        .flatten()
}

/// Whether the value is that of a child of this process.
fn is_of(value: &str, parent: u32) -> bool {
    let launching = value.split(':').next().unwrap_or_default();
    launching.parse() == Ok(parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_children_of_the_launching_process_are_meant() {
        assert!(is_of("17:0:0:/tmp/socket", 17));
        for stranger in ["17:0:0:/tmp/socket", "", "x"] {
            assert!(!is_of(stranger, 18));
        }
    }

    #[test]
    fn what_a_launch_gives_is_not_seen_before_it() {
        assert_eq!(variable_before_launch("RANK"), None);
        assert_eq!(variable_before_launch("PATH"), std::env::var("PATH").ok());
    }
}
