//! Collectives that move values without combining them, in every dtype.

use super::Checks;
use xla::dist::{self, AllToAllOptions, ReduceOp, Transfer};
use xla::{DType, Tensor};

/// `[first, first + 1, …]` in a dtype.
fn count_up(first: usize, shape: &[usize], dtype: DType) -> xla::Result<Tensor> {
    let len = shape.iter().product::<usize>();
    let values: Vec<i64> = (first..first + len).map(|i| i as i64).collect();
    Tensor::from_slice(&values, shape, ())?.to_dtype(dtype)
}

/// A whole number as the dtype holds it.
fn held(value: usize, dtype: DType) -> f64 {
    match dtype {
        DType::Bool => f64::from(value != 0),
        _ => value as f64,
    }
}

/// `all_gather`, `reduce_scatter`, `all_to_all`, `collective_permute`, send and receive.
///
/// # Errors
/// Those of the collectives.
pub fn movement(rank: usize, world: usize) -> xla::Result<()> {
    let (r, n) = (rank, world);
    let even = AllToAllOptions::default();
    let ring: Vec<(usize, usize)> = (0..n).map(|s| (s, (s + 1) % n)).collect();
    let mut checks = Checks::default();
    for dtype in DType::ALL {
        let value = |v: usize| held(v, dtype);
        // Rank r holds r, r + 1.
        let x = count_up(r, &[2], dtype)?;
        let all = dist::all_gather_into_tensor(&x, 0)?;
        assert_eq!(all.dtype(), dtype);
        let gathered = (0..n).flat_map(|s| [value(s), value(s + 1)]);
        checks.expect("all_gather_into_tensor", &all, gathered);
        let before = (r + n - 1) % n;
        let passed = dist::collective_permute(&x, &ring)?;
        checks.expect("ring", &passed, [value(before), value(before + 1)]);
        // Rank r sends r + j to rank j.
        let exchanged = dist::all_to_all_single(&count_up(r, &[n], dtype)?, &even)?;
        checks.expect("all_to_all", &exchanged, (0..n).map(|s| value(s + r)));
    }
    let x = count_up(10 * r, &[2, 3], DType::F32)?;
    for (i, part) in dist::all_gather(&x)?.iter().enumerate() {
        let expected = (10 * i..10 * i + 6).map(|v| v as f64);
        checks.expect("all_gather", part, expected);
    }
    let wide = dist::all_gather_into_tensor(&x, -1)?;
    assert_eq!(wide.dims(), [2, 3 * n]);
    let row = |i: usize| (0..n).flat_map(move |s| (0..3).map(move |j| (10 * s + 3 * i + j) as f64));
    checks.expect("gathered columns", &wide, row(0).chain(row(1)));
    let scalars = dist::all_gather(&Tensor::full((), r as i64, DType::I32)?)?;
    assert!(scalars.iter().all(|s| s.rank() == 0));
    checks.expect_each("scalars", &scalars, (0..n).map(|s| s as f64));
    // Back and forth: cut into rows by rank, and whole again.
    let spread = count_up(100 * r, &[n, 2], DType::I32)?;
    let columns = dist::all_to_all_tensor(&spread, 0, 1)?;
    assert_eq!(columns.dims(), [1, 2 * n]);
    let expected = (0..n).flat_map(|s| [100 * s + 2 * r, 100 * s + 2 * r + 1]);
    checks.expect("rows for columns", &columns, expected.map(|v| v as f64));
    let whole = dist::all_to_all_tensor(&columns, 1, 0)?;
    checks.expect("back", &whole, (0..2 * n).map(|i| (100 * r + i) as f64));
    let messages = (0..n)
        .map(|j| Tensor::full([2], (10 * r + j) as i64, DType::I64))
        .collect::<xla::Result<Vec<_>>>()?;
    let messages: Vec<&Tensor> = messages.iter().collect();
    let came = dist::all_to_all(&messages, &even)?;
    checks.expect_each("list", &came, (0..n).map(|s| (10 * s + r) as f64));
    // Nobody sends to the others: zeros.
    let one = dist::collective_permute(&(&x + 1.0)?, &[(0, n - 1)])?;
    let expected = (0..6).map(|i| if r == n - 1 { i as f64 + 1.0 } else { 0.0 });
    checks.expect("one pair", &one, expected);
    let ones = Tensor::full([1], r as i64 + 1, DType::I64)?;
    let halves = Tensor::full([2], r as f64 + 0.5, DType::F32)?;
    let received = dist::send_recv(&[
        Transfer {
            tensor: &ones,
            source: n - 1,
            destination: 0,
        },
        Transfer {
            tensor: &halves,
            source: 0,
            destination: n - 1,
        },
    ])?;
    let expected = [
        if r == 0 { n as f64 } else { 0.0 },
        if r == n - 1 { 0.5 } else { 0.0 },
    ];
    checks.expect_each("send and receive", &received, expected);
    scattered(rank, world, &mut checks)?;
    // Nothing is moved, too.
    let empty = Tensor::zeros([0, 3], DType::F32)?;
    let results = [
        dist::all_reduce(&empty, ReduceOp::Sum)?,
        dist::all_reduce(&empty, ReduceOp::Max)?,
        dist::broadcast(&empty, 0)?,
        dist::all_gather_into_tensor(&empty, 0)?,
        dist::reduce_scatter_tensor(&empty, 0, ReduceOp::Sum)?,
        dist::reduce_scatter_tensor(&empty, 0, ReduceOp::Min)?,
        dist::all_to_all_single(&empty, &even)?,
        dist::collective_permute(&empty, &ring)?,
    ];
    for result in &results {
        assert_eq!(result.dims(), [0, 3]);
        checks.expect("nothing", result, []);
    }
    checks.verify()
}

