//! Arrays to a device and back: isolation from the host, dtypes, bad input, other devices.

mod common;

use common::*;
use std::sync::Arc;
use std::time::Duration;
use xla_core::{DType, Error, Literal, Shape, bf16, f16};
use xla_runtime::metrics::{Counter, Scope};

#[test]
fn every_dtype_survives_the_round_trip() {
    let client = client(1);
    let literals = [
        Literal::from_slice(&[true, false, true], [3]),
        Literal::from_slice(&[i8::MIN, -1, i8::MAX], [3]),
        Literal::from_slice(&[i16::MIN, -1, i16::MAX], [3]),
        Literal::from_slice(&[i32::MIN, -1, i32::MAX], [3]),
        Literal::from_slice(&[i64::MIN, -1, i64::MAX], [3]),
        Literal::from_slice(&[0, 1, u8::MAX], [3]),
        Literal::from_slice(&[0, 1, u16::MAX], [3]),
        Literal::from_slice(&[0, 1, u32::MAX], [3]),
        Literal::from_slice(&[0, 1, u64::MAX], [3]),
        Literal::from_slice(&[f16::MIN, f16::NEG_ZERO, f16::NAN], [3]),
        Literal::from_slice(&[bf16::MIN, bf16::NEG_ZERO, bf16::NAN], [3]),
        Literal::from_slice(&[f32::MIN, -0.0, f32::NAN], [3]),
        Literal::from_slice(&[f64::MIN, -0.0, f64::NAN], [3]),
    ];
    assert_eq!(literals.len(), DType::ALL.len());
    for literal in literals {
        let literal = literal.unwrap();
        let buffer = client.upload_owned(literal.clone(), 0).unwrap();
        assert_eq!(buffer.dtype(), literal.dtype());
        assert_eq!(buffer.to_literal(LONG).unwrap(), literal);
    }
}

#[test]
fn axes_keep_their_order() {
    let client = client(1);
    let shape = Shape::new(&[2, 3, 4]);
    let data: Vec<i32> = (0..24).collect();
    let literal = Literal::from_vec(data, &shape).unwrap();
    // A transpose whose result XLA could lay out by moving nothing: reading must still be row-major.
    let text = "func.func @main(%a: tensor<2x3x4xi32>) -> tensor<4x2x3xi32> {
      %0 = stablehlo.transpose %a, dims = [2, 0, 1] : (tensor<2x3x4xi32>) -> tensor<4x2x3xi32>
      return %0 : tensor<4x2x3xi32>
    }";
    let signature = xla_runtime::Signature {
        inputs: vec![(DType::I32, shape)],
        outputs: vec![ty(DType::I32, &[4, 2, 3])],
    };
    let program = client
        .compile(text, &signature, &xla_runtime::CompileOptions::default())
        .unwrap();
    let buffer = client.upload_owned(literal, 0).unwrap();
    assert_eq!(buffer.size_bytes().unwrap(), 96);
    let run = program.execute(&[&buffer], &on(0)).unwrap();
    let result = run.outputs[0].to_literal(LONG).unwrap();
    let expected: Vec<i32> = (0..24)
        .map(|i| {
            let (a, b, c) = (i / 6, i / 3 % 2, i % 3);
            b * 12 + c * 4 + a
        })
        .collect();
    assert_eq!(result.to_vec::<i32>().unwrap(), expected);
}

#[test]
fn a_borrowed_host_array_may_change_after_the_upload() {
    let client = client(1);
    // Large enough for plugins that copy in the background.
    let mut data = vec![7u8; 1 << 22];
    let shape = Shape::new(&[data.len()]);
    let buffer = client.upload(&data, DType::U8, &shape, 0).unwrap();
    data.fill(9);
    drop(data);
    let back = buffer.to_literal(LONG).unwrap();
    assert!(back.bytes().iter().all(|b| *b == 7));
}

#[test]
fn a_lent_literal_outlives_its_owner_and_is_never_written() {
    let client = client(1);
    let n = 1 << 16;
    let literal = Literal::from_slice(&vec![1.0f32; n], [n]).unwrap();
    assert!(literal.can_be_lent());
    let program = add(&client, n, true);
    let a = client.upload_owned(literal.clone(), 0).unwrap();
    let b = client
        .upload_owned(Literal::from_slice(&vec![2.0f32; n], [n]).unwrap(), 0)
        .unwrap();
    // Donated, so the program would write its result over the literal's memory if it could.
    let run = program.execute(&[&a, &b], &on(0)).unwrap();
    assert_eq!(read(&run.outputs[0]), vec![3.0; n]);
    assert_eq!(literal.as_slice::<f32>().unwrap(), vec![1.0; n]);
    drop(literal);
    let c = client
        .upload_owned(Literal::from_slice(&vec![4.0f32; n], [n]).unwrap(), 0)
        .unwrap();
    // The literal's only owner is the device now; new allocations must not land on it.
    let noise: Vec<Literal> = (0..8)
        .map(|_| Literal::from_slice(&vec![9.0f32; n], [n]).unwrap())
        .collect();
    assert_eq!(read(&c), vec![4.0; n]);
    drop(noise);
}

