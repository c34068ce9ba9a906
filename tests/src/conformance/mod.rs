//! Comparison with values that others computed: PyTorch's operators and training runs, JAX's random
//! bits. A folder of cases is data; any other with the same form can be run.

mod case;
mod ops;
mod tensors;
mod threefry;
mod train;

pub use case::{Case, Kwargs};
pub use tensors::Tensors;

use std::path::{Path, PathBuf};
use xla::{DType, Literal, Tensor};

/// The operators that cases may name, each with all its names.
pub fn operator_names() -> Vec<&'static [&'static str]> {
    ops::names()
}

/// Why a case failed, as its line says it.
pub type Failure = String;

/// What came of a number of cases.
#[derive(Debug, Default)]
pub struct Report {
    /// How many agreed.
    pub passed: usize,
    /// Id and reason of those that did not.
    pub failed: Vec<(String, Failure)>,
}

impl Report {
    fn note(&mut self, id: &str, outcome: Result<(), Failure>) {
        match outcome {
            Ok(()) => self.passed += 1,
            Err(reason) => {
                println!("{id}: {reason}");
                self.failed.push((id.to_owned(), reason));
            }
        }
    }
}

/// Runs everything under `path` whose id contains `filter`: operator cases (`cases.jsonl` beside
/// `tensors.safetensors`), training runs (`NAME.json` beside `NAME.safetensors`), and whatever lies
/// in folders below.
///
/// # Errors
/// A file that cannot be read or has another form.
pub fn run(path: &Path, filter: Option<&str>) -> Result<Report, String> {
    let mut report = Report::default();
    for file in files(path)? {
        let name = file
            .file_name()
            .and_then(|n| n.to_str())
            .unwrap_or_default();
        if name == "cases.jsonl" {
            operators(&file, filter, &mut report)?;
        } else if name.ends_with(".json") && threefry::is_one(&file)? {
            threefry::run(&file, filter, &mut report)?;
        } else if name.ends_with(".json") && file.with_extension("safetensors").is_file() {
            train::train(&file, filter, &mut report)?;
        }
    }
    Ok(report)
}

/// The files under a path, which may be one itself, in order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let entries = std::fs::read_dir(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut found = Vec::new();
    for entry in entries {
        found.push(
            entry
                .map_err(|e| format!("{}: {e}", path.display()))?
                .path(),
        );
    }
    found.sort();
    let mut all = Vec::new();
    for entry in found {
        match entry.is_dir() {
            true => all.extend(files(&entry)?),
            false => all.push(entry),
        }
    }
    Ok(all)
}

/// Cases that are computed by one program: compiling it takes far less than compiling one each.
const TOGETHER: usize = 12;

fn operators(cases: &Path, filter: Option<&str>, report: &mut Report) -> Result<(), String> {
    let tensors = Tensors::open(&cases.with_file_name("tensors.safetensors"))?;
    let text = std::fs::read_to_string(cases).map_err(|e| format!("{}: {e}", cases.display()))?;
    let mut chosen = Vec::new();
    for (line, text) in text.lines().enumerate() {
        let case: Case = serde_json::from_str(text)
            .map_err(|e| format!("{}:{}: {e}", cases.display(), line + 1))?;
        if filter.is_none_or(|f| case.id.contains(f)) {
            chosen.push(case);
        }
    }
    for cases in chosen.chunks(TOGETHER) {
        let recorded: Vec<_> = cases.iter().map(|case| record(case, &tensors)).collect();
        let executed = xla::sync().and_then(|step| step.wait()).is_ok();
        for (case, recorded) in cases.iter().zip(recorded) {
            // After a common failure each is tried alone, to tell which it is.
            let recorded = if executed {
                recorded
            } else {
                record(case, &tensors)
            };
            let outcome = recorded.and_then(|results| compare_all(case, &results, &tensors));
            report.note(&case.id, outcome);
        }
    }
    Ok(())
}

/// What an operator and its derivative gave.
struct Results {
    outputs: Vec<Tensor>,
    /// One an input.
    grads: Vec<Option<Tensor>>,
}

