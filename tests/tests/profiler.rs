//! What a profile shows.

use serde_json::Value;
use std::collections::BTreeSet;
use tests::with_devices;
use xla::profiler::{self, StepTrace, Trace};
use xla::{Error, Launcher, Result, Tensor, dist};

/// The spans of a profile: name, category, row, start and end in microseconds.
fn spans(json: &str) -> Vec<(String, String, u64, f64, f64)> {
    let file: Value = serde_json::from_str(json).unwrap();
    let events = file["traceEvents"].as_array().unwrap().iter();
    events
        .filter(|event| event["ph"] == "X")
        .map(|event| {
            let text = |key: &str| event[key].as_str().unwrap().to_owned();
            let began = event["ts"].as_f64().unwrap();
            let ended = began + event["dur"].as_f64().unwrap();
            (
                text("name"),
                text("cat"),
                event["tid"].as_u64().unwrap(),
                began,
                ended,
            )
        })
        .collect()
}

#[test]
fn a_step_holds_what_happens_in_it() {
    with_devices(1, || {
        let run = || -> Result<String> {
            let profile = profiler::start()?;
            for step in 0..3 {
                let _step = StepTrace::new("train", step);
                let x = {
                    let _load = Trace::new("load");
                    Tensor::from_slice(&[1.0_f32; 300_000], [300_000], ())?
                };
                let y = x.exp()?.sum((), false)?;
                xla::sync()?.wait()?;
                y.item::<f32>()?;
            }
            // Only one at a time; a profile that is dropped makes room.
            assert!(matches!(profiler::start(), Err(Error::Argument { .. })));
            profile.to_json()
        };
        let all = spans(&run().unwrap());
        let of = |category: &str| -> Vec<_> { all.iter().filter(|s| s.1 == category).collect() };
        let steps = of("step");
        let names: Vec<&str> = steps.iter().map(|s| s.0.as_str()).collect();
        assert_eq!(names, ["train 0", "train 1", "train 2"]);
        assert_eq!(of("compile").len() + of("cache").len().min(1), 1, "{all:?}");
        for (category, least) in [
            ("user", 3),
            ("execute", 3),
            ("transfer", 3),
            ("run", 3),
            // The plugin may tell of the last one too late.
            ("device", 2),
        ] {
            assert!(of(category).len() >= least, "{category}: {all:?}");
        }
        // From the second step on, what is recorded lies between two runs.
        assert_eq!(of("trace").len(), 2);
        let within = |inner: &(String, String, u64, f64, f64)| {
            steps
                .iter()
                .any(|step| step.3 <= inner.3 && inner.4 <= step.4 && step.2 == inner.2)
        };
        for span in of("run").into_iter().chain(of("user")) {
            assert!(within(span), "{span:?}");
        }
        let before = profiler::start().unwrap();
        drop(before);
        // What happened before a profile began is not in it.
        let empty = profiler::start().unwrap().to_json().unwrap();
        assert!(spans(&empty).is_empty(), "{empty}");
    });
}

#[test]
fn each_replica_and_device_has_a_row() {
    with_devices(2, || {
        let profile = profiler::start().unwrap();
        Launcher::new()
            .devices(2)
            .run(|rank| -> Result<()> {
                dist::init_process_group("xla", "xla://")?;
                let x = Tensor::full(100_000, rank as f64, ())?;
                profiler::trace("sum", || dist::all_reduce(&x, dist::ReduceOp::Sum))?;
                xla::sync()?.wait()
            })
            .unwrap();
        let folder = std::env::temp_dir().join(format!("xla-profile-{}", std::process::id()));
        let missing = folder.join("none").join("file.json");
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("file.json");
        profile.save(&path).unwrap();
        let json = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        for name in ["replica 0", "replica 1", "xla:0", "xla:1"] {
            assert!(
                json.contains(&format!("\"name\":\"{name}\"")),
                "{name}: {json}"
            );
        }
        let all = spans(&json);
        let rows = |name: &str| -> BTreeSet<u64> {
            all.iter().filter(|s| s.0 == name).map(|s| s.2).collect()
        };
        assert_eq!(rows("sum").len(), 2);
        assert_eq!(rows("program").len(), 2);
        let error = profiler::start().unwrap().save(missing).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
    });
}
