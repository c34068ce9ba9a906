//! Groups of some of the ranks.

use super::Checks;
use std::sync::Arc;
use xla::dist::{self, ProcessGroup, ReduceOp};
use xla::{DType, Error, Tensor};

fn sum_of(ranks: &[usize]) -> f64 {
    ranks.iter().sum::<usize>() as f64
}

/// The groups of even and of odd ranks, each a gang of its own; and those of a few ranks.
///
/// # Errors
/// Those of the collectives.
pub fn groups(rank: usize, world: usize) -> xla::Result<()> {
    let x = Tensor::full([2], rank as i64, DType::F32)?;
    let mut own = Vec::new();
    for parity in 0..world.min(2) {
        // In any order.
        let ranks: Vec<usize> = (0..world).rev().filter(|r| r % 2 == parity).collect();
        let group = dist::new_group(&ranks)?;
        assert!(group.ranks().is_sorted());
        if rank % 2 == parity {
            own.push(group);
        } else {
            assert!(!group.is_member());
            let outside = group.all_reduce(&x, ReduceOp::Sum).unwrap_err();
            assert!(matches!(
                outside,
                Error::Argument {
                    argument: "group",
                    ..
                }
            ));
            assert!(outside.to_string().contains("groups.rs"), "{outside}");
        }
    }
    let group = &own[0];
    let ranks = group.ranks().to_vec();
    let last = *ranks.last().unwrap();
    assert_eq!(group.global_rank(group.group_rank(rank)?)?, rank);
    let mut checks = Checks::default();
    let sum = group.all_reduce(&x, ReduceOp::Sum)?;
    checks.expect("sum in a group", &sum, [sum_of(&ranks); 2]);
    let sent = group.broadcast(&x, last)?;
    checks.expect("broadcast in a group", &sent, [last as f64; 2]);
    let all = group.all_gather(&x)?;
    checks.expect_each("gather in a group", &all, ranks.iter().map(|r| *r as f64));
    // To and fro between a group and the world.
    let world_sum = sum_of(&(0..world).collect::<Vec<_>>());
    let total = dist::all_reduce(&x, ReduceOp::Sum)?;
    checks.expect("sum in the world", &total, [world_sum; 2]);
    let scaled = group.all_reduce(&(&total + &sum)?, ReduceOp::Mean)?;
    let expected = world_sum + sum_of(&ranks);
    checks.expect("mean in the group again", &scaled, [expected; 2]);
    let again = dist::all_reduce(&(&scaled * 0.0)?, ReduceOp::Max)?;
    checks.expect("maximum in the world", &again, [0.0; 2]);
    checks.verify()?;
    let pairs: Vec<(usize, usize)> = (0..ranks.len())
        .map(|i| (ranks[i], ranks[(i + 1) % ranks.len()]))
        .collect();
    let before = pairs.iter().find(|(_, to)| *to == rank).unwrap().0;
    let mut checks = Checks::default();
    let passed = group.collective_permute(&x, &pairs)?;
    checks.expect("ring in a group", &passed, [before as f64; 2]);
    checks.verify()?;
    group.barrier()?;
    group.destroy();
    assert!(group.all_reduce(&x, ReduceOp::Sum).is_err());
    // One rank alone needs nobody.
    let alone = dist::new_group(&[world - 1])?;
    if alone.is_member() {
        let mean = alone.all_reduce(&x, ReduceOp::Mean.scale(3.0))?;
        assert_eq!(mean.to_vec::<f32>()?, [3.0 * rank as f32; 2]);
    }
    dist::barrier()
}

/// Groups that together hold all ranks, recorded in the world's programs.
///
/// # Errors
/// Those of the collectives.
pub fn partitions(rank: usize, world: usize) -> xla::Result<()> {
    let x = Tensor::full([2], rank as i64, DType::F32)?;
    let mut checks = Checks::default();
    for size in [1, 2, 4, 8]
        .into_iter()
        .filter(|s| world.is_multiple_of(*s))
    {
        let (own, all) = dist::new_subgroups(size)?;
        assert_eq!((own.size(), all.len()), (size, world / size));
        let first = rank / size * size;
        assert_eq!(own.ranks(), (first..first + size).collect::<Vec<_>>());
        check_group(&own, &x, &mut checks)?;
        // The same program holds the world's.
        let total = dist::all_reduce(&own.all_reduce(&x, ReduceOp::Sum)?, ReduceOp::Sum)?;
        let expected = size as f64 * sum_of(&(0..world).collect::<Vec<_>>());
        checks.expect("sum of sums", &total, [expected; 2]);
    }
    let columns: Vec<Vec<usize>> = (0..world.div_ceil(2))
        .map(|i| (i..world).step_by(world.div_ceil(2)).collect())
        .collect();
    let (own, _) = dist::new_subgroups_by_enumeration(&columns)?;
    check_group(&own.unwrap(), &x, &mut checks)?;
    checks.verify()?;
    // Of different sizes, not all ranks: groups of their own.
    let (own, all) = dist::new_subgroups_by_enumeration(
        &[vec![0], (2..world).collect()][..world.clamp(2, 3) - 1],
    )?;
    assert_eq!(all.len(), if world > 2 { 2 } else { 1 });
    assert_eq!(own.is_some(), rank != 1);
    if let Some(own) = own {
        let mut checks = Checks::default();
        check_group(&own, &x, &mut checks)?;
        checks.verify()?;
    }
    dist::barrier()
}

