//! Checkpoints: written and read whole, in blocks and in other layouts, by one that dies and by several
//! at a time, and training that goes on from one.

mod failures;
mod layouts;
mod training;
mod values;

use std::fs;
use std::path::Path;
use tests::check::{counted, f32s, i64s};
use xla::nn::StateDict;
use xla::{DType, Literal, Tensor, bf16};

fn several() -> StateDict {
    let bools = Tensor::from_slice(&[true, false, true], [3], ()).unwrap();
    let halves: Vec<bf16> = [1.5, -2.25, 0.0, 1e30].map(bf16::from_f32).into();
    let halves = Tensor::from_vec(halves, [2, 2], ()).unwrap();
    let empty = Tensor::zeros([0, 4], DType::F32).unwrap();
    let mut state = StateDict::from_iter([
        ("w", counted(&[5, 7])),
        ("longs", i64s(&[i64::MIN, -1, i64::MAX])),
        ("bools", bools),
        ("halves", halves),
        (
            "scalar",
            Tensor::from_slice(&[2.5_f64], [0_usize; 0], ()).unwrap(),
        ),
        ("empty", empty),
        ("__metadata__", f32s(&[1.0])),
        ("w[0:5,0:7]", f32s(&[2.0])),
    ]);
    state.metadata_mut().insert("epoch".into(), "3".into());
    state
}

fn literals(state: &StateDict) -> Vec<(String, Literal)> {
    let literal = |(name, tensor): (&str, &Tensor)| (name.into(), tensor.to_literal().unwrap());
    state.iter().map(literal).collect()
}

/// The names in a folder, but for the file that managers lock.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".writer")
        .collect();
    names.sort();
    names
}
