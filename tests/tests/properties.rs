//! Random arguments: an error or the right value, whatever comes.

use tests::fuzz::{self, Depth, Property};
use tests::with_devices;

/// Cases of each operator that are compiled and compared.
const EXECUTED: u32 = 16;
/// Cases of each operator that are only recorded.
const RECORDED: u32 = 200;
/// Whence the cases are drawn: the same in every run.
const SEED: u64 = 2024;

/// Runs the properties whose place in the list is `part` modulo `parts`.
fn hold(part: usize, parts: usize) {
    with_devices(1, || {
        let mine: Vec<Property> = fuzz::properties()
            .into_iter()
            .skip(part)
            .step_by(parts)
            .collect();
        let mut broken = Vec::new();
        for property in &mine {
            for (cases, depth) in [(RECORDED, Depth::Recorded), (EXECUTED, Depth::Executed)] {
                broken.extend(fuzz::run(property, cases, depth, SEED).err());
            }
        }
        assert!(broken.is_empty(), "{}", broken.join("\n"));
        assert!(!mine.is_empty());
    });
}

#[test]
fn operators_keep_their_word_first_part() {
    hold(0, 4);
}

#[test]
fn operators_keep_their_word_second_part() {
    hold(1, 4);
}

#[test]
fn operators_keep_their_word_third_part() {
    hold(2, 4);
}

#[test]
fn operators_keep_their_word_fourth_part() {
    hold(3, 4);
}
