//! Programs compiled and run on the real plugin: results, donation, bad arguments.

mod common;

use common::*;
use std::ptr;
use std::sync::Barrier;
use std::thread;
use xla_core::{DType, Error, Literal, Shape};
use xla_runtime::metrics::{Counter, Scope};
use xla_runtime::{CompileOptions, ExecuteOptions, OptionValue, Signature};

#[test]
fn a_portable_program_runs_where_its_arguments_are() {
    let client = client(2);
    let scope = Scope::new();
    let program = add(&client, 3, false);
    assert!(program.devices().is_empty());
    for device in 0..2 {
        let a = upload(&client, &[1.0, 2.0, 3.0], device);
        let b = upload(&client, &[10.0, 20.0, 30.0], device);
        let run = program.execute(&[&a, &b], &on(device)).unwrap();
        assert_eq!(run.outputs[0].device(), device);
        assert_eq!(read(&run.outputs[0]), [11.0, 22.0, 33.0]);
        run.done.wait(LONG).unwrap();
        assert!(run.done.is_ready().unwrap());
    }
    let counts = [
        Counter::Compile,
        Counter::Execute,
        Counter::Upload,
        Counter::Download,
    ]
    .map(|c| scope.count(c));
    assert_eq!(counts, [1, 2, 4, 2]);
    assert_eq!(scope.count(Counter::UploadBytes), 4 * 12);
    assert_eq!(scope.count(Counter::DownloadBytes), 2 * 12);
}

#[test]
fn a_donated_argument_becomes_the_result_and_cannot_be_used_again() {
    let client = client(1);
    let program = add(&client, 4096, true);
    let (a, b) = (
        upload(&client, &[1.0; 4096], 0),
        upload(&client, &[2.0; 4096], 0),
    );
    let run = program.execute(&[&a, &b], &on(0)).unwrap();
    assert!(a.is_deleted() && !b.is_deleted());
    assert_eq!(read(&run.outputs[0]), [3.0; 4096]);
    for error in [
        program.execute(&[&a, &b], &on(0)).err(),
        a.to_literal(LONG).err(),
        a.ready().err(),
        a.size_bytes().err(),
        a.copy_to_device(0).err(),
        a.delete().err(),
    ] {
        assert!(
            matches!(error, Some(Error::BufferDeleted { .. })),
            "{error:?}"
        );
    }
    assert_eq!(read(&b), [2.0; 4096]);
}

#[test]
fn a_withheld_donation_keeps_the_argument() {
    let client = client(1);
    let program = add(&client, 4, true);
    let (a, b) = (upload(&client, &[1.0; 4], 0), upload(&client, &[2.0; 4], 0));
    let launch = ExecuteOptions {
        non_donatable: &[0],
        ..on(0)
    };
    let first = program.execute(&[&a, &b], &launch).unwrap();
    assert!(!a.is_deleted());
    let second = program.execute(&[&first.outputs[0], &b], &on(0)).unwrap();
    assert_eq!(
        (read(&a), read(&second.outputs[0])),
        (vec![1.0; 4], vec![5.0; 4])
    );
}

#[test]
fn donating_a_buffer_that_is_also_an_ordinary_argument_is_an_error() {
    let client = client(1);
    let program = add(&client, 4, true);
    let a = upload(&client, &[1.0; 4], 0);
    let error = program.execute(&[&a, &a], &on(0)).unwrap_err();
    assert!(
        matches!(error, Error::ExecuteArgument { index: 0, .. }),
        "{error}"
    );
    let b = upload(&client, &[1.0; 4], 0);
    let run = program
        .execute(&[&b, &upload(&client, &[0.5; 4], 0)], &on(0))
        .unwrap();
    assert_eq!(read(&run.outputs[0]), [1.5; 4]);
}

#[test]
fn a_donated_argument_that_the_plugin_refuses_stays_usable() {
    let client = client(1);
    let donating = add(&client, 4, true);
    let a = upload(&client, &[1.0; 4], 0);
    let gone = upload(&client, &[2.0; 4], 0);
    gone.delete().unwrap();
    assert!(matches!(
        donating.execute(&[&a, &gone], &on(0)),
        Err(Error::BufferDeleted { .. })
    ));
    assert_eq!(read(&a), [1.0; 4]);
}

