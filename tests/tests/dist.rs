//! Collectives on 1, 2, 4 and 8 replicas, against closed forms.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tests::{multiples, replicas, with_devices, with_env};
use xla::dist::{self, ReduceOp};
use xla::{DType, Error, Tensor};

/// Runs `f` with 1, 2, 4 and 8 replicas.
fn worlds(f: impl Fn(usize)) {
    with_devices(8, || [1, 2, 4, 8].into_iter().for_each(f));
}

#[test]
fn every_reduction_has_its_closed_form_on_every_rank() {
    worlds(|n| {
        let count = n as f32;
        let sum = count * (count + 1.0) / 2.0;
        let product: f32 = (1..=n).map(|i| i as f32).product();
        for (op, first, second) in [
            (ReduceOp::Sum, sum, 2.0 * sum),
            (ReduceOp::Mean, sum / count, 2.0 * sum / count),
            (ReduceOp::Product, product, product * 2.0_f32.powi(n as i32)),
            (ReduceOp::Min, 1.0, 2.0),
            (ReduceOp::Max, count, 2.0 * count),
        ] {
            let seen = replicas(n, |rank| {
                let x = multiples(rank)?;
                let y = dist::all_reduce(&x, op)?;
                // The argument keeps its value.
                Ok((
                    y.to_vec::<f32>()?,
                    x.to_vec::<f32>()? == multiples(rank)?.to_vec::<f32>()?,
                ))
            });
            assert_eq!(seen, vec![(vec![first, second], true); n], "{op:?} of {n}");
        }
    });
}

#[test]
fn a_factor_applies_in_every_world_and_compiles_nothing_new() {
    worlds(|n| {
        let compiles = replicas(n, |rank| {
            let scope = xla::metrics::Scope::new();
            let mut first = 0;
            for (step, factor) in [0.5, -2.0, 0.0, 1.0].into_iter().enumerate() {
                let y = dist::all_reduce(&multiples(rank)?, ReduceOp::Sum.scale(factor))?;
                let sum = (n * (n + 1) / 2) as f32 * factor as f32;
                assert_eq!(y.to_vec::<f32>()?, [sum, 2.0 * sum]);
                if step == 0 {
                    first = scope.compiles();
                }
            }
            Ok((first, scope.compiles()))
        });
        assert!(
            compiles.iter().all(|(first, all)| first == all),
            "{compiles:?}"
        );
    });
}

#[test]
fn every_dtype_reduces() {
    worlds(|n| {
        for dtype in DType::ALL {
            let (least, greatest, sum) = match dtype {
                DType::Bool => (0, 1, 1),
                _ => (0, n as i64 - 1, (n * (n - 1) / 2) as i64),
            };
            // Ranks hold 0, 1, 2, …; as `bool`, only rank 0 holds false.
            let expect = |op| match op {
                ReduceOp::Sum => {
                    if n == 1 {
                        0
                    } else {
                        sum
                    }
                }
                ReduceOp::Min => least,
                _ => {
                    if n == 1 {
                        0
                    } else {
                        greatest
                    }
                }
            };
            let seen = replicas(n, |rank| {
                let x = Tensor::from_slice(&[rank as i64], [1], ())?.to_dtype(dtype)?;
                let mut values = Vec::new();
                for op in [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max] {
                    let y = dist::all_reduce(&x, op)?;
                    assert_eq!(y.dtype(), dtype);
                    values.push(y.to_dtype(DType::I64)?.item::<i64>()?);
                }
                Ok(values)
            });
            let expected = [ReduceOp::Sum, ReduceOp::Min, ReduceOp::Max].map(expect);
            assert!(
                seen.iter().all(|v| *v == expected),
                "{dtype} of {n}: {seen:?}"
            );
        }
    });
}

#[test]
fn a_sum_of_sixteen_bits_is_rounded_once() {
    with_devices(8, || {
        // In bf16 256 + 1 is 256: added one after the other the ones would be lost.
        let seen = replicas(8, |rank| {
            let x = Tensor::from_slice(&[if rank == 0 { 256.0_f32 } else { 1.0 }], [1], ())?;
            dist::all_reduce(&x.to_dtype(DType::BF16)?, ReduceOp::Sum)?
                .to_dtype(DType::F32)?
                .item::<f32>()
        });
        assert_eq!(seen, [264.0; 8]);
    });
}

