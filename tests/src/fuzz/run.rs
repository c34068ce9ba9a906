//! Runs properties: proptest draws the choices and, when a case fails, looks for the simplest that
//! still does.

use super::{CHOICES, Depth, Property, check, hold_together};
use proptest::collection::vec;
use proptest::num::u32::ANY;
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// So many cases are executed as one program.
const TOGETHER: u32 = 8;

/// Runs so many cases of one property. Equal seeds give equal cases.
///
/// # Errors
/// The simplest failing case that was found: the choices and what went wrong.
pub fn run(property: &Property, cases: u32, depth: Depth, seed: u64) -> Result<(), String> {
    let name = property.name;
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: if depth == Depth::Executed { 256 } else { 4096 },
        ..Config::default()
    };
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&name_hash(name).to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let strategy = vec(ANY, CHOICES / 4..CHOICES);
    let mut left = cases;
    while left > 0 {
        let trees: Result<Vec<_>, _> = (0..left.min(TOGETHER))
            .map(|_| strategy.new_tree(&mut runner))
            .collect();
        let trees = trees.map_err(|reason| format!("{name}: {reason}"))?;
        left -= trees.len() as u32;
        let choices: Vec<Vec<u32>> = trees.iter().map(ValueTree::current).collect();
        let Err(reason) = hold_together(property, &choices, depth) else {
            continue;
        };
        for tree in trees {
            let one = runner.run_one(tree, |choices| {
                check(property, &choices, depth).map_err(TestCaseError::fail)
            });
            one.map_err(|error| match error {
                TestError::Fail(reason, mut choices) => {
                    let used = choices.iter().rposition(|&c| c != 0).map_or(0, |i| i + 1);
                    choices.truncate(used);
                    format!("{name}: {}; choices {choices:?}", reason.message())
                }
                other => format!("{name}: {other}"),
            })?;
        }
        return Err(format!("{name}, several cases in one program: {reason}"));
    }
    Ok(())
}

/// Different operators get different cases from one seed (FNV-1a).
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
