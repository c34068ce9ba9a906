//! Programs on several devices: replicas by a thread each, partitions from one thread.

mod common;

use common::*;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;
use xla_core::{DType, Error};
use xla_runtime::{Buffer, Client, CompileOptions, Executable, ExecuteOptions, Signature};

fn all_reduce(client: &Client, options: &CompileOptions) -> Executable {
    let replicas: Vec<String> = (0..options.num_replicas).map(|r| r.to_string()).collect();
    let text = format!(
        r#"func.func @main(%a: tensor<4xf32>) -> tensor<4xf32> {{
             %0 = "stablehlo.all_reduce"(%a) ({{
               ^bb0(%x: tensor<f32>, %y: tensor<f32>):
                 %s = stablehlo.add %x, %y : tensor<f32>
                 stablehlo.return %s : tensor<f32>
             }}) {{replica_groups = dense<[[{groups}]]> : tensor<1x{n}xi64>}}
               : (tensor<4xf32>) -> tensor<4xf32>
             return %0 : tensor<4xf32>
           }}"#,
        groups = replicas.join(", "),
        n = replicas.len(),
    );
    let signature = Signature {
        inputs: vec![f32s(4)],
        outputs: vec![f32s(4)],
    };
    client.compile(&text, &signature, options).unwrap()
}

fn launch(device: usize, launch_id: i32) -> ExecuteOptions<'static> {
    ExecuteOptions {
        device,
        launch_id,
        non_donatable: &[],
    }
}

#[test]
fn four_threads_reduce_together() {
    let client = client(4);
    let program = all_reduce(&client, &CompileOptions::replicated(4));
    assert_eq!(program.devices(), [0, 1, 2, 3]);
    thread::scope(|scope| {
        for device in 0..4 {
            let (client, program) = (&client, &program);
            scope.spawn(move || {
                for step in 1..=10 {
                    let a = upload(client, &[(device * step) as f32; 4], device);
                    let run = program
                        .execute(&[&a], &launch(device, step as i32))
                        .unwrap();
                    // 0 + 1 + 2 + 3 times the step.
                    assert_eq!(read(&run.outputs[0]), [(6 * step) as f32; 4]);
                    assert_eq!(run.outputs[0].device(), device);
                }
            });
        }
    });
}

#[test]
fn one_call_starts_all_replicas_on_the_assigned_devices() {
    let client = client(4);
    let options = CompileOptions {
        device_assignment: vec![3, 1],
        ..CompileOptions::replicated(2)
    };
    let program = all_reduce(&client, &options);
    assert_eq!(program.devices(), [3, 1]);
    let args: Vec<Buffer> = [3, 1]
        .iter()
        .map(|d| upload(&client, &[*d as f32; 4], *d))
        .collect();
    let rows: Vec<Vec<&Buffer>> = args.iter().map(|b| vec![b]).collect();
    let runs = program.execute_sharded(&rows, &launch(0, 1)).unwrap();
    let devices: Vec<_> = runs.iter().map(|r| r.outputs[0].device()).collect();
    assert_eq!(devices, [3, 1]);
    for run in &runs {
        assert_eq!(read(&run.outputs[0]), [4.0; 4]);
    }
}

#[test]
fn what_would_leave_replicas_stuck_is_an_error_first() {
    let client = client(4);
    let program = all_reduce(&client, &CompileOptions::replicated(2));
    let (on0, on3) = (upload(&client, &[1.0; 4], 0), upload(&client, &[1.0; 4], 3));
    for (arg, launch, argument) in [
        (&on0, launch(0, 0), "launch_id"),
        (&on3, launch(3, 1), "device"),
    ] {
        for result in [
            program.check(&[arg], &launch),
            program.execute(&[arg], &launch).map(|_| ()),
        ] {
            match result {
                Err(Error::Argument {
                    argument: found, ..
                }) => assert_eq!(found, argument),
                other => panic!("{argument}: {other:?}"),
            }
        }
    }
    let zero = program.execute_sharded(&[vec![&on0], vec![&on0]], &launch(0, 0));
    assert!(matches!(
        zero,
        Err(Error::Argument {
            argument: "launch_id",
            ..
        })
    ));
    let one_row = program.execute_sharded(&[vec![&on0]], &launch(0, 1));
    assert!(matches!(
        one_row,
        Err(Error::Argument {
            argument: "args",
            ..
        })
    ));
    let misplaced = program.execute_sharded(&[vec![&on0], vec![&on0]], &launch(0, 1));
    assert!(matches!(misplaced, Err(Error::ExecuteArgument { .. })));
}

