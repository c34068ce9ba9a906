//! Replicas whose programs are not the same: where that is no error, and where it is one.

use std::time::Duration;
use tests::{exit_status, multiples, replicas, with_devices};
use xla::dist::{self, ReduceOp};
use xla::{Error, Launcher, Tensor};

/// A step with a collective in the middle; `curious` ranks look at (or keep) values at `place`.
fn step(rank: usize, curious: bool, place: usize, kept: &mut Vec<Tensor>) -> xla::Result<f32> {
    let look = |at: usize, value: &Tensor| match curious && place == at {
        true => value.to_vec::<f32>().map(drop),
        false => Ok(()),
    };
    let x = (&multiples(rank)? * 3.0)?;
    look(0, &x)?;
    let y = (&x.exp()?.log()? + 1.0)?;
    look(1, &y)?;
    let z = dist::all_reduce(&y, ReduceOp::Sum)?;
    look(2, &z)?;
    let w = (&z * 0.5)?;
    look(3, &w)?;
    if curious && place == 4 {
        kept.extend([x, y, z]);
    }
    xla::sync()?;
    w.sum((), false)?.item()
}

#[test]
fn one_rank_may_look_or_keep_where_the_others_do_not() {
    with_devices(4, || {
        let seen = replicas(4, |rank| {
            let mut kept = Vec::new();
            let mut values = Vec::new();
            for place in 0..5 {
                for curious in 0..4 {
                    values.push(step(rank, rank == curious, place, &mut kept)?);
                }
            }
            Ok(values)
        });
        // Σ (3 (r + 1) + 1) = 34 and Σ (6 (r + 1) + 1) = 64; half of both is 49.
        for value in seen.into_iter().flatten() {
            assert!((value - 49.0).abs() < 1e-3, "{value}");
        }
    });
}

#[test]
fn several_ranks_may_look_at_one_place() {
    with_devices(4, || {
        let seen = replicas(4, |rank| {
            let mut kept = Vec::new();
            (0..5)
                .map(|place| step(rank, rank % 2 == 1, place, &mut kept))
                .collect::<xla::Result<Vec<f32>>>()
        });
        for value in seen.into_iter().flatten() {
            assert!((value - 49.0).abs() < 1e-3, "{value}");
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
fn a_rank_may_go_on_alone_with_what_was_reduced() {
    with_devices(2, || {
        let seen = replicas(2, |rank| {
            let sum = dist::all_reduce(&Tensor::full([2], 1.5, ())?, ReduceOp::Sum)?;
            let mut looked = 0.0;
            if rank == 0 {
                looked = (&sum.select(0, 1)? * 10.0)?.item::<f32>()?;
            }
            let double = sum.mul(2.0)?;
            let again = dist::all_reduce(&double, ReduceOp::Sum)?;
            Ok((looked, double.to_vec::<f32>()?, again.to_vec::<f32>()?))
        });
        assert_eq!(seen[0], (30.0, vec![6.0; 2], vec![12.0; 2]));
        assert_eq!(seen[1], (0.0, vec![6.0; 2], vec![12.0; 2]));
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
                    assert!(left.contains(&format!("divergence.rs:{log}")), "{left}");
                    assert!(right.to_lowercase().contains("exp"), "{right}");
                    assert!(right.contains(&format!("divergence.rs:{exp}")), "{right}");
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
