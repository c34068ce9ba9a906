//! The format that Perfetto and Chrome read: the
//! [Trace Event Format](https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU).

use super::Seen;
use super::row::Row;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use xla_core::{Error, Result};

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File<'a> {
    trace_events: Vec<Event<'a>>,
    display_time_unit: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    other_data: BTreeMap<&'static str, String>,
}

#[derive(Serialize)]
struct Event<'a> {
    name: &'a str,
    cat: &'static str,
    /// `X` for a span, `M` for what is said about a row.
    ph: &'static str,
    /// Microseconds since the profile began.
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    pid: u32,
    tid: u64,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    args: BTreeMap<&'static str, String>,
}

pub(super) fn write(seen: &Seen) -> Result<String> {
    let pid = std::process::id();
    let rows: BTreeSet<Row> = seen.spans.iter().map(|span| span.row).collect();
    let named = rows.into_iter().map(|row| Event {
        name: "thread_name",
        cat: "",
        ph: "M",
        ts: None,
        dur: None,
        pid,
        tid: row.id(),
        args: BTreeMap::from([("name", row.name())]),
    });
    let spans = seen.spans.iter().map(|span| {
        let since = span.began.saturating_duration_since(seen.began);
        Event {
            name: &span.name,
            cat: span.category,
            ph: "X",
            ts: Some(since.as_secs_f64() * 1e6),
            dur: Some(span.lasted.as_secs_f64() * 1e6),
            pid,
            tid: span.row.id(),
            args: span.detail.clone().into_iter().collect(),
        }
    });
    let mut other_data = BTreeMap::new();
    if seen.left_out > 0 {
        other_data.insert("spans left out", seen.left_out.to_string());
    }
    let file = File {
        trace_events: named.chain(spans).collect(),
        display_time_unit: "ms",
        other_data,
    };
    serde_json::to_string(&file).map_err(|error| Error::Internal {
        what: "profiler",
        expected: format!("spans that JSON can hold ({error})"),
    })
}
