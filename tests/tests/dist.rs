//! Collectives on 1, 2, 4 and 8 replicas, against closed forms.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tests::{exit_status, with_devices, with_env};
use xla::dist::{self, ReduceOp};
use xla::{DType, Error, Launcher, Tensor};

/// Runs `f` on so many replicas with a process group and returns what each returned.
fn replicas<T: Send>(n: usize, f: impl Fn(usize) -> xla::Result<T> + Send + Sync) -> Vec<T> {
    Launcher::new()
        .devices(n)
        .deadline(Duration::from_secs(60))
        .run(|rank| {
            dist::init_process_group("xla", "xla://")?;
            f(rank)
        })
        .unwrap()
}

/// Runs `f` with 1, 2, 4 and 8 replicas.
fn worlds(f: impl Fn(usize)) {
    with_devices(8, || [1, 2, 4, 8].into_iter().for_each(f));
}

/// `[r + 1, 2 (r + 1)]` on rank `r`.
fn multiples(rank: usize) -> xla::Result<Tensor> {
    let first = rank as f32 + 1.0;
    Tensor::from_slice(&[first, 2.0 * first], [2], ())
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

/// A step with a collective in the middle; rank 0 alone may look at values at `look`.
fn step(rank: usize, look: usize, kept: &mut Vec<Tensor>) -> xla::Result<f32> {
    let alone = |at: usize, value: &Tensor| match rank == 0 && look == at {
        true => value.to_vec::<f32>().map(drop),
        false => Ok(()),
    };
    let x = (&multiples(rank)? * 3.0)?;
    alone(0, &x)?;
    let y = (&x.exp()?.log()? + 1.0)?;
    alone(1, &y)?;
    let z = dist::all_reduce(&y, ReduceOp::Sum)?;
    alone(2, &z)?;
    let w = (&z * 0.5)?;
    alone(3, &w)?;
    if rank == 0 && look == 4 {
        kept.extend([x, y, z]);
    }
    xla::sync()?;
    w.sum((), false)?.item()
}

#[test]
fn one_rank_may_look_or_keep_where_the_others_do_not() {
    with_devices(4, || {
        for look in 0..6 {
            let seen = replicas(4, |rank| {
                let mut kept = Vec::new();
                (0..3)
                    .map(|_| step(rank, look, &mut kept))
                    .collect::<xla::Result<Vec<f32>>>()
            });
            // Σ (3 (r + 1) + 1) = 34 and Σ (6 (r + 1) + 1) = 64; half of both is 49.
            for value in seen.into_iter().flatten() {
                assert!((value - 49.0).abs() < 1e-3, "looking at {look}: {value}");
            }
        }
    });
}

#[test]
fn a_look_before_the_backward_pass_is_no_divergence() {
    with_devices(4, || {
        let seen = replicas(4, |rank| {
            let w = Tensor::full([4], 0.5_f32, ())?.requires_grad_(true)?;
            let mut losses = Vec::new();
            for _ in 0..3 {
                let loss = (&w.exp()?.tanh()? * (rank as f64 + 1.0))?
                    .relu()?
                    .sum((), false)?;
                if rank == 0 {
                    losses.push(loss.item::<f32>()?);
                }
                loss.backward()?;
                let gradient = w.grad().expect("a leaf that was used");
                let mean = dist::all_reduce(&gradient, ReduceOp::Mean)?;
                xla::no_grad(|| w.add_(&(&mean * -0.1)?))?;
                w.set_grad(None);
                xla::sync()?;
            }
            w.detach()?.to_vec::<f32>()
        });
        assert!(seen.iter().all(|w| *w == seen[0]), "{seen:?}");
        // d/dw of 2.5 tanh(exp(w)), three steps of 0.1 from 0.5, in f64.
        let mut w = 0.5_f64;
        for _ in 0..3 {
            let e = w.exp();
            w -= 0.1 * 2.5 * e / e.cosh().powi(2);
        }
        assert!(
            (f64::from(seen[0][0]) - w).abs() < 1e-5,
            "{} and {w}",
            seen[0][0]
        );
    });
}

#[test]
fn programs_that_differ_are_an_error_on_every_rank_with_both_lines() {
    with_devices(4, || {
        let errors = replicas(4, |rank| {
            let x = multiples(rank)?;
            let (y, line) = match rank {
                3 => (x.log()?, line!()),
                _ => (x.exp()?, line!()),
            };
            let failed = dist::all_reduce(&y, ReduceOp::Sum)?.to_vec::<f32>();
            Ok((failed.err(), line))
        });
        let (exp, log) = (errors[0].1, errors[3].1);
        for (error, _) in errors {
            match error {
                Some(Error::Divergence {
                    rank: 3,
                    left,
                    other_rank: 0,
                    right,
                    ..
                }) => {
                    assert!(left.to_lowercase().contains("log"), "{left}");
                    assert!(left.contains(&format!("dist.rs:{log}")), "{left}");
                    assert!(right.to_lowercase().contains("exp"), "{right}");
                    assert!(right.contains(&format!("dist.rs:{exp}")), "{right}");
                }
                other => panic!("{other:?}"),
            }
        }
    });
}

#[test]
fn a_failed_group_stays_failed_until_it_is_made_anew() {
    with_devices(2, || {
        let seen = replicas(2, |rank| {
            let x = multiples(rank)?;
            let odd = if rank == 0 { x.exp()? } else { x.log()? };
            assert!(
                dist::all_reduce(&odd, ReduceOp::Sum)?
                    .to_vec::<f32>()
                    .is_err()
            );
            assert!(
                dist::all_reduce(&x, ReduceOp::Sum)?
                    .to_vec::<f32>()
                    .is_err()
            );
            dist::destroy_process_group()?;
            assert!(!dist::is_initialized());
            dist::init_process_group("xla", "xla://")?;
            dist::all_reduce(&x, ReduceOp::Sum)?.to_vec::<f32>()
        });
        assert_eq!(seen, vec![vec![3.0, 6.0]; 2]);
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
            let foreign = Tensor::ones([1], &xla::device_at(1 - rank)?)?;
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
fn an_execution_past_its_deadline_ends_the_process_with_the_documented_code() {
    let status = exit_status(&[("CPU_NUM_DEVICES", "2")], || {
        let _ = Launcher::new()
            .deadline(Duration::from_millis(500))
            .run(|_| {
                dist::init_process_group("xla", "xla://")?;
                // Minutes of work in one program.
                let mut x = Tensor::from_vec(vec![1e-3_f32; 4096 * 4096], [4096, 4096], ())?;
                for _ in 0..100 {
                    x = x.matmul(&x)?;
                }
                let _sum = dist::all_reduce(&x, ReduceOp::Sum)?;
                xla::sync()?.wait()
            });
    });
    if let Some(status) = status {
        assert_eq!(status.code(), Some(dist::OVERDUE_EXIT_CODE));
    }
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
