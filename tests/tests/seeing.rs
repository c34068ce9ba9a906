//! What is told of compiles and executions: the log, the dumps, the metrics, and budgets of launches.

use std::process::Command;
use tests::{multiples, replicas, with_devices, with_env};
use xla::metrics::{self, Counter};
use xla::testing::budget;
use xla::{DType, Error, Result, Tensor, debug, dist};

/// Runs a test of this file with the log on and returns what it printed.
fn log_of(test: &str) -> String {
    let executable = std::env::current_exe().unwrap();
    let run = Command::new(executable)
        .args([test, "--exact", "--nocapture"])
        .env("XLA_DEBUG", "log")
        .env("XLA_PERSISTENT_CACHE_PATH", "0")
        .env("CPU_NUM_DEVICES", "2")
        .output()
        .unwrap();
    let text = String::from_utf8(run.stderr).unwrap();
    assert!(run.status.success(), "{text}");
    text
}

#[test]
fn logged() -> Result<()> {
    if std::env::var_os("XLA_DEBUG").is_none() {
        return Ok(());
    }
    let mut state = Tensor::ones([1024], DType::F32)?;
    xla::sync()?.wait()?;
    for n in [256, 128] {
        state.mul_(0.5)?;
        let part = state.narrow(0, 0, n)?.exp()?;
        part.to_vec::<f32>()?;
    }
    state = state.mul(2.0)?;
    xla::sync()?.wait()?;
    drop(state);
    let sums = replicas(2, |rank| {
        let x = multiples(rank)?;
        dist::all_reduce_(&x, dist::ReduceOp::Sum)?;
        x.to_vec::<f32>()
    });
    assert_eq!(sums, [[3.0, 6.0], [3.0, 6.0]]);
    Ok(())
}

#[test]
fn the_log_says_what_ran_for_which_line_and_why_it_compiled_again() {
    let text = log_of("logged");
    let lines: Vec<&str> = text.lines().filter(|l| l.starts_with("[xla")).collect();
    let said = |parts: &[&str]| {
        let found = |line: &&&str| parts.iter().all(|part| line.contains(part));
        assert!(
            lines.iter().any(|l| found(&l)),
            "{parts:?} is not in:\n{text}"
        );
    };
    said(&[
        "[xla] compiled for sync() at tests/tests/seeing.rs:",
        "1 operators, arguments 0 (0.00B), results 1 (4.00KB)",
    ]);
    said(&[
        "[xla] step 1 on xla:0 started for to_vec() read a value at tests/tests/seeing.rs:",
        "donated 1 (4.00KB), temporaries ",
    ]);
    said(&[
        "  why again: operator ",
        "was Narrow {",
        "at tests/tests/seeing.rs:",
    ]);
    said(&[
        "  not donated: f32[1024] (4.00KB), read at tests/tests/seeing.rs:",
        "it was replaced rather than changed",
    ]);
    said(&["[xla 1] step 0 on xla:1 started for to_vec()"]);
}

#[test]
fn a_word_that_is_not_known_is_an_error_naming_those_that_are() {
    with_env(&[("XLA_DEBUG", "log,everything")], || {
        let error = xla::device().unwrap_err();
        assert!(
            matches!(&error, Error::Config { name: "XLA_DEBUG", got, .. } if got == "everything")
        );
        assert!(error.to_string().contains("log, index, nan"), "{error}");
    });
}