#[test]
fn a_portable_program_runs_on_four_devices_at_once() {
    let client = client(4);
    let program = add(&client, 16, false);
    thread::scope(|scope| {
        for device in 0..4 {
            let (client, program) = (&client, &program);
            scope.spawn(move || {
                let mut sum = upload(client, &[0.0; 16], device);
                let one = upload(client, &[1.0; 16], device);
                for _ in 0..200 {
                    sum = program
                        .execute(&[&sum, &one], &on(device))
                        .unwrap()
                        .outputs
                        .remove(0);
                }
                assert_eq!(read(&sum), [200.0; 16]);
            });
        }
    });
}

#[test]
fn a_program_bound_to_one_device_runs_there_only() {
    let client = client(2);
    let text = "func.func @main(%a: tensor<2xf32>) -> tensor<2xf32> {
      %0 = stablehlo.negate %a : tensor<2xf32>
      return %0 : tensor<2xf32>
    }";
    let signature = Signature {
        inputs: vec![f32s(2)],
        outputs: vec![f32s(2)],
    };
    let options = CompileOptions {
        portable: false,
        device_assignment: vec![1],
        ..CompileOptions::default()
    };
    let program = client.compile(text, &signature, &options).unwrap();
    assert_eq!(program.devices(), [1]);
    let (here, there) = (
        upload(&client, &[1.0, 2.0], 0),
        upload(&client, &[1.0, 2.0], 1),
    );
    let run = program.execute(&[&there], &on(1)).unwrap();
    assert_eq!(read(&run.outputs[0]), [-1.0, -2.0]);
    assert!(matches!(
        program.execute(&[&here], &on(0)),
        Err(Error::Argument {
            argument: "device",
            ..
        })
    ));
}

#[test]
fn partitions_run_from_one_call_or_a_thread_each() {
    let client = client(4);
    // The sum over an axis that is split in four: each device sees two of the eight elements.
    let text = r#"sdy.mesh @mesh = <["x"=4]>
      func.func @main(%a: tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>})
          -> (tensor<8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"x"}]>}) {
        %z = stablehlo.constant dense<0.0> : tensor<f32>
        %s = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0]
            : (tensor<8xf32>, tensor<f32>) -> tensor<f32>
        %b = stablehlo.broadcast_in_dim %s, dims = [] : (tensor<f32>) -> tensor<8xf32>
        %0 = stablehlo.add %a, %b : tensor<8xf32>
        return %0 : tensor<8xf32>
      }"#;
    let shard = ty(DType::F32, &[2]);
    let signature = Signature {
        inputs: vec![shard.clone()],
        outputs: vec![shard],
    };
    let program = client
        .compile(text, &signature, &CompileOptions::partitioned(4, true))
        .unwrap();
    let expected = |d: usize| vec![28.0 + 2.0 * d as f32, 29.0 + 2.0 * d as f32];
    let shards: Vec<Buffer> = (0..4)
        .map(|d| upload(&client, &[2.0 * d as f32, 2.0 * d as f32 + 1.0], d))
        .collect();
    let rows: Vec<Vec<&Buffer>> = shards.iter().map(|b| vec![b]).collect();
    let runs = program.execute_sharded(&rows, &launch(0, 7)).unwrap();
    for (d, run) in runs.iter().enumerate() {
        assert_eq!(read(&run.outputs[0]), expected(d));
    }
    thread::scope(|scope| {
        for (d, shard) in shards.iter().enumerate() {
            let program = &program;
            scope.spawn(move || {
                let run = program.execute(&[shard], &launch(d, 8)).unwrap();
                assert_eq!(read(&run.outputs[0]), expected(d));
            });
        }
    });
}

#[test]
fn a_late_replica_is_waited_for_with_a_deadline() {
    let client = client(2);
    let program = all_reduce(&client, &CompileOptions::replicated(2));
    let (sender, receiver) = mpsc::channel();
    thread::scope(|scope| {
        let (client, program) = (&client, &program);
        // Some plugins run collectives within the call, so the early replica needs its own thread.
        scope.spawn(move || {
            let a = upload(client, &[1.0; 4], 0);
            let run = program.execute(&[&a], &launch(0, 5)).unwrap();
            let early = run.done.wait(Duration::from_millis(50));
            sender.send(early.is_ok()).unwrap();
            assert_eq!(read(&run.outputs[0]), [3.0; 4]);
        });
        thread::sleep(Duration::from_millis(200));
        // Either the call itself has not returned yet, or waiting ran into its deadline.
        assert_ne!(receiver.try_recv(), Ok(true));
        let b = upload(client, &[2.0; 4], 1);
        let run = program.execute(&[&b], &launch(1, 5)).unwrap();
        assert_eq!(read(&run.outputs[0]), [3.0; 4]);
    });
}
