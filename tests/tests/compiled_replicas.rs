//! Compiled functions in several replicas: the same numbers as ordinary code, and errors on all.

use std::sync::atomic::{AtomicUsize, Ordering};
use tests::training::model;
use tests::{multiples, replicas, with_devices};
use xla::nn::{self, DistributedDataParallel, Module, Sequential};
use xla::optim::{AdamW, Optim, Sgd, ZeroRedundancyOptimizer};
use xla::{Error, Launcher, Result, Tensor, dist};

const SAMPLES: usize = 16;
const STEPS: usize = 6;

/// This rank's part of the batch of a step.
fn part(step: usize, rank: usize, world: usize) -> Result<(Tensor, Tensor)> {
    let each = SAMPLES / world;
    let sample = |i: usize| rank * each + i;
    let point = |i: usize, k: usize| ((sample(i) * 5 + k * 3 + step) as f32 * 0.37).sin();
    let points = (0..each).flat_map(|i| (0..6).map(move |k| point(i, k)));
    let labels = (0..each).map(|i| ((sample(i) * 7 + step) % 3) as i64);
    Ok((
        Tensor::from_vec(points.collect::<Vec<_>>(), [each, 6], ())?,
        Tensor::from_vec(labels.collect::<Vec<_>>(), [each], ())?,
    ))
}

type Wrapped = DistributedDataParallel<Sequential>;

fn wrapped(views: bool) -> Result<Wrapped> {
    xla::manual_seed(7)?;
    let model = DistributedDataParallel::new(model()?)?;
    Ok(model.gradient_as_bucket_view(views))
}

fn weights(model: &Wrapped) -> Result<Vec<f32>> {
    let each: Result<Vec<Vec<f32>>> = model.parameters().iter().map(Tensor::to_vec).collect();
    Ok(each?.concat())
}

/// The weights after training by compiled steps, and how often the function was called.
fn trained<A>(
    rank: usize,
    world: usize,
    optimizer: impl Fn(Vec<Tensor>) -> Optim<A>,
) -> Result<(Vec<f32>, usize)>
where
    Optim<A>: xla::optim::Optimizer,
{
    use xla::optim::Optimizer;
    // What ranks do beyond the collectives is their own business.
    let model = wrapped(rank % 2 == 1)?;
    let optimizer = optimizer(model.parameters());
    let mut step = xla::compile(
        |(model, optimizer): &mut (Wrapped, Optim<A>), (x, y): (Tensor, Tensor)| {
            let loss = nn::cross_entropy(&model.forward(&x)?, &y)?;
            loss.backward()?;
            Optimizer::step(optimizer)?;
            Optimizer::zero_grad(optimizer);
            Ok(loss)
        },
    )
    .full_graph(true)
    .verify_every(4);
    let mut state = (model, optimizer);
    for at in 0..STEPS {
        // Only one rank reads its losses.
        let loss = step.call(&mut state, part(at, rank, world)?)?;
        if rank == 0 {
            assert!(loss.item::<f32>()?.is_finite());
        }
    }
    Ok((weights(&state.0)?, step.recordings()))
}

#[test]
fn one_two_and_four_replicas_train_alike() {
    with_devices(4, || {
        let run = |world: usize| {
            replicas(world, |rank| {
                trained(rank, world, |p| Sgd::new(p, 0.1).momentum(0.9))
            })
        };
        let alone = run(1).remove(0);
        for world in [2, 4] {
            for (rank, (weights, recordings)) in run(world).into_iter().enumerate() {
                // Recorded once, and once more to verify.
                assert_eq!(recordings, 2, "rank {rank}");
                for (w, e) in weights.iter().zip(&alone.0) {
                    assert!(
                        (w - e).abs() < 1e-5,
                        "rank {rank} of {world}: {w} is not {e}"
                    );
                }
            }
        }
    });
}

