//! The process's counters and metrics as data, as text, and for Prometheus.

use super::counter::{Counter, total};
use super::metric::{Metric, Unit};
use serde::{Deserialize, Serialize};
use std::fmt::{self, Write as _};

/// The percentiles that reports state, PyTorch/XLA's.
const PERCENTILES: [f64; 9] = [1.0, 5.0, 10.0, 20.0, 50.0, 80.0, 90.0, 95.0, 99.0];

/// A value that so many percent of the latest samples do not exceed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Percentile {
    /// From 1 to 99.
    pub percent: f64,
    /// In the metric's unit.
    pub value: f64,
}

/// What is known of a metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct MetricData {
    /// Its name.
    pub name: String,
    /// What its values are.
    pub unit: Unit,
    /// Samples taken.
    pub samples: u64,
    /// Their sum.
    pub sum: f64,
    /// Samples a second, over the latest ones; 0 where there is one only.
    pub rate: f64,
    /// The samples' sum a second, over the latest ones; 0 where there is one only.
    pub value_rate: f64,
    /// Over the latest samples, at most 1,024; ascending.
    pub percentiles: Vec<Percentile>,
}

/// What was counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct CounterData {
    /// Its name.
    pub name: String,
    /// How much.
    pub value: u64,
}

/// The process's metrics and counters. Printed, it is what PyTorch/XLA's `metrics_report` prints.
///
/// ```
/// let report = xla_runtime::metrics::report();
/// assert!(report.to_prometheus().contains("# TYPE xla_mark_step_total counter"));
/// assert!(report.metric("CompileTime").is_none_or(|compiles| compiles.samples > 0));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Report {
    /// Those that have samples.
    pub metrics: Vec<MetricData>,
    /// All of them.
    pub counters: Vec<CounterData>,
}

/// What has happened in the process since it began, or since [`clear`](super::clear).
pub fn report() -> Report {
    Report {
        metrics: Metric::ALL.iter().filter_map(|m| m.data()).collect(),
        counters: Counter::ALL
            .iter()
            .map(|counter| CounterData {
                name: counter.name().into(),
                value: total(*counter),
            })
            .collect(),
    }
}

impl Metric {
    /// What is known of it; `None` without a sample.
    pub fn data(self) -> Option<MetricData> {
        let samples = self.samples();
        let ((from, _), (to, _)) = (*samples.latest.front()?, *samples.latest.back()?);
        let mut values: Vec<f64> = samples.latest.iter().map(|(_, value)| *value).collect();
        let (count, sum) = (samples.count, samples.sum);
        drop(samples);
        // The first of them began the interval.
        let over = |amount: f64| if to > from { amount / (to - from) } else { 0.0 };
        let (rate, value_rate) = (
            over((values.len() - 1) as f64),
            over(values[1..].iter().sum()),
        );
        values.sort_by(f64::total_cmp);
        let rank = |percent: f64| (percent / 100.0 * values.len() as f64).ceil() as usize;
        let percentiles = PERCENTILES.map(|percent| Percentile {
            percent,
            value: values[rank(percent).clamp(1, values.len()) - 1],
        });
        Some(MetricData {
            name: self.name().into(),
            unit: self.unit(),
            samples: count,
            sum,
            rate,
            value_rate,
            percentiles: percentiles.to_vec(),
        })
    }
}

impl Report {
    /// The metric of this name, if it has samples.
    pub fn metric(&self, name: &str) -> Option<&MetricData> {
        self.metrics.iter().find(|metric| metric.name == name)
    }

    /// The value of the counter of this name, if there is one.
    pub fn counter(&self, name: &str) -> Option<u64> {
        let mut named = self.counters.iter().filter(|counter| counter.name == name);
        named.next().map(|counter| counter.value)
    }

    /// In Prometheus' text format, each name in snake case after `xla_`.
    pub fn to_prometheus(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write_prometheus(&mut text);
        text
    }