#[test]
fn in_place_changes_the_tensor_itself() {
    worlds(|n| {
        let sum = (n * (n + 1) / 2) as f32;
        let seen = replicas(n, |rank| {
            let x = multiples(rank)?;
            let before = x.copy()?;
            dist::all_reduce_(&x, ReduceOp::Sum.scale(10))?;
            Ok((x.to_vec::<f32>()?, before.to_vec::<f32>()?))
        });
        for (rank, (after, before)) in seen.into_iter().enumerate() {
            assert_eq!(after, [10.0 * sum, 20.0 * sum]);
            assert_eq!(before, [rank as f32 + 1.0, 2.0 * (rank as f32 + 1.0)]);
        }
    });
}

#[test]
fn many_tensors_travel_together() {
    worlds(|n| {
        let seen = replicas(n, |rank| {
            let r = rank as f32;
            let a = Tensor::full([2, 3], r, ())?;
            let b = Tensor::full((), r, DType::F64)?;
            let c = Tensor::from_slice(&[r, 2.0 * r], [2, 1], ())?;
            let reduced = dist::all_reduce_many(&[&a, &b, &c], ReduceOp::Mean)?;
            let shapes: Vec<_> = reduced
                .iter()
                .map(|t| (t.dtype(), t.dims().to_vec()))
                .collect();
            assert_eq!(
                shapes,
                [
                    (DType::F32, vec![2, 3]),
                    (DType::F64, vec![]),
                    (DType::F32, vec![2, 1])
                ]
            );
            Ok((
                reduced[0].to_vec::<f32>()?,
                reduced[1].item::<f64>()?,
                reduced[2].to_vec::<f32>()?,
            ))
        });
        let mean = (n as f32 - 1.0) / 2.0;
        let expected = (vec![mean; 6], f64::from(mean), vec![mean, 2.0 * mean]);
        assert!(seen.iter().all(|s| *s == expected), "{seen:?}");
    });
}

#[test]
fn a_broadcast_arrives_bit_for_bit() {
    worlds(|n| {
        let source = n - 1;
        let bits = [
            0x8000_0000_u32,
            0x7fc1_2345,
            0x3f80_0001,
            0xff80_0000,
            0x0000_0001,
        ];
        let seen = replicas(n, |rank| {
            let own = match rank == source {
                true => bits.map(f32::from_bits),
                false => [f32::NAN; 5],
            };
            let y = dist::broadcast(&Tensor::from_slice(&own, [5], ())?, source)?;
            Ok(y.to_vec::<f32>()?
                .into_iter()
                .map(f32::to_bits)
                .collect::<Vec<_>>())
        });
        assert!(seen.iter().all(|s| *s == bits), "{seen:x?}");
    });
}

#[test]
fn every_dtype_is_broadcast() {
    with_devices(4, || {
        for dtype in DType::ALL {
            let seen = replicas(4, |rank| {
                let x = Tensor::from_slice(&[rank as i64 + 1, 0], [2], ())?.to_dtype(dtype)?;
                dist::broadcast(&x, 1)?
                    .to_dtype(DType::I64)?
                    .to_vec::<i64>()
            });
            let one = if dtype == DType::Bool { 1 } else { 2 };
            assert!(seen.iter().all(|s| *s == [one, 0]), "{dtype}: {seen:?}");
        }
    });
}

/// The gradient that rank `r` gets for `x` where its loss is `(r + 1)` times the sum of
/// `collective(x)`.
fn gradients(n: usize, collective: impl Fn(&Tensor) -> xla::Result<Tensor> + Sync) -> Vec<f32> {
    replicas(n, |rank| {
        let x = Tensor::full([3], rank as f32, ())?.requires_grad_(true)?;
        let loss = (&collective(&x)?.sum((), false)? * (rank as f64 + 1.0))?;
        loss.backward()?;
        let gradient = x.grad().expect("a leaf that was used").to_vec::<f32>()?;
        assert!(gradient.iter().all(|g| *g == gradient[0]), "{gradient:?}");
        Ok(gradient[0])
    })
}

