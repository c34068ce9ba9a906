//! How the arguments and results of a partitioned program are spread, read from what XLA made of it.

mod common;

use common::*;
use xla_core::{DType, Error, Literal, Shape, Tiling};
use xla_runtime::{CompileOptions, ExecuteOptions, Signature};

/// `a · b`, with `a` split by rows over the first axis of a mesh of 2 × 2 and `b` by columns over
/// the second; how the product and `a` transposed are spread is left to XLA.
fn product(shardy: bool) -> String {
    let (mesh, a, b) = match shardy {
        true => (
            r#"sdy.mesh @mesh = <["x"=2, "y"=2]>"#,
            r#"sdy.sharding = #sdy.sharding<@mesh, [{"x"}, {}]>"#,
            r#"sdy.sharding = #sdy.sharding<@mesh, [{}, {"y"}]>"#,
        ),
        false => (
            "",
            r#"mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}""#,
            r#"mhlo.sharding = "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}""#,
        ),
    };
    format!(
        "{mesh}
         func.func @main(%a: tensor<8x4xf32> {{{a}}}, %b: tensor<4x6xf32> {{{b}}}, %c: tensor<2xf32>)
             -> (tensor<8x6xf32>, tensor<4x8xf32>, tensor<2xf32>) {{
           %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
               : (tensor<8x4xf32>, tensor<4x6xf32>) -> tensor<8x6xf32>
           %1 = stablehlo.transpose %a, dims = [1, 0] : (tensor<8x4xf32>) -> tensor<4x8xf32>
           %2 = stablehlo.negate %c : tensor<2xf32>
           return %0, %1, %2 : tensor<8x6xf32>, tensor<4x8xf32>, tensor<2xf32>
         }}"
    )
}

fn f32_of(dims: &[usize]) -> (DType, Shape) {
    ty(DType::F32, dims)
}

fn tiling(dims: &[usize], devices: &[usize], replicate_last: bool) -> Tiling {
    Tiling {
        dims: dims.to_vec(),
        devices: devices.to_vec(),
        replicate_last,
    }
}

#[test]
fn what_xla_chose_is_read_back_and_its_shards_have_these_shapes() {
    for shardy in [true, false] {
        let client = client(4);
        let signature = Signature {
            inputs: vec![f32_of(&[4, 4]), f32_of(&[4, 3]), f32_of(&[2])],
            // Whole: their sharding is XLA's.
            outputs: vec![f32_of(&[8, 6]), f32_of(&[4, 8]), f32_of(&[2])],
        };
        let options = CompileOptions {
            propagate_to_outputs: vec![true; 3],
            // The mesh's first device is the client's last.
            device_assignment: vec![3, 2, 1, 0],
            ..CompileOptions::partitioned(4, shardy)
        };
        let program = client
            .compile(&product(shardy), &signature, &options)
            .unwrap();
        assert_eq!(program.devices(), [3, 2, 1, 0]);
        let rows = tiling(&[2, 1, 2], &[0, 1, 2, 3], true);
        let columns = tiling(&[1, 2, 2], &[0, 2, 1, 3], true);
        assert_eq!(
            program.parameter_shardings().unwrap(),
            [rows, columns, Tiling::replicated()]
        );
        let transposed = tiling(&[1, 2, 2], &[0, 1, 2, 3], true);
        assert_eq!(
            program.output_shardings().unwrap(),
            [
                tiling(&[2, 2], &[0, 1, 2, 3], false),
                transposed,
                Tiling::replicated()
            ]
        );
        assert_eq!(
            program.output_types(),
            [f32_of(&[4, 3]), f32_of(&[4, 4]), f32_of(&[2])]
        );

        // a[i][k] is i where k is 0, else 0; b[0][j] is j: the product is i · j.
        let rows = |x: usize| -> Vec<f32> {
            let mut a = vec![0.0; 16];
            (0..4).for_each(|i| a[4 * i] = (4 * x + i) as f32);
            a
        };
        let columns = |y: usize| -> Vec<f32> {
            let mut b = vec![0.0; 12];
            (0..3).for_each(|j| b[j] = (3 * y + j) as f32);
            b
        };
        let upload = |data: Vec<f32>, dims: &[usize], device: usize| {
            let literal = Literal::from_vec(data, dims).unwrap();
            client.upload_owned(literal, device).unwrap()
        };
        let arguments: Vec<_> = (0..4)
            .map(|p| {
                let device = program.devices()[p];
                [
                    upload(rows(p / 2), &[4, 4], device),
                    upload(columns(p % 2), &[4, 3], device),
                    upload(vec![1.0, -2.0], &[2], device),
                ]
            })
            .collect();
        let arguments: Vec<Vec<_>> = arguments.iter().map(|a| a.iter().collect()).collect();
        let launch = ExecuteOptions {
            launch_id: 1,
            ..ExecuteOptions::default()
        };
        let runs = program.execute_sharded(&arguments, &launch).unwrap();
        for (p, run) in runs.iter().enumerate() {
            let (x, y) = (p / 2, p % 2);
            let expected: Vec<f32> = (0..12)
                .map(|e| ((4 * x + e / 3) * (3 * y + e % 3)) as f32)
                .collect();
            assert_eq!(run.outputs[0].device(), 3 - p);
            assert_eq!(read(&run.outputs[0]), expected);
            assert_eq!(read(&run.outputs[2]), [-1.0, 2.0]);
        }
    }
}

