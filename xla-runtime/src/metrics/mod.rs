//! What happened and how long it took: counters and timings under PyTorch/XLA's names where they
//! mean the same.
//!
//! The process's totals are in [`report`], to be printed, serialised, or scraped. A [`Scope`] sees
//! what its own thread does while it is alive, and what the replicas do that a launch starts
//! meanwhile, so two tests, or two models in one process, do not see each other's counts.
//!
//! Nothing here is touched when an operator is recorded: what is counted happens once a program or
//! once a transfer.
//!
//! ```
//! use xla_runtime::metrics::{self, Counter};
//! let report = metrics::report();
//! assert_eq!(report.counter("MarkStep"), Some(metrics::total(Counter::MarkStep)));
//! println!("{report}");
//! ```

mod counter;
mod metric;
mod origin;
mod report;
mod scope;

pub use counter::{Counter, total};
pub use metric::{Metric, Stopwatch, Unit};
pub use origin::{Attributed, Origin, attribute};
pub use report::{CounterData, MetricData, Percentile, Report, report};
pub use scope::{Entry, Inherited, Scope, add, add_with, inherit};

/// Sets the process's counters and metrics to nothing, as PyTorch/XLA's `clear_all`. Scopes keep
/// what they have counted.
pub fn clear() {
    counter::clear();
    metric::clear();
}
