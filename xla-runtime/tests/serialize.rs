//! Executables to bytes and back.

mod common;

use common::*;
use xla_core::Error;
use xla_runtime::CompileOptions;
use xla_runtime::metrics::{Counter, Scope};

#[test]
fn a_serialised_program_runs_the_same_in_another_client() {
    let first = client(1);
    let program = add(&first, 5, true);
    let bytes = program.serialize().unwrap();
    let options = CompileOptions {
        donated: vec![0],
        ..CompileOptions::default()
    };
    let second = client(2);
    let scope = Scope::new();
    let loaded = second
        .load_serialized(&bytes, program.signature(), &options)
        .unwrap();
    assert_eq!(scope.count(Counter::Compile), 0);
    for device in 0..2 {
        let (a, b) = (
            upload(&second, &[1.0; 5], device),
            upload(&second, &[0.5; 5], device),
        );
        let run = loaded.execute(&[&a, &b], &on(device)).unwrap();
        assert_eq!(read(&run.outputs[0]), [1.5; 5]);
        assert!(a.is_deleted());
    }
}

#[test]
fn options_given_when_loading_choose_the_device() {
    let client = client(2);
    let options = CompileOptions {
        portable: false,
        ..CompileOptions::default()
    };
    let text = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.negate %a : tensor<2xf32>
      return %0 : tensor<2xf32>
    }";
    let signature = xla_runtime::Signature {
        inputs: vec![f32s(2)],
        outputs: vec![f32s(2)],
    };
    let program = client.compile(text, &signature, &options).unwrap();
    assert_eq!(program.devices(), [0]);
    let elsewhere = CompileOptions {
        device_assignment: vec![1],
        ..options
    };
    let loaded = client
        .load_serialized(&program.serialize().unwrap(), &signature, &elsewhere)
        .unwrap();
    assert_eq!(loaded.devices(), [1]);
    let a = upload(&client, &[3.0, 4.0], 1);
    assert_eq!(
        read(&loaded.execute(&[&a], &on(1)).unwrap().outputs[0]),
        [-3.0, -4.0]
    );
}

#[test]
fn damaged_and_foreign_bytes_never_reach_the_plugin() {
    let client = client(1);
    let program = add(&client, 5, false);
    let options = CompileOptions::default();
    let good = program.serialize().unwrap();
    let mut flipped = good.clone();
    *flipped.last_mut().unwrap() ^= 1;
    let mut foreign = good.clone();
    foreign[8] ^= 1;
    for bad in [&good[..good.len() / 2], &[], b"junk", &flipped, &foreign] {
        let error = client
            .load_serialized(bad, program.signature(), &options)
            .unwrap_err();
        assert!(
            matches!(
                error,
                Error::Argument {
                    argument: "bytes",
                    ..
                }
            ),
            "{error}"
        );
    }
    client
        .load_serialized(&good, program.signature(), &options)
        .unwrap();
}
