//! Random arguments: an error or the right value, whatever comes.

use tests::conformance::operator_names;
use tests::fuzz::{self, Depth, Property};
use tests::with_devices;

/// Cases of each operator that are compiled and compared.
const EXECUTED: u32 = 16;
/// Cases of each operator that are only recorded.
const RECORDED: u32 = 200;
/// Whence the cases are drawn: the same in every run.
const SEED: u64 = 2024;
/// So many tests share the operators.
const PARTS: usize = 8;

/// Runs the properties whose place in the list is `part` modulo [`PARTS`].
fn hold(part: usize) {
    with_devices(1, || {
        let mine: Vec<Property> = fuzz::properties()
            .into_iter()
            .skip(part)
            .step_by(PARTS)
            .collect();
        let mut broken = Vec::new();
        for property in &mine {
            // The last line names the operator if the process aborts.
            println!("{}", property.name);
            for (cases, depth) in [(RECORDED, Depth::Recorded), (EXECUTED, Depth::Executed)] {
                broken.extend(fuzz::run(property, cases, depth, SEED).err());
            }
        }
        assert!(broken.is_empty(), "{}", broken.join("\n"));
        assert!(!mine.is_empty());
    });
}

macro_rules! parts {
    ($($name:ident = $part:literal;)*) => {$(
        #[test]
        fn $name() {
            hold($part);
        }
    )*};
}

parts! {
    operators_keep_their_word_0 = 0;
    operators_keep_their_word_1 = 1;
    operators_keep_their_word_2 = 2;
    operators_keep_their_word_3 = 3;
    operators_keep_their_word_4 = 4;
    operators_keep_their_word_5 = 5;
    operators_keep_their_word_6 = 6;
    operators_keep_their_word_7 = 7;
}

/// A new operator that cases know needs a property too.
#[test]
fn every_operator_has_a_property() {
    let properties = fuzz::properties();
    let has = |name: &&str| properties.iter().any(|property| property.name == *name);
    let bare: Vec<_> = operator_names()
        .into_iter()
        .filter(|names| !names.iter().any(has))
        .collect();
    assert!(bare.is_empty(), "without a property: {bare:?}");
}
