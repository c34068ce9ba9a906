//! Capsules: an execution to a file and back, and the program that runs it again.

mod common;

use common::*;
use std::path::Path;
use std::process::{Command, Output};
use xla_core::{Error, Literal};
use xla_runtime::{Capsule, CompileOptions, Versions};

/// `a - 2 b` with `a` donated, on these many devices at once where those are several.
fn capsule(devices: usize) -> Capsule {
    let client = client(devices);
    let literal = |data: &[f32]| Literal::from_slice(data, [data.len()]).unwrap();
    Capsule {
        program: "func.func @main(
            %a: tensor<3xf32> {tf.aliasing_output = 0 : i32}, %b: tensor<3xf32>)
                -> tensor<3xf32> {
              %0 = stablehlo.add %b, %b : tensor<3xf32>
              %1 = stablehlo.subtract %a, %0 : tensor<3xf32>
              return %1 : tensor<3xf32>
            }"
        .into(),
        options: CompileOptions {
            donated: vec![0],
            ..if devices == 1 {
                CompileOptions::default()
            } else {
                CompileOptions::replicated(devices)
            }
        },
        inputs: vec![literal(&[1.0, 2.0, 3.0]), literal(&[0.5, 0.25, -1.0])],
        replica: 0,
        peers: Vec::new(),
        output_types: vec![f32s(3)],
        outputs: Some(vec![literal(&[0.0, 1.5, 5.0])]),
        cause: "sync() at train.rs:7:1".into(),
        error: Some("out of patience".into()),
        versions: Versions::of(&client),
    }
}

fn replay(arguments: &[&str], file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_xla-replay"))
        .args(arguments)
        .arg(file)
        .output()
        .unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[output.stdout.as_slice(), &output.stderr].concat()).into_owned()
}

#[test]
fn a_capsule_survives_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.safetensors");
    let mut made = capsule(1).options.optimization_level(2);
    made.overrides.insert(
        "xla_cpu_enable_fast_min_max".into(),
        xla_runtime::OptionValue::Bool(false),
    );
    let made = Capsule {
        options: made,
        ..capsule(1)
    };
    made.save(&file).unwrap();
    let read = Capsule::load(&file).unwrap();
    assert_eq!(read.program, made.program);
    assert_eq!(read.options, made.options);
    assert_eq!(read.signature(), made.signature());
    assert_eq!((read.cause, read.error), (made.cause, made.error));
    assert_eq!(read.versions, made.versions);
    let values = |literals: &[Literal]| -> Vec<Vec<f32>> {
        literals.iter().map(|l| l.to_vec().unwrap()).collect()
    };
    assert_eq!(values(&read.inputs), values(&made.inputs));
    assert_eq!(
        values(&read.outputs.unwrap()),
        values(&made.outputs.unwrap())
    );

    let whole = std::fs::read(&file).unwrap();
    for bad in [&whole[..whole.len() - 1], &whole[..20], b"junk", b""] {
        std::fs::write(&file, bad).unwrap();
        let error = Capsule::load(&file).unwrap_err();
        assert!(matches!(error, Error::FileFormat { .. }), "{error}");
    }
}

#[test]
fn the_program_replays_times_and_compares() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("a.safetensors");
    let mut capsule = capsule(1);
    capsule.save(&file).unwrap();
    let output = replay(&["--runs", "3"], &file);
    let text = printed(&output);
    assert!(output.status.success(), "{text}");
    for part in [
        "2 arguments, 1 results, 1 device(s)",
        "executed for sync() at train.rs:7:1",
        "failed then: out of patience",
        "ran 3 time(s)",
        "1 of 1 results are the same bits",
    ] {
        assert!(text.contains(part), "{part} is missing in {text}");
    }
    let output = replay(&["--text"], &file);
    assert_eq!(printed(&output).trim(), capsule.program.trim());

    let other = Literal::from_slice(&[0.0f32, 1.5, 4.0], [3]).unwrap();
    capsule.outputs = Some(vec![other]);
    capsule.save(&file).unwrap();
    let output = replay(&[], &file);
    let text = printed(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains("result 0: 1 of 3 elements differ, element 2 by 1e0 (2.5e-1"),
        "{text}"
    );
    assert!(replay(&["--tolerance", "0.3"], &file).status.success());

    capsule.program = "func.func @main() { junk }".into();
    capsule.save(&file).unwrap();
    let output = replay(&[], &file);
    assert_eq!(output.status.code(), Some(1));
    assert!(printed(&output).contains("compiling"));
}

#[test]
fn a_program_of_several_replicas_runs_on_as_many() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("two.safetensors");
    capsule(2).save(&file).unwrap();
    let output = replay(&["--runs", "2"], &file);
    let text = printed(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("2 device(s)") && text.contains("no results to compare with"));
}
