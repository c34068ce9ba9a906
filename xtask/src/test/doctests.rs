//! Runs the doctests with cargo and counts them. rustdoc starts a process for each by itself.

use std::time::Duration;

use super::{Options, Summary};
use crate::error::Result;
use crate::process::{self, End};
use crate::{note, workspace};

const DEADLINE: Duration = Duration::from_secs(15 * 60);
/// Bytes of output that are kept; the counts are at the end of each crate's.
const KEPT: u64 = 16 << 20;

/// Runs them all; what failed is printed.
///
/// # Errors
/// If cargo cannot be started.
pub(super) fn run(options: &Options, gloo: bool) -> Result<Summary> {
    note("running the doctests");
    let mut command = workspace::cargo();
    command.args(["test", "--doc", "--no-fail-fast"]);
    command.args(workspace::selection(&options.package, gloo));
    super::without_persistent_cache(&mut command);
    if let Some(text) = &options.filter {
        command.args(["--", text]);
    }
    let captured = process::capture(&mut command, DEADLINE, KEPT)?;
    let mut counts = count(&captured.output);
    let ended_well = matches!(captured.end, End::Exited(status) if status.success());
    if !ended_well && counts.failed == 0 {
        // Nothing was counted as failed: cargo or rustdoc itself failed, or time ran out.
        counts.failed = 1;
    }
    if counts.failed > 0 {
        let how = match captured.end {
            End::TimedOut => format!("not done after {} s", DEADLINE.as_secs()),
            End::Exited(status) => status.to_string(),
        };
        println!("FAILED doctests: {how}");
        for line in captured.output.lines() {
            println!("    {line}");
        }
    }
    Ok(counts)
}

/// Adds up the result lines of all crates. An ignored doctest is a failure.
fn count(output: &str) -> Summary {
    let mut summary = Summary::default();
    for line in output.lines() {
        let Some((_, counts)) = line.split_once("test result: ") else {
            continue;
        };
        summary.passed += number_before(counts, " passed");
        summary.failed += number_before(counts, " failed") + number_before(counts, " ignored");
    }
    summary
}

/// The number that stands right before `word`, else 0.
fn number_before(text: &str, word: &str) -> usize {
    let before = text.split_once(word).map_or("", |(before, _)| before);
    let digits = before.rsplit(' ').next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_all_crates_are_added() {
        let output = "   Doc-tests xla_core\n\nrunning 3 tests\ntest a - (line 1) ... ok\n\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.1s\n\n\
            test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 4 filtered out\n";
        assert_eq!(
            count(output),
            Summary {
                passed: 15,
                failed: 3
            }
        );
        assert_eq!(count("error: could not compile"), Summary::default());
    }
}