#[test]
fn arguments_are_checked_before_the_plugin_sees_them() {
    let client = client(2);
    let program = add(&client, 4, false);
    let good = upload(&client, &[1.0; 4], 0);
    let bytes = [0u8; 16];
    // The same number of bytes, so PJRT itself would take them.
    let wrong_dtype = client
        .upload(&bytes, DType::I32, &Shape::new(&[4]), 0)
        .unwrap();
    let wrong_shape = client
        .upload(&bytes, DType::F32, &Shape::new(&[2, 2]), 0)
        .unwrap();
    let elsewhere = upload(&client, &[1.0; 4], 1);
    let other_client = common::client(2);
    let foreign = upload(&other_client, &[1.0; 4], 0);
    for (bad, got) in [
        (&wrong_dtype, "i32[4]"),
        (&wrong_shape, "f32[2, 2]"),
        (&elsewhere, "one on device 1"),
        (&foreign, "one of another client"),
    ] {
        match program.execute(&[&good, bad], &on(0)) {
            Err(Error::ExecuteArgument {
                index: 1,
                got: found,
                ..
            }) => assert_eq!(found, got),
            other => panic!("{got}: {other:?}"),
        }
    }
    for args in [vec![], vec![&good], vec![&good; 3]] {
        let error = program.execute(&args, &on(0)).unwrap_err();
        assert!(matches!(error, Error::ExecuteArgument { .. }), "{error}");
    }
    let error = program.execute(&[&good, &good], &on(2)).unwrap_err();
    assert!(
        matches!(error, Error::NoSuchDevice { asked: 2, count: 2 }),
        "{error}"
    );
    let launch = ExecuteOptions {
        non_donatable: &[2],
        ..on(0)
    };
    let error = program.execute(&[&good, &good], &launch).unwrap_err();
    assert!(
        matches!(
            error,
            Error::Argument {
                argument: "non_donatable",
                ..
            }
        ),
        "{error}"
    );
    // And none of that broke anything.
    let run = program.execute(&[&good, &good], &on(0)).unwrap();
    assert_eq!(read(&run.outputs[0]), [2.0; 4]);
}

#[test]
fn a_program_that_does_not_compile_is_an_error_with_its_name() {
    let client = client(1);
    let signature = Signature::default();
    for text in [
        "",
        "no program at all",
        "module @broken { func.func @main( }",
    ] {
        let error = client
            .compile(text, &signature, &CompileOptions::default())
            .expect_err(text);
        assert!(matches!(error, Error::Compile { .. }), "{error}");
    }
    let text = "module @mine {
      func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
        %0 = stablehlo.nonsense %a : tensor<2xf32>
        return %0 : tensor<2xf32>
      }
    }";
    match client.compile(text, &signature, &CompileOptions::default()) {
        Err(Error::Compile {
            name,
            nodes: 1,
            message,
        }) => {
            assert_eq!(name, "mine");
            assert!(message.contains("nonsense"), "{message}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn results_other_than_promised_are_noticed_when_compiling() {
    let client = client(1);
    let text = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      return %a : tensor<2xf32>
    }";
    for outputs in [
        vec![],
        vec![f32s(3)],
        vec![ty(DType::I32, &[2])],
        vec![f32s(2); 2],
    ] {
        let signature = Signature {
            inputs: vec![f32s(2)],
            outputs,
        };
        let error = client
            .compile(text, &signature, &CompileOptions::default())
            .unwrap_err();
        assert!(matches!(error, Error::Internal { .. }), "{error}");
    }
}

#[test]
fn debug_options_are_set_by_name() {
    let client = client(1);
    let text = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      return %a : tensor<2xf32>
    }";
    let signature = Signature {
        inputs: vec![f32s(2)],
        outputs: vec![f32s(2)],
    };
    let quick = CompileOptions::default().optimization_level(0);
    client.compile(text, &signature, &quick).unwrap();
    let mut unknown = CompileOptions::default();
    unknown
        .overrides
        .insert("xla_no_such_option".into(), OptionValue::Bool(true));
    let error = client.compile(text, &signature, &unknown).unwrap_err();
    assert!(error.to_string().contains("xla_no_such_option"), "{error}");
}