fn record(case: &Case, tensors: &Tensors) -> Result<Results, Failure> {
    let call = ops::find(&case.op).ok_or_else(|| format!("unknown operator {}", case.op))?;
    let error = |e: xla::Error| format!("{e}");
    let inputs: Vec<Tensor> = case
        .inputs
        .iter()
        .map(|name| tensors.get(name))
        .collect::<Result<_, _>>()?;
    let grads = case.grads.as_deref().unwrap_or_default();
    for (input, grad) in inputs.iter().zip(grads) {
        if grad.is_some() {
            input.requires_grad_(true).map_err(error)?;
        }
    }
    let outputs = call(&inputs, &case.kwargs).map_err(error)?;
    if outputs.len() != case.outputs.len() {
        return Err(format!(
            "expected {} outputs, got {}",
            case.outputs.len(),
            outputs.len()
        ));
    }
    // A constant result has a gradient in PyTorch too, but none that reaches an input.
    if let Some(name) = &case.grad_output
        && grads.iter().any(Option::is_some)
    {
        let options = xla::BackwardOptions {
            gradient: Some(tensors.get(name)?),
            ..Default::default()
        };
        outputs[0].backward_with(options).map_err(error)?;
    }
    Ok(Results {
        grads: inputs.iter().map(Tensor::grad).collect(),
        outputs,
    })
}

fn compare_all(case: &Case, results: &Results, tensors: &Tensors) -> Result<(), Failure> {
    for (i, (name, output)) in case.outputs.iter().zip(&results.outputs).enumerate() {
        let what = format!("output {i}");
        compare(&what, output, &tensors.literal(name)?, case.rtol, case.atol)?;
    }
    let grads = case.grads.as_deref().unwrap_or_default();
    for (i, (name, got)) in grads.iter().zip(&results.grads).enumerate() {
        let Some(name) = name else { continue };
        let what = format!("gradient {i}");
        let got = got.as_ref().ok_or_else(|| format!("{what}: none"))?;
        compare(&what, got, &tensors.literal(name)?, case.rtol, case.atol)?;
    }
    Ok(())
}

/// Whether a tensor has the expected dtype, shape and, within the tolerances, elements. NaN equals
/// NaN; other dtypes than floats are equal or not.
fn compare(
    what: &str,
    got: &Tensor,
    expected: &Literal,
    rtol: f64,
    atol: f64,
) -> Result<(), Failure> {
    let types = format!(
        "expected {}{}, got {}{}",
        expected.dtype(),
        expected.shape(),
        got.dtype(),
        got.shape()
    );
    if got.dtype() != expected.dtype() || got.shape() != expected.shape() {
        return Err(format!("{what}: {types}"));
    }
    let exact = !expected.dtype().is_float();
    let read = |literal: &Literal| literal.cast(DType::F64).to_vec::<f64>();
    let got = got.to_literal().and_then(|got| read(&got));
    let got = got.map_err(|e| format!("{what}: {e}"))?;
    let expected = read(expected).map_err(|e| format!("{what}: {e}"))?;
    let mut wrong = 0;
    let mut largest = 0f64;
    let mut first = None;
    for (i, (&g, &e)) in got.iter().zip(&expected).enumerate() {
        let tolerance = if exact { 0.0 } else { atol + rtol * e.abs() };
        if g == e || (g.is_nan() && e.is_nan()) || (g - e).abs() <= tolerance {
            continue;
        }
        wrong += 1;
        let distance = (g - e).abs();
        if distance.is_nan() || distance > largest || first.is_none() {
            largest = if distance.is_nan() {
                f64::INFINITY
            } else {
                distance
            };
            first = Some((i, e, g));
        }
    }
    match first {
        None => Ok(()),
        Some((i, e, g)) => Err(format!(
            "{what}: {wrong} of {} elements differ, largest error {largest:.3e} at [{i}]: expected {e:e}, got {g:e}; {types}",
            expected.len()
        )),
    }
}