#[test]
fn what_a_buffer_lends_outlives_it_and_is_never_written() {
    let client = client(1);
    let n = 1 << 16;
    let program = add(&client, n, true);
    let upload = |value: f32| {
        let literal = Literal::from_slice(&vec![value; n], [n]).unwrap();
        client.upload_owned(literal, 0).unwrap()
    };
    let b = upload(2.0);
    let run = program.execute(&[&upload(1.0), &b], &on(0)).unwrap();
    let [three] = <[_; 1]>::try_from(run.outputs).unwrap();
    let three = Arc::new(three);
    let lent = three.lend(LONG).unwrap();
    let again = three.lend(LONG).unwrap();
    assert_eq!(lent.bytes().as_ptr(), again.bytes().as_ptr(), "no copy");
    // Donated, so the program would write its result over the lent memory if it could.
    let five = program.execute(&[&three, &b], &on(0)).unwrap();
    assert_eq!(read(&five.outputs[0]), vec![5.0; n]);
    assert!(three.delete().is_err() && !three.is_deleted());
    drop(three);
    let noise: Vec<_> = (0..8).map(|_| upload(9.0)).collect();
    assert_eq!(lent.to_vec::<f32>().unwrap(), vec![3.0; n]);
    drop((noise, lent));
    // The last reader lets go of it.
    let three = Arc::new(five.outputs.into_iter().next().unwrap());
    drop(three.lend(LONG).unwrap());
    three.delete().unwrap();
    assert!(matches!(three.lend(LONG), Err(Error::BufferDeleted { .. })));
}

#[test]
fn an_unaligned_literal_is_copied() {
    let client = client(1);
    let n = 1 << 16;
    let mut data = vec![1u8; n + 1];
    data[0] = 0;
    // Vectors are aligned to their elements only; which of these are not to 64 bytes is chance, but
    // all must arrive.
    for skip in 0..2 {
        let literal = Literal::from_vec(data[skip..].to_vec(), [n + 1 - skip]).unwrap();
        let buffer = client.upload_owned(literal.clone(), 0).unwrap();
        assert_eq!(buffer.to_literal(LONG).unwrap(), literal);
    }
}

#[test]
fn bad_uploads_are_errors_and_count_nothing() {
    let client = client(2);
    let scope = Scope::new();
    let shape = Shape::new(&[4]);
    assert!(matches!(
        client.upload(&[0; 15], DType::F32, &shape, 0),
        Err(Error::ShapeMismatch { .. })
    ));
    assert!(matches!(
        client.upload(&[0, 1, 2, 1], DType::Bool, &shape, 0),
        Err(Error::Argument { .. })
    ));
    assert!(matches!(
        client.upload(&[0; 16], DType::F32, &shape, 2),
        Err(Error::NoSuchDevice { asked: 2, count: 2 })
    ));
    let large = Literal::from_slice(&vec![0u8; 1 << 20], [1 << 20]).unwrap();
    assert!(matches!(
        client.upload_owned(large, 9),
        Err(Error::NoSuchDevice { asked: 9, count: 2 })
    ));
    // More elements than fit an address.
    let endless = Shape::new(&[usize::MAX, usize::MAX]);
    assert!(client.upload(&[0; 16], DType::F32, &endless, 0).is_err());
    assert_eq!(scope.count(Counter::Upload), 0);
}

#[test]
fn buffers_move_between_devices_of_a_client() {
    let client = client(2);
    let here = upload(&client, &[1.0, 2.0], 0);
    let there = here.copy_to_device(1).unwrap();
    assert_eq!((here.device(), there.device()), (0, 1));
    assert_eq!(read(&there), [1.0, 2.0]);
    assert_eq!(read(&here), [1.0, 2.0]);
    assert!(matches!(
        here.copy_to_device(2),
        Err(Error::NoSuchDevice { .. })
    ));
}

#[test]
fn reading_has_a_deadline_and_can_be_tried_again() {
    let client = client(1);
    let n = 2048;
    let program = matmul(&client, n);
    let ones = client
        .upload_owned(Literal::from_vec(vec![1.0f32; n * n], [n, n]).unwrap(), 0)
        .unwrap();
    let run = program.execute(&[&ones], &on(0)).unwrap();
    let early = run.outputs[0].to_literal(Duration::from_millis(1));
    assert!(matches!(early, Err(Error::Deadline { .. })), "{early:?}");
    assert_eq!(read(&run.outputs[0]), vec![n as f32; n * n]);
}