#[test]
fn a_program_without_arguments_or_axes_runs() {
    let client = client(1);
    let text = "func.func @main() -> (tensor<i64>, tensor<0x3xf32>) {
      %0 = stablehlo.constant dense<-7> : tensor<i64>
      %1 = stablehlo.constant dense<0.0> : tensor<0x3xf32>
      return %0, %1 : tensor<i64>, tensor<0x3xf32>
    }";
    let signature = Signature {
        inputs: vec![],
        outputs: vec![ty(DType::I64, &[]), ty(DType::F32, &[0, 3])],
    };
    let program = client
        .compile(text, &signature, &CompileOptions::default())
        .unwrap();
    let run = program.execute(&[], &on(0)).unwrap();
    assert_eq!(
        run.outputs[0].to_literal(LONG).unwrap(),
        Literal::scalar(-7i64)
    );
    assert_eq!(
        run.outputs[1].to_literal(LONG).unwrap().shape().dims(),
        [0, 3]
    );
}

#[test]
fn everything_but_the_results_may_be_dropped_while_it_computes() {
    let client = client(1);
    let n = 768;
    let program = matmul(&client, n);
    let ones = client
        .upload_owned(Literal::from_vec(vec![1.0f32; n * n], [n, n]).unwrap(), 0)
        .unwrap();
    let mut run = program.execute(&[&ones], &on(0)).unwrap();
    let output = run.outputs.remove(0);
    drop((program, ones, run, client));
    assert_eq!(read(&output), vec![n as f32; n * n]);
}

#[test]
fn a_compiled_program_tells_its_memory_and_fingerprint() {
    let client = client(1);
    let program = add(&client, 256, true);
    let memory = program.memory_stats().unwrap();
    assert_eq!(
        (memory.arguments, memory.outputs, memory.aliased),
        (2048, 1024, 1024)
    );
    let hlo = program.optimized_hlo().unwrap();
    assert!(
        hlo.format.starts_with("hlo") && !hlo.code.is_empty(),
        "{}",
        hlo.format
    );
    let text = hlo.to_text().unwrap();
    let has = |part: &str| assert!(text.contains(part), "{part:?} is not in:\n{text}");
    has("\nENTRY %");
    has("f32[256]{0} parameter(1)");
    has("add(%");
    has("ROOT %");
    assert_eq!(program.donated(), [0]);
    assert!(ptr::eq(
        program.output_types(),
        program.signature().outputs.as_slice()
    ));
    assert!(program.fingerprint().is_none_or(|f| !f.is_empty()));
}

#[test]
fn readers_never_see_memory_that_a_donation_overwrites() {
    let client = client(1);
    let n = 1 << 14;
    let program = add(&client, n, true);
    let one = upload(&client, &vec![1.0; n], 0);
    for step in 0..200 {
        let before = step as f32;
        let buffer = upload(&client, &vec![before; n], 0);
        let start = Barrier::new(3);
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    start.wait();
                    match buffer.to_literal(LONG) {
                        Ok(l) => assert_eq!(l.to_vec::<f32>().unwrap(), vec![before; n]),
                        Err(Error::BufferDeleted { .. }) => {}
                        Err(other) => panic!("{other}"),
                    }
                });
            }
            start.wait();
            // Copied while somebody reads, given away otherwise; right either way.
            let run = program.execute(&[&buffer, &one], &on(0)).unwrap();
            assert_eq!(read(&run.outputs[0]), vec![before + 1.0; n]);
        });
    }
}

#[test]
fn running_out_of_memory_is_an_error_and_the_client_lives_on() {
    let client = client(1);
    let n: usize = 1 << 40;
    let text = format!(
        "func.func @main(%a: tensor<f32>) -> tensor<{n}xf32> {{
           %0 = stablehlo.broadcast_in_dim %a, dims = [] : (tensor<f32>) -> tensor<{n}xf32>
           return %0 : tensor<{n}xf32>
         }}"
    );
    let signature = Signature {
        inputs: vec![ty(DType::F32, &[])],
        outputs: vec![f32s(n)],
    };
    let program = client
        .compile(&text, &signature, &CompileOptions::default())
        .unwrap();
    let a = client.upload_owned(Literal::scalar(1.0f32), 0).unwrap();
    let outcome = program
        .execute(&[&a], &on(0))
        .and_then(|run| run.outputs[0].ready()?.wait(LONG));
    let needed = 4 * n as u64;
    assert!(
        matches!(&outcome, Err(Error::OutOfMemory { needed: n, .. }) if *n == needed),
        "{outcome:?}"
    );
    assert_eq!(a.to_literal(LONG).unwrap(), Literal::scalar(1.0f32));
}
