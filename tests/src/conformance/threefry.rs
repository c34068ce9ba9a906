//! Random bits, split keys and keys folded with a number, as JAX computes them.

use super::{Failure, Report};
use serde::Deserialize;
use std::path::Path;
use xla::Generator;

/// A key and what follows from it.
#[derive(Debug, Deserialize)]
struct Case {
    key: [u32; 2],
    shape: Option<Vec<usize>>,
    bits: Option<Vec<u32>>,
    split: Option<Vec<[u32; 2]>>,
    fold_in_7: Option<[u32; 2]>,
}

/// Whether a file has this form: a list, which no other JSON file here is.
///
/// # Errors
/// A file that cannot be read.
pub(super) fn is_one(file: &Path) -> Result<bool, String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    Ok(text.trim_start().starts_with('['))
}

/// Runs the cases of a file whose id, `threefry/key/what`, contains `filter`.
///
/// # Errors
/// A file that cannot be read or has another form.
pub(super) fn run(file: &Path, filter: Option<&str>, report: &mut Report) -> Result<(), String> {
    let text = std::fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
    let cases: Vec<Case> =
        serde_json::from_str(&text).map_err(|e| format!("{}: {e}", file.display()))?;
    for (number, case) in cases.iter().enumerate() {
        let what = match &case.shape {
            Some(shape) => format!("{shape:?}"),
            None => "keys".to_owned(),
        };
        let id = format!("threefry/{number}/{:?}/{what}", case.key);
        if filter.is_none_or(|f| id.contains(f)) {
            report.note(&id, check(case));
        }
    }
    Ok(())
}

fn check(case: &Case) -> Result<(), Failure> {
    let error = |e: xla::Error| format!("{e}");
    let device = xla::device().map_err(error)?;
    let generator = Generator::from_key(case.key, device).map_err(error)?;
    if let Some(bits) = &case.bits {
        let shape = case.shape.as_deref().unwrap_or_default();
        let got = generator.bits(shape).map_err(error)?;
        if got.dims() != shape {
            return Err(format!("expected shape {shape:?}, got {:?}", got.dims()));
        }
        equal("bits", &got.to_vec::<u32>().map_err(error)?, bits)?;
    }
    if let Some(keys) = &case.split {
        let count = u32::try_from(keys.len()).map_err(|e| e.to_string())?;
        let parts = generator.split(count).map_err(error)?;
        let got: Vec<[u32; 2]> = (parts.iter().map(Generator::key))
            .collect::<Result<_, _>>()
            .map_err(error)?;
        equal("split", &got, keys)?;
    }
    if let Some(key) = case.fold_in_7 {
        let folded = generator.fold_in(7).and_then(|g| g.key()).map_err(error)?;
        equal("fold_in(7)", &[folded], &[key])?;
    }
    Ok(())
}

fn equal<T: PartialEq + std::fmt::Debug>(
    what: &str,
    got: &[T],
    expected: &[T],
) -> Result<(), Failure> {
    if got.len() != expected.len() {
        return Err(format!(
            "{what}: expected {} values, got {}",
            expected.len(),
            got.len()
        ));
    }
    match (0..got.len()).find(|&i| got[i] != expected[i]) {
        None => Ok(()),
        Some(i) => Err(format!(
            "{what}[{i}]: expected {:?}, got {:?}",
            expected[i], got[i]
        )),
    }
}