#[test]
fn gradients_pass_through_collectives() {
    worlds(|n| {
        let total = (n * (n + 1) / 2) as f32;
        let only = |rank: usize| {
            (0..n)
                .map(|r| if r == rank { total } else { 0.0 })
                .collect::<Vec<_>>()
        };
        assert_eq!(
            gradients(n, |x| dist::all_reduce(x, ReduceOp::Sum)),
            vec![total; n]
        );
        let mean = total / n as f32;
        assert_eq!(
            gradients(n, |x| dist::all_reduce(x, ReduceOp::Mean)),
            vec![mean; n]
        );
        // Rank r holds r: the greatest is the last rank's, the least rank 0's.
        assert_eq!(
            gradients(n, |x| dist::all_reduce(x, ReduceOp::Max)),
            only(n - 1)
        );
        assert_eq!(
            gradients(n, |x| dist::all_reduce(x, ReduceOp::Min)),
            only(0)
        );
        assert_eq!(gradients(n, |x| dist::broadcast(x, n - 1)), only(n - 1));
        // All hold the same: the gradient is shared out.
        let same = |x: &Tensor| dist::all_reduce(&(x * 0.0)?, ReduceOp::Max);
        assert_eq!(gradients(n, same), vec![0.0; n]);
        let tied = |x: &Tensor| dist::all_reduce(&(x - &x.detach()?)?, ReduceOp::Max);
        assert_eq!(gradients(n, tied), vec![total / n as f32; n]);
    });
}

#[test]
fn a_barrier_waits_for_all() {
    with_devices(4, || {
        let came = AtomicUsize::new(0);
        let seen = replicas(4, |rank| {
            std::thread::sleep(Duration::from_millis(50 * rank as u64));
            came.fetch_add(1, Ordering::SeqCst);
            dist::barrier()?;
            Ok(came.load(Ordering::SeqCst))
        });
        assert_eq!(seen, [4; 4]);
    });
}

#[test]
fn what_makes_no_sense_is_an_error_at_the_call() {
    with_devices(2, || {
        let x = Tensor::ones([2], ()).unwrap();
        assert!(matches!(
            dist::all_reduce(&x, ReduceOp::Sum),
            Err(Error::ProcessGroup { .. })
        ));
        assert!(matches!(
            dist::destroy_process_group(),
            Err(Error::ProcessGroup { .. })
        ));
        for (backend, method) in [("nccl", "xla://"), ("xla", "env://")] {
            let failed = dist::init_process_group(backend, method);
            assert!(matches!(failed, Err(Error::Config { .. })), "{failed:?}");
        }
        replicas(2, |rank| {
            let twice = dist::init_process_group("xla", "xla://");
            assert!(
                matches!(twice, Err(Error::ProcessGroup { .. })),
                "{twice:?}"
            );
            let whole = Tensor::from_slice(&[1_i64], [1], ())?;
            let mean = dist::all_reduce(&whole, ReduceOp::Mean).unwrap_err();
            assert!(
                matches!(
                    mean,
                    Error::DTypeMismatch {
                        got: DType::I64,
                        ..
                    }
                ),
                "{mean:?}"
            );
            assert!(mean.to_string().contains("dist.rs"), "{mean}");
            let source = dist::broadcast(&whole, 2).unwrap_err();
            assert!(
                matches!(
                    source,
                    Error::Argument {
                        argument: "source",
                        ..
                    }
                ),
                "{source:?}"
            );
            let foreign = Tensor::ones([1], xla::device_at(1 - rank)?)?;
            let elsewhere = dist::all_reduce(&foreign, ReduceOp::Sum);
            assert!(
                matches!(elsewhere, Err(Error::DeviceMismatch { .. })),
                "{elsewhere:?}"
            );
            Ok(())
        });
    });
}

#[test]
fn one_device_and_debug_mode_need_no_gang() {
    with_env(
        &[("CPU_NUM_DEVICES", "2"), ("XLA_LAUNCH_MODE", "debug")],
        || {
            let seen = replicas(2, |_| {
                let x = Tensor::from_slice(&[1.5_f32, -2.0], [2], ())?;
                let y = dist::all_reduce(&dist::broadcast(&x, 0)?, ReduceOp::Mean.scale(2.0))?;
                dist::barrier()?;
                y.to_vec::<f32>()
            });
            assert_eq!(seen, [[3.0, -4.0]]);
        },
    );
}
