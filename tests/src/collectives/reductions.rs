//! `all_reduce` with every operation, dtype, factor, and in place.

use super::Checks;
use xla::dist::{self, ReduceOp};
use xla::{DType, Tensor};

/// Sums of ranks, and every other combination.
///
/// # Errors
/// Those of the collectives.
pub fn reductions(rank: usize, world: usize) -> xla::Result<()> {
    let (r, n) = (rank as f64, world as f64);
    let mut checks = Checks::default();
    // [1 + 2r, 2 + 2r]: at two ranks the sum is [4, 6].
    let x = Tensor::from_slice(&[1.0 + 2.0 * r, 2.0 + 2.0 * r], [2], DType::F32)?;
    let sum = [n * n, n * n + n];
    checks.expect("sum", &dist::all_reduce(&x, ReduceOp::Sum)?, sum);
    let half = dist::all_reduce(&x, ReduceOp::Sum.scale(0.5))?;
    checks.expect("scaled sum", &half, sum.map(|s| s / 2.0));
    let mean = dist::all_reduce(&x, ReduceOp::Mean)?;
    checks.expect("mean", &mean, sum.map(|s| s / n));
    checks.expect("min", &dist::all_reduce(&x, ReduceOp::Min)?, [1.0, 2.0]);
    let last = [2.0 * n - 1.0, 2.0 * n];
    checks.expect("max", &dist::all_reduce(&x, ReduceOp::Max)?, last);
    let place = x.copy()?;
    dist::all_reduce_(&place, ReduceOp::Sum.scale(10))?;
    checks.expect("in place", &place, sum.map(|s| 10.0 * s));
    checks.expect("the argument", &x, [1.0 + 2.0 * r, 2.0 + 2.0 * r]);
    let count = Tensor::full([1], rank as i64 + 1, DType::I64)?;
    let factorial: f64 = (1..=world).map(|i| i as f64).product();
    let product = dist::all_reduce(&count, ReduceOp::Product)?;
    checks.expect("product", &product, [factorial]);
    for dtype in [DType::U8, DType::I32, DType::I64] {
        let bit = Tensor::full([1], 1_i64 << rank, dtype)?;
        let all = ((1_u64 << world) - 1) as f64;
        checks.expect("or", &dist::all_reduce(&bit, ReduceOp::Or)?, [all]);
        let others = Tensor::full([1], 127 ^ (1_i64 << rank & 127), dtype)?;
        let none = f64::from(127 & !((1_u32 << world) - 1));
        checks.expect("and", &dist::all_reduce(&others, ReduceOp::And)?, [none]);
    }
    let first = Tensor::full([1], i64::from(rank == 0), DType::Bool)?;
    for (op, expected) in [
        (ReduceOp::Sum, 1.0),
        (ReduceOp::Max, 1.0),
        (ReduceOp::Or, 1.0),
        (ReduceOp::Product, f64::from(world == 1)),
        (ReduceOp::Min, f64::from(world == 1)),
        (ReduceOp::And, f64::from(world == 1)),
    ] {
        let any = dist::all_reduce(&first, op)?;
        assert_eq!(any.dtype(), DType::Bool);
        checks.expect(format!("bool {op:?}"), &any, [expected]);
    }
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Bool) {
        let x = Tensor::full([3], rank as i64 + 1, dtype)?;
        let sum = dist::all_reduce(&x, ReduceOp::Sum)?;
        assert_eq!(sum.dtype(), dtype);
        checks.expect("sum of ranks", &sum, [n * (n + 1.0) / 2.0; 3]);
        let least = dist::all_reduce(&x, ReduceOp::Min)?;
        checks.expect("least rank", &least, [1.0; 3]);
        let greatest = dist::all_reduce(&x, ReduceOp::Max)?;
        checks.expect("greatest rank", &greatest, [n; 3]);
    }
    // Inside a computation, twice, the second of what the first gave.
    let nested = dist::all_reduce(
        &(&dist::all_reduce(&x, ReduceOp::Sum)? - &x)?,
        ReduceOp::Sum,
    )?;
    checks.expect("nested", &(nested + 1.0)?, sum.map(|s| (n - 1.0) * s + 1.0));
    checks.verify()?;
    dist::barrier()
}