#[test]
fn a_divided_optimizer_is_a_state() {
    with_devices(2, || {
        let both = replicas(2, |rank| {
            let run = |compiled: bool| -> Result<Vec<f32>> {
                let model = wrapped(false)?;
                let optimizer = ZeroRedundancyOptimizer::new(model.parameters(), |parts| {
                    Ok(AdamW::new(parts, 0.01))
                })?;
                type State = (Wrapped, ZeroRedundancyOptimizer<AdamW>);
                let body = |(model, optimizer): &mut State, (x, y): (Tensor, Tensor)| {
                    nn::cross_entropy(&model.forward(&x)?, &y)?.backward()?;
                    optimizer.step()?;
                    optimizer.zero_grad();
                    Ok(())
                };
                let mut step = xla::compile(body).full_graph(true);
                let mut state = (model, optimizer);
                for at in 0..4 {
                    let (x, y) = part(at, rank, 2)?;
                    if compiled {
                        step.call(&mut state, (x, y))?;
                    } else {
                        body(&mut state, (x, y))?;
                        xla::sync()?;
                    }
                }
                assert_eq!(step.recordings(), usize::from(compiled));
                weights(&state.0)
            };
            Ok((run(true)?, run(false)?))
        });
        for (compiled, plain) in both {
            for (c, p) in compiled.iter().zip(&plain) {
                assert!((c - p).abs() < 1e-6, "{c} is not {p}");
            }
        }
    });
}

#[test]
fn an_error_on_one_rank_reaches_the_other() {
    with_devices(2, || {
        let calls = AtomicUsize::new(0);
        let outcome = Launcher::new()
            .devices(2)
            .deadline(std::time::Duration::from_secs(30))
            .run(|rank| -> Result<()> {
                dist::init_process_group("xla", "xla://")?;
                let mut sum = xla::compile_fn(|(x, index): (Tensor, Tensor)| {
                    calls.fetch_add(1, Ordering::Relaxed);
                    dist::all_reduce(&x.index_select(0, &index)?, dist::ReduceOp::Sum)
                });
                for step in 0..4 {
                    // On rank 1 the last index is out of range.
                    let index = if rank == 1 && step == 3 { 2 } else { 1 };
                    let index = Tensor::from_slice(&[index as i64], [1], ())?;
                    let total = sum.call((multiples(rank)?, index))?;
                    assert_eq!(total.to_vec::<f32>()?, [6.0]);
                }
                Ok(())
            });
        let error = outcome.unwrap_err().to_string();
        assert!(
            error.contains("rank 1") && error.contains("index 2"),
            "{error}"
        );
        assert_eq!(calls.into_inner(), 2);
    });
}

#[test]
fn replicas_that_call_different_functions_diverge() {
    with_devices(2, || {
        let both = replicas(2, |rank| {
            let mut sum = xla::compile_fn(|x: Tensor| {
                let x = if rank == 0 { x.exp() } else { x.log() }?;
                dist::all_reduce(&x, dist::ReduceOp::Sum)
            });
            Ok(sum.call(multiples(rank)?).map(drop))
        });
        for outcome in both {
            assert!(
                matches!(outcome, Err(Error::Divergence { .. })),
                "{outcome:?}"
            );
        }
    });
}

#[test]
fn a_rank_that_is_verified_meets_one_that_is_not() {
    with_devices(2, || {
        let totals = replicas(2, |rank| {
            let mut sum = xla::compile_fn(|x: Tensor| dist::all_reduce(&x, dist::ReduceOp::Sum))
                .verify_every(if rank == 0 { 2 } else { 0 });
            let mut totals = Vec::new();
            for _ in 0..5 {
                totals.push(sum.call(multiples(rank)?)?.to_vec::<f32>()?);
            }
            assert_eq!(sum.recordings(), if rank == 0 { 3 } else { 1 });
            Ok(totals)
        });
        for totals in totals {
            assert_eq!(totals, vec![vec![3.0, 6.0]; 5]);
        }
    });
}
