//! Runs properties: proptest draws the choices and, when a case fails, looks for the simplest that
//! still does.

use super::{CHOICES, Depth, Property, check};
use proptest::collection::vec;
use proptest::num::u32::ANY;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

/// Runs so many cases of one property. Equal seeds give equal cases.
///
/// # Errors
/// The simplest failing case that was found: the choices and what went wrong.
pub fn run(property: &Property, cases: u32, depth: Depth, seed: u64) -> Result<(), String> {
    let config = Config {
        cases,
        failure_persistence: None,
        max_shrink_iters: if depth == Depth::Executed { 256 } else { 4096 },
        ..Config::default()
    };
    let mut bytes = [0u8; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    bytes[8..16].copy_from_slice(&name_hash(property.name).to_le_bytes());
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let outcome = runner.run(&vec(ANY, 0..CHOICES), |choices| {
        check(property, &choices, depth).map_err(TestCaseError::fail)
    });
    let clear = xla::sync().map_err(|e| format!("{}: {e}", property.name));
    match outcome {
        Ok(()) => clear.map(drop),
        Err(TestError::Fail(reason, choices)) => Err(format!(
            "{}: {}; choices {choices:?}",
            property.name,
            reason.message()
        )),
        Err(other) => Err(format!("{}: {other}", property.name)),
    }
}

/// Different operators get different cases from one seed (FNV-1a).
fn name_hash(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