    fn write_prometheus(&self, out: &mut String) -> fmt::Result {
        for metric in &self.metrics {
            let unit = match metric.unit {
                Unit::Seconds => "_seconds",
                Unit::Bytes => "_bytes",
                Unit::Count => "",
            };
            let name = format!("xla_{}{unit}", snake_case(&metric.name));
            writeln!(out, "# TYPE {name} summary")?;
            for Percentile { percent, value } in &metric.percentiles {
                writeln!(out, "{name}{{quantile=\"{}\"}} {value}", percent / 100.0)?;
            }
            writeln!(out, "{name}_sum {}", metric.sum)?;
            writeln!(out, "{name}_count {}", metric.samples)?;
        }
        for counter in &self.counters {
            let name = format!("xla_{}_total", snake_case(&counter.name));
            writeln!(out, "# TYPE {name} counter\n{name} {}", counter.value)?;
        }
        Ok(())
    }
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (i, letter) in name.chars().enumerate() {
        if letter.is_ascii_uppercase() && i > 0 {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

impl Unit {
    /// A value in this unit, as people read it: `1.50MB`, `2s003ms000.000us`.
    pub fn show(self, value: f64) -> impl fmt::Display {
        Measured(value, self)
    }
}

/// A value in a metric's unit.
struct Measured(f64, Unit);

impl fmt::Display for Measured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Measured(value, unit) = *self;
        match unit {
            Unit::Seconds => write_seconds(f, value),
            Unit::Bytes => {
                const UNITS: [&str; 5] = ["B", "KB", "MB", "GB", "TB"];
                let power = ((value.max(1.0).log2() / 10.0) as usize).min(UNITS.len() - 1);
                write!(
                    f,
                    "{:.2}{}",
                    value / 1024f64.powi(power as i32),
                    UNITS[power]
                )
            }
            Unit::Count => write!(f, "{value:.2}"),
        }
    }
}

/// As PyTorch/XLA: each unit from the largest that is not 0 on.
fn write_seconds(f: &mut fmt::Formatter<'_>, seconds: f64) -> fmt::Result {
    const UNITS: [(&str, f64, usize); 5] = [
        ("d", 86_400e6, 2),
        ("h", 3_600e6, 2),
        ("m", 60e6, 2),
        ("s", 1e6, 2),
        ("ms", 1e3, 3),
    ];
    let mut micros = seconds * 1e6;
    let mut begun = false;
    for (name, size, width) in UNITS {
        let whole = (micros / size).floor();
        if begun || whole > 0.0 {
            write!(f, "{whole:0width$}{name}")?;
            micros -= whole * size;
            begun = true;
        }
    }
    match begun {
        true => write!(f, "{micros:07.3}us"),
        false => write!(f, "{micros:.3}us"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for metric in &self.metrics {
            let measured = |value| Measured(value, metric.unit);
            writeln!(f, "Metric: {}", metric.name)?;
            writeln!(f, "  TotalSamples: {}", metric.samples)?;
            writeln!(f, "  Accumulator: {}", measured(metric.sum))?;
            writeln!(f, "  ValueRate: {} / second", measured(metric.value_rate))?;
            writeln!(f, "  Rate: {:.6} / second", metric.rate)?;
            let mut line = String::new();
            for Percentile { percent, value } in &metric.percentiles {
                let separator = if line.is_empty() { "" } else { "; " };
                write!(line, "{separator}{percent}%={}", measured(*value))?;
            }
            writeln!(f, "  Percentiles: {line}")?;
        }
        for counter in self.counters.iter().filter(|counter| counter.value > 0) {
            writeln!(f, "Counter: {}\n  Value: {}", counter.name, counter.value)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_pytorch_xla_prints_them() {
        let text = |seconds| Measured(seconds, Unit::Seconds).to_string();
        assert_eq!(text(369.401_746), "06m09s401ms746.000us");
        assert_eq!(text(0.001_032_5), "001ms032.500us");
        assert_eq!(text(0.000_012), "12.000us");
        assert_eq!(Measured(3.0 * 1024.0, Unit::Bytes).to_string(), "3.00KB");
    }

    /// Nearest-rank percentiles of 1, 2, …, 100 are the percents themselves.
    #[test]
    fn percentiles_and_text_forms() {
        for i in 1..=100 {
            Metric::GangWaitTime.record(f64::from(i));
        }
        let report = report();
        let data = report.metric("GangWaitTime").unwrap();
        assert_eq!((data.samples, data.sum), (100, 5050.0));
        for percentile in &data.percentiles {
            assert_eq!(percentile.value, percentile.percent);
        }
        let text = report.to_string();
        assert!(
            text.contains(
                "Metric: GangWaitTime\n  TotalSamples: 100\n  Accumulator: 01h24m10s000ms000.000us"
            ),
            "{text}"
        );
        let scraped = report.to_prometheus();
        assert!(scraped.contains("xla_gang_wait_time_seconds{quantile=\"0.5\"} 50\n"));
        assert!(scraped.contains("xla_gang_wait_time_seconds_count 100\n"));
        let copy: Report = serde_json::from_str(&serde_json::to_string(&report).unwrap()).unwrap();
        assert_eq!(copy.counters, report.counters);
    }
}