/// A few collectives of a group; `x` holds the rank, twice.
fn check_group(group: &ProcessGroup, x: &Tensor, checks: &mut Checks) -> xla::Result<()> {
    let ranks = group.ranks();
    let me = group.group_rank(group.rank())?;
    let what = |name: &str| format!("{name} in {ranks:?}");
    let sum = group.all_reduce(x, ReduceOp::Sum)?;
    checks.expect(what("sum"), &sum, [sum_of(ranks); 2]);
    let last = group.broadcast(x, ranks[ranks.len() - 1])?;
    checks.expect(what("broadcast"), &last, [ranks[ranks.len() - 1] as f64; 2]);
    let all = group.all_gather(x)?;
    checks.expect_each(&what("gather"), &all, ranks.iter().map(|r| *r as f64));
    let part = group.reduce_scatter_tensor(
        &Tensor::cat(&all.iter().collect::<Vec<_>>(), 0)?,
        0,
        ReduceOp::Sum,
    )?;
    let expected = (ranks.len() * ranks[me]) as f64;
    checks.expect(what("reduce_scatter"), &part, [expected; 2]);
    let next = (0..ranks.len()).map(|i| (ranks[i], ranks[(i + 1) % ranks.len()]));
    let passed = group.collective_permute(x, &next.collect::<Vec<_>>())?;
    let before = ranks[(me + ranks.len() - 1) % ranks.len()];
    checks.expect(what("ring"), &passed, [before as f64; 2]);
    let mine = Tensor::full([ranks.len()], group.rank() as i64, DType::I64)?;
    let came = group.all_to_all_single(&mine, &dist::AllToAllOptions::default())?;
    checks.expect(what("all_to_all"), &came, ranks.iter().map(|r| *r as f64));
    Ok(())
}

/// A layer whose halves are on two ranks, and its gradients averaged over the pairs of ranks that
/// hold the same half: two gangs in each training step.
///
/// # Errors
/// Those of the collectives.
pub fn two_groups_in_one_model(rank: usize, world: usize) -> xla::Result<()> {
    let halves = world.min(2);
    let mut tensor: Option<Arc<ProcessGroup>> = None;
    for first in (0..world).step_by(halves) {
        let group = dist::new_group(&(first..first + halves).collect::<Vec<_>>())?;
        tensor = tensor.or(group.is_member().then_some(group));
    }
    let mut data: Option<Arc<ProcessGroup>> = None;
    for half in 0..halves {
        let group = dist::new_group(&(half..world).step_by(halves).collect::<Vec<_>>())?;
        data = data.or(group.is_member().then_some(group));
    }
    let (tensor, data) = (tensor.unwrap(), data.unwrap());
    // Half h of the weights is h + 1; the inputs of pair p are p + 1.
    let (half, pair) = ((rank % halves) as f64, (rank / halves) as f64);
    let mut weight = half + 1.0;
    let w = Tensor::full([3], weight, DType::F32)?.requires_grad_(true)?;
    let weights: f64 = (1..=halves).map(|h| h as f64).sum();
    let (count, pairs) = (halves as f64, (world / halves) as f64);
    let mut all = weights;
    for _ in 0..3 {
        let x = Tensor::full([3], pair + 1.0, DType::F32)?;
        let y = tensor.all_reduce(&(&w * &x)?, ReduceOp::Sum)?;
        let loss = (&y * &y)?.mean((), false)?;
        loss.backward()?;
        let gradient = w.grad().expect("a leaf that was used");
        let mean = data.all_reduce(&gradient, ReduceOp::Mean)?;
        xla::no_grad(|| w.sub_(&(&mean * 0.01)?))?;
        w.set_grad(None);
        xla::sync()?;
        // loss = (Σ w x)² on each half: its gradient is 2 (Σ w) x² / 3 an element, summed over halves.
        let squares: f64 = (1..=world / halves).map(|p| (p * p) as f64).sum();
        let step = 0.01 * count * 2.0 * all * squares / pairs / 3.0;
        weight -= step;
        all -= count * step;
    }
    let mut checks = Checks::default();
    checks.expect("a half of the weights", &w, [weight; 3]);
    checks.verify()?;
    dist::barrier()
}
