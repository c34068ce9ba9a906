//! Values that only some ranks keep: every rank computes them, and none is harmed by it.

use std::sync::Barrier;
use std::time::Duration;
use tests::with_devices;
use xla::metrics::Scope;
use xla::{DType, Launcher, Result, Tensor, dist};

#[test]
fn what_another_rank_keeps_is_not_taken_for_something_else() {
    with_devices(2, || {
        let sums = Launcher::new()
            .devices(2)
            .run(|rank| -> Result<Vec<Vec<f32>>> {
                dist::init_process_group("xla", "xla://")?;
                let mut kept = Vec::new();
                let mut sums = Vec::new();
                for step in 0..4 {
                    let x = Tensor::full([3], f64::from(step), DType::F32)?;
                    let shared = dist::all_reduce(&x, dist::ReduceOp::Sum)?;
                    let only_rank_0_keeps = shared.mul(100.0)?;
                    if rank == 0 {
                        kept.push(only_rank_0_keeps);
                    } else {
                        drop(only_rank_0_keeps);
                    }
                    xla::sync()?;
                    // What stood for the value that rank 1 dropped may stand for one of these.
                    let y = Tensor::full([2], f64::from(step), DType::F32)?;
                    let z = y.add(0.5)?;
                    let w = z.add(0.5)?;
                    for value in [&w, &z, &y] {
                        sums.push(value.to_vec::<f32>()?);
                    }
                }
                for (step, value) in kept.iter().enumerate() {
                    assert_eq!(value.to_vec::<f32>()?, [200.0 * step as f32; 3]);
                }
                Ok(sums)
            })
            .unwrap();
        let expected: Vec<Vec<f32>> = [0.0f32, 1.0, 2.0, 3.0]
            .iter()
            .flat_map(|step| [step + 1.0, step + 0.5, *step].map(|v| vec![v; 2]))
            .collect();
        assert_eq!(sums, [expected.clone(), expected]);
    });
}

/// Threads outside a launch share one random generator, so one runs what another has recorded of it.
/// A value that its owner drops meanwhile must not turn up as that of a later tensor.
#[test]
fn a_value_dropped_while_another_thread_computes_it_is_gone() {
    const ROUNDS: usize = 4;
    /// More than the operators of the program before, whose memory these tensors use again.
    const NEW: u8 = 200;
    with_devices(1, || {
        let turn = Barrier::new(2);
        // Outcomes are collected and judged at the end: a thread that left early would keep the
        // other waiting for its turn.
        let owner = |round: usize| -> Result<Vec<Vec<f32>>> {
            let _noise = Tensor::rand([round], ())?;
            let dropped = Tensor::full([7, round], 7.0, DType::F32)?;
            turn.wait();
            // By now the other thread compiles this thread's program, which takes longer.
            std::thread::sleep(Duration::from_millis(3));
            drop(dropped);
            turn.wait();
            let new: Result<Vec<Tensor>> = (0..NEW)
                .map(|v| Tensor::full([2], f64::from(v), DType::F32))
                .collect();
            new?.iter().map(Tensor::to_vec).collect()
        };
        let other = || -> Result<Vec<f32>> {
            turn.wait();
            let noise = Tensor::rand([3], ()).and_then(|noise| noise.to_vec());
            turn.wait();
            noise
        };
        std::thread::scope(|scope| {
            let others = scope.spawn(|| (0..ROUNDS).map(|_| other()).collect::<Vec<_>>());
            let found: Vec<_> = (1..=ROUNDS).map(owner).collect();
            let expected: Vec<Vec<f32>> = (0..NEW).map(|v| vec![f32::from(v); 2]).collect();
            for values in found {
                assert_eq!(values.unwrap(), expected);
            }
            for noise in others.join().unwrap() {
                assert_eq!(noise.unwrap().len(), 3);
            }
        });
    });
}

/// A thread keeps the storages of values that it has dropped, to use them for its next ones. To another
/// thread that computes what it has recorded they are as dropped as they are to itself.
#[test]
fn what_its_thread_has_dropped_is_not_computed_for_another_thread() {
    with_devices(1, || {
        for round in 0..3 {
            let offset = f64::from(round);
            let (sum, shown) = {
                let x = Tensor::full([2], offset, DType::F32).unwrap();
                let y = x.add(1.0).unwrap();
                let twice = y.clone();
                (y.mul(&twice).unwrap(), x.add(0.5).unwrap())
            };
            std::thread::scope(|scope| {
                let reader = scope.spawn(|| {
                    let counted = Scope::new();
                    let values = [sum.to_vec::<f32>(), shown.to_vec::<f32>()];
                    (values.map(Result::unwrap), counted.outputs())
                });
                let (values, outputs) = reader.join().unwrap();
                let offset = offset as f32;
                assert_eq!(values, [[(offset + 1.0).powi(2); 2], [offset + 0.5; 2]]);
                assert_eq!(outputs, 2, "the values that are held, and no others");
            });
            // The next values take the places of those dropped, and share nothing with those held.
            let next = (0..40).map(|i| Tensor::full([2], f64::from(i), DType::F32)?.neg());
            let next = next.collect::<Result<Vec<_>>>().unwrap();
            for (i, value) in next.iter().enumerate() {
                assert_eq!(value.to_vec::<f32>().unwrap(), [-(i as f32); 2]);
            }
            assert_eq!(shown.to_vec::<f32>().unwrap(), [offset as f32 + 0.5; 2]);
        }
    });
}