#[test]
fn parts_of_an_axis_of_the_mesh_are_read_back_as_tiles() {
    let client = client(4);
    // The rows of the result can be split by the first half of the mesh's axis, the columns by the
    // second, and each device keeps the element that it has. Newer versions of Shardy split
    // arguments and results by whole axes only, and then this one is on every device.
    let text = r#"sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: tensor<4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
          -> tensor<2x2xf32> {
        %0 = stablehlo.reshape %a : (tensor<4xf32>) -> tensor<2x2xf32>
        return %0 : tensor<2x2xf32>
      }"#;
    let signature = Signature {
        inputs: vec![f32_of(&[1])],
        outputs: vec![f32_of(&[2, 2])],
    };
    let options = CompileOptions {
        propagate_to_outputs: vec![true],
        ..CompileOptions::partitioned(4, true)
    };
    let program = client.compile(text, &signature, &options).unwrap();
    let chosen = program.output_shardings().unwrap();
    let halves = tiling(&[2, 2], &[0, 1, 2, 3], false);
    assert!(
        [halves, Tiling::replicated()].contains(&chosen[0]),
        "{chosen:?}"
    );
    let elements: Vec<_> = (0..4).map(|d| upload(&client, &[d as f32], d)).collect();
    let arguments: Vec<Vec<_>> = elements.iter().map(|element| vec![element]).collect();
    let launch = ExecuteOptions {
        launch_id: 1,
        ..ExecuteOptions::default()
    };
    let runs = program.execute_sharded(&arguments, &launch).unwrap();
    for (d, run) in runs.iter().enumerate() {
        match chosen[0].dims.as_slice() {
            [] => assert_eq!(read(&run.outputs[0]), [0.0, 1.0, 2.0, 3.0]),
            _ => assert_eq!(read(&run.outputs[0]), [d as f32]),
        }
    }
}

#[test]
fn a_program_that_was_not_partitioned_has_no_shardings() {
    let client = client(1);
    let program = add(&client, 4, false);
    for shardings in [program.output_shardings(), program.parameter_shardings()] {
        assert!(
            matches!(shardings, Err(Error::Unsupported { .. })),
            "{shardings:?}"
        );
    }
}

#[test]
fn a_choice_for_results_that_there_are_not_is_an_error() {
    let client = client(4);
    let signature = Signature {
        inputs: vec![f32_of(&[4, 4]), f32_of(&[4, 3]), f32_of(&[2])],
        outputs: vec![f32_of(&[8, 6]), f32_of(&[4, 8]), f32_of(&[2])],
    };
    let options = CompileOptions {
        propagate_to_outputs: vec![true; 2],
        ..CompileOptions::partitioned(4, true)
    };
    let error = client
        .compile(&product(true), &signature, &options)
        .unwrap_err();
    assert!(
        matches!(
            &error,
            Error::Argument {
                argument: "propagate_to_outputs",
                ..
            }
        ),
        "{error}"
    );
}