#[test]
fn a_pending_program_is_shown_and_not_run() -> Result<()> {
    let x = Tensor::from_slice(&[1.0f32, 2.0], [2], ())?;
    let state = Tensor::ones([64, 64], DType::F32)?;
    xla::sync()?.wait()?;
    let shown = budget(|| {
        state.mul_(0.25)?;
        let y = x.mul(2.0)?.exp()?;
        let unused = x.sin()?;
        drop(unused);
        Ok((debug::pending()?, y))
    })?;
    shown.compiles(0).executions(0).host_reads(0);
    let (program, y) = &shown.value;
    let text = program.to_string();
    let lines: Vec<&str> = text.lines().collect();
    let has = |parts: &[&str]| {
        let found = |line: &&str| parts.iter().all(|part| line.contains(part));
        assert!(lines.iter().any(found), "{parts:?} is not in:\n{text}");
    };
    has(&["= parameter f32[2] (at ", "seeing.rs:"]);
    has(&["= parameter f32[64, 64], donated (at "]);
    has(&["= Mul(%", ", 2) f32[2] (at "]);
    has(&["= Exp(%", ") f32[2], kept (at "]);
    has(&["= Sin(%", ", unused (at "]);

    let stablehlo = program.stablehlo();
    assert!(stablehlo.contains("stablehlo.exponential"), "{stablehlo}");
    assert!(!stablehlo.contains("stablehlo.sine"), "{stablehlo}");
    let optimized = program.optimized_hlo()?;
    assert!(optimized.contains("\nENTRY %"), "{optimized}");
    assert!(optimized.contains("f32[64,64]{1,0}"), "{optimized}");
    assert!(optimized.contains("exponential("), "{optimized}");

    let dot = program.to_dot();
    assert!(
        dot.starts_with("digraph program {") && dot.contains(" -> n"),
        "{dot}"
    );
    let svg = program.to_svg();
    assert!(svg.contains("<title>Exp at "), "{svg}");
    assert_eq!(svg.matches("<rect x=").count(), program.len());

    // What was shown holds nothing: the state is still overwritten.
    let run = budget(|| xla::sync()?.wait())?;
    run.executions(1).donations_missed(0);
    for (got, expected) in y.to_vec::<f32>()?.iter().zip([2.0f32.exp(), 4.0f32.exp()]) {
        assert!(
            (got / expected - 1.0).abs() < 1e-6,
            "{got} is not {expected}"
        );
    }
    assert!(debug::pending()?.is_empty());
    Ok(())
}

#[test]
fn metrics_have_pytorchs_names() {
    with_devices(1, || {
        let run = || -> Result<()> {
            let x = Tensor::ones([256], DType::F32)?;
            xla::sync()?;
            for _ in 0..5 {
                x.mul_(0.5)?;
                xla::sync()?;
            }
            x.to_vec::<f32>()?;
            Ok(())
        };
        run().unwrap();
        let report = metrics::report();
        let counter = |name| report.counter(name).unwrap();
        assert_eq!(counter("MarkStep"), 6);
        assert_eq!(counter("UncachedCompile"), 2);
        assert_eq!(counter("CachedCompile"), 4);
        assert_eq!(counter("InboundBytes"), 1024);
        assert_eq!(metrics::total(Counter::DonationMissed), 0);
        let samples = |name| report.metric(name).map_or(0, |metric| metric.samples);
        assert_eq!(samples("ExecuteTime"), 6);
        assert_eq!(samples("TensorsGraphSize"), 6);
        assert_eq!(samples("TransferFromDeviceTime"), 1);
        assert_eq!(samples("InputOutputAliasCount"), 2);
        // A parameter, the product, and its writing into the tensor in each of the five.
        assert_eq!(report.metric("TensorsGraphSize").unwrap().sum, 16.0);
        let text = report.to_string();
        assert!(text.contains("Counter: MarkStep\n  Value: 6\n"), "{text}");
        assert!(report.to_prometheus().contains("xla_mark_step_total 6\n"));
        metrics::clear();
        assert_eq!(metrics::report().counter("MarkStep"), Some(0));
    });
}

#[test]
fn a_budget_counts_the_replicas_of_a_launch() {
    with_devices(2, || {
        let spent = budget(|| {
            let sums = replicas(2, |rank| {
                let x = multiples(rank)?;
                dist::all_reduce_(&x, dist::ReduceOp::Sum)?;
                x.to_vec::<f32>()
            });
            Ok(sums)
        });
        let spent = spent.unwrap();
        assert_eq!(spent.value, [[3.0, 6.0], [3.0, 6.0]]);
        spent.compiles(1).executions(2).host_reads(2).bytes_read(16);
    });
}
