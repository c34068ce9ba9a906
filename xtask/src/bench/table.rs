//! A comparison as a table: medians over the rounds, and this project's ratio to each peer.

use std::fmt::Write as _;

use serde_json::Value;

use super::against::{Comparison, Measured, OURS};

/// A field of the measurements, with what the table calls it and how its values read.
struct Row {
    field: &'static str,
    title: &'static str,
    show: fn(f64) -> String,
}

const ROWS: [Row; 8] = [
    Row {
        field: "step_s",
        title: "step, waited for",
        show: seconds,
    },
    Row {
        field: "pipelined_s",
        title: "step, pipelined",
        show: seconds,
    },
    Row {
        field: "launch_s",
        title: "start to launch",
        show: seconds,
    },
    Row {
        field: "ready_s",
        title: "start to parameters",
        show: seconds,
    },
    Row {
        field: "operator_ns",
        title: "an operator",
        show: nanoseconds,
    },
    Row {
        field: "compile_s",
        title: "first step, beyond the others",
        show: seconds,
    },
    Row {
        field: "peak_rss_mb",
        title: "peak memory",
        show: mebibytes,
    },
    Row {
        field: "allocations",
        title: "allocations a step",
        show: plain,
    },
];

/// The whole report, in Markdown.
pub(super) fn markdown(comparison: &Comparison) -> String {
    let machine = &comparison.machine;
    let mut text = format!(
        "# {}: {}, {} cores, {} GiB, {}\n\n",
        machine.date, machine.cpu, machine.cores, machine.memory_gib, machine.kernel
    );
    let rounds = comparison.rounds;
    let _ = writeln!(
        text,
        "Medians of {rounds} rounds, each measurement in a process of its own and all in turn; in \
         brackets {OURS}'s share of it: below 1, {OURS} needs less.\n"
    );
    let header = comparison.names.iter().map(|name| {
        let version = comparison.versions.get(name);
        version.map_or_else(|| name.clone(), |version| format!("{name} {version}"))
    });
    let header: Vec<String> = header.collect();
    let _ = writeln!(text, "| work | | {} |", header.join(" | "));
    let _ = writeln!(text, "| --- | --- |{}", " ---: |".repeat(header.len()));
    for measured in &comparison.works {
        for row in &ROWS {
            if let Some(line) = line(measured, row, &comparison.names) {
                let _ = writeln!(text, "{line}");
            }
        }
    }
    text
}

/// A row of the table; none where nobody has the field.
fn line(measured: &Measured, row: &Row, names: &[String]) -> Option<String> {
    let medians: Vec<Option<f64>> = names
        .iter()
        .map(|name| median(measured.lines.get(name)?, row.field))
        .collect();
    if medians.iter().all(Option::is_none) {
        return None;
    }
    let ours = medians.first().copied().flatten();
    let cells = names.iter().zip(&medians).map(|(name, theirs)| {
        let Some(theirs) = *theirs else {
            return "–".to_owned();
        };
        let value = (row.show)(theirs);
        match ours {
            Some(ours) if name != OURS && theirs > 0.0 => format!("{value} ({:.2})", ours / theirs),
            _ => value,
        }
    });
    let cells: Vec<String> = cells.collect();
    let work = &measured.work;
    Some(format!(
        "| {work} | {} | {} |",
        row.title,
        cells.join(" | ")
    ))
}

/// The median of a field over the rounds, the mean of the two in the middle where there are two.
fn median(lines: &[Value], field: &str) -> Option<f64> {
    let mut values: Vec<f64> = lines
        .iter()
        .filter_map(|line| line[field].as_f64())
        .collect();
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get(values.len().saturating_sub(1) / 2)?;
    Some((lower + upper) / 2.0)
}

fn seconds(value: f64) -> String {
    match value {
        value if value < 1e-3 => format!("{:.1} µs", value * 1e6),
        value if value < 1.0 => format!("{:.2} ms", value * 1e3),
        value => format!("{value:.2} s"),
    }
}

fn nanoseconds(value: f64) -> String {
    format!("{value:.0} ns")
}

fn mebibytes(value: f64) -> String {
    format!("{value:.0} MiB")
}

fn plain(value: f64) -> String {
    format!("{value:.1}")
}

#[cfg(test)]
mod tests {
    use super::super::machine::Machine;
    use super::*;
    use serde_json::json;
    use std::collections::BTreeMap;

    #[test]
    fn medians_and_ratios_are_in_the_table() {
        let machine = Machine {
            date: "2026-01-31".to_owned(),
            cpu: "A".to_owned(),
            cores: 2,
            memory_gib: 8.0,
            kernel: "linux 6".to_owned(),
        };
        let lines = BTreeMap::from([
            (
                OURS.to_owned(),
                vec![
                    json!({ "step_s": 0.003, "allocations": 1.5 }),
                    json!({ "step_s": 0.001, "allocations": 1.5 }),
                    json!({ "step_s": 0.002, "allocations": 1.5 }),
                ],
            ),
            (
                "jax".to_owned(),
                vec![json!({ "step_s": 3.0 }), json!({ "step_s": 5.0 })],
            ),
        ]);
        let comparison = Comparison {
            machine,
            rounds: 3,
            names: vec![OURS.to_owned(), "jax".to_owned(), "torch".to_owned()],
            versions: BTreeMap::from([("jax".to_owned(), "1.2".to_owned())]),
            works: vec![Measured {
                work: "mlp".to_owned(),
                steps: 7,
                lines,
            }],
        };
        let text = markdown(&comparison);
        let rows: Vec<&str> = text.lines().filter(|line| line.starts_with('|')).collect();
        assert_eq!(
            rows,
            [
                "| work | | xla-rs | jax 1.2 | torch |",
                "| --- | --- | ---: | ---: | ---: |",
                "| mlp | step, waited for | 2.00 ms | 4.00 s (0.00) | – |",
                "| mlp | allocations a step | 1.5 | – | – |",
            ]
        );
    }

    #[test]
    fn small_times_have_small_units() {
        assert_eq!(seconds(0.000_012_34), "12.3 µs");
        assert_eq!(seconds(0.012_34), "12.34 ms");
        assert_eq!(seconds(12.34), "12.34 s");
    }
}