fn scattered(r: usize, n: usize, checks: &mut Checks) -> xla::Result<()> {
    // Element i of rank r is i + 10 r, of each rank two elements.
    let part = [2 * r, 2 * r + 1];
    let ranks = n * (n - 1) / 2;
    for dtype in [DType::BF16, DType::F32, DType::I32, DType::I64] {
        let x = (count_up(0, &[2 * n], DType::I64)? + 10 * r as i64)?.to_dtype(dtype)?;
        let sum = dist::reduce_scatter_tensor(&x, 0, ReduceOp::Sum)?;
        assert_eq!(sum.dtype(), dtype);
        let expected = part.map(|i| (n * i + 10 * ranks) as f64);
        checks.expect("reduce_scatter", &sum, expected);
        let most = dist::reduce_scatter_tensor(&x, 0, ReduceOp::Max)?;
        let expected = part.map(|i| (i + 10 * (n - 1)) as f64);
        checks.expect("scattered maximum", &most, expected);
        let least = dist::reduce_scatter_tensor(&x, 0, ReduceOp::Min.scale(2))?;
        let expected = part.map(|i| 2.0 * i as f64);
        checks.expect("scattered minimum", &least, expected);
    }
    let rows = (&count_up(0, &[3, n], DType::F32)? * (r as f64 + 1.0))?;
    let mean = dist::reduce_scatter_tensor(&rows, 1, ReduceOp::Mean)?;
    assert_eq!(mean.dims(), [3, 1]);
    let middle = (n as f64 + 1.0) / 2.0;
    let column = [0, 1, 2].map(|row| (row * n + r) as f64 * middle);
    checks.expect("scattered mean", &mean, column);
    let odd = Tensor::full([n], i64::from(r == 0), DType::Bool)?;
    let any = dist::reduce_scatter_tensor(&odd, 0, ReduceOp::Sum)?;
    checks.expect("scattered or", &any, [1.0]);
    let bits = Tensor::full([n], 1_i64 << r, DType::I32)?;
    let all = dist::reduce_scatter_tensor(&bits, 0, ReduceOp::Or)?;
    checks.expect("scattered bits", &all, [((1_u64 << n) - 1) as f64]);
    let list = (0..n)
        .map(|j| Tensor::full([2], (r + 10 * j) as i64, DType::I64))
        .collect::<xla::Result<Vec<_>>>()?;
    let list: Vec<&Tensor> = list.iter().collect();
    let sum = dist::reduce_scatter(&list, ReduceOp::Sum)?;
    checks.expect("scattered list", &sum, [(ranks + 10 * n * r) as f64; 2]);
    // Scattered and gathered is reduced.
    let x = count_up(r, &[n], DType::F32)?;
    let part = dist::reduce_scatter_tensor(&x, 0, ReduceOp::Sum)?;
    let again = (&dist::all_gather_into_tensor(&part, 0)? - &dist::all_reduce(&x, ReduceOp::Sum)?)?;
    checks.expect("reduce_scatter and all_gather", &again, vec![0.0; n]);
    Ok(())
}

/// Collectives with one rank that sends or receives.
///
/// # Errors
/// Those of the collectives.
pub fn rooted(rank: usize, world: usize) -> xla::Result<()> {
    let (r, n) = (rank, world);
    let root = n - 1;
    let there = |value: f64| if r == root { value } else { 0.0 };
    let mut checks = Checks::default();
    for dtype in [DType::F32, DType::BF16, DType::I32, DType::I64, DType::Bool] {
        let x = count_up(r, &[2], dtype)?;
        let sent = dist::broadcast(&x, root)?;
        assert_eq!(sent.dtype(), dtype);
        let expected = [held(root, dtype), held(n, dtype)];
        checks.expect("broadcast", &sent, expected);
        let gathered = dist::gather(&x.narrow(0, 0, 1)?, root)?;
        let expected = (0..n).map(|s| there(held(s, dtype)));
        checks.expect_each("gather", &gathered, expected);
    }
    let place = count_up(r, &[1], DType::F32)?;
    dist::broadcast_(&place, 0)?;
    checks.expect("broadcast in place", &place, [0.0]);
    let sum = dist::reduce(&count_up(r, &[2], DType::F64)?, root, ReduceOp::Sum)?;
    let ranks = (n * (n - 1) / 2) as f64;
    checks.expect("reduce", &sum, [there(ranks), there(ranks + n as f64)]);
    checks.verify()?;
    let bits = [0x8000_0000_u32, 0x7fc1_2345, 0x3f80_0001, 0xff80_0000, 1];
    let own = match r == root {
        true => bits.map(f32::from_bits),
        false => [f32::NAN; 5],
    };
    let own = Tensor::from_slice(&own, [5], ())?;
    let list = match r == root {
        true => (0..n)
            .map(|j| Tensor::full([5], j as i64 + 7, ()))
            .collect::<xla::Result<Vec<_>>>()?,
        false => Vec::new(),
    };
    let list: Vec<&Tensor> = list.iter().collect();
    let template = Tensor::zeros([5], DType::I64)?;
    let given = (r == root).then_some(list.as_slice());
    let scattered = dist::scatter(&template, given, root)?;
    let sent = dist::broadcast(&own, root)?.to_vec::<f32>()?;
    let sent: Vec<u32> = sent.into_iter().map(f32::to_bits).collect();
    assert_eq!(sent, bits);
    let mut checks = Checks::default();
    checks.expect("scatter", &scattered, [r as f64 + 7.0; 5]);
    checks.verify()
}
