//! What recording an operator costs, by the kind of operator. What it takes to run them is not timed.

use criterion::{Criterion, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::{Duration, Instant};
use xla::{Result, Tensor};

/// Operators between two syncs.
const RECORDED: u64 = 1000;

/// Times `n` calls of `record`; each result lives until the sync after it, as in a loop that reads
/// none of them.
fn time(n: u64, mut record: impl FnMut() -> Result<Tensor>) -> Result<Duration> {
    let mut spent = Duration::ZERO;
    let mut left = n;
    while left > 0 {
        let count = left.min(RECORDED);
        let start = Instant::now();
        for _ in 0..count {
            black_box(record()?);
        }
        spent += start.elapsed();
        xla::sync()?.wait()?;
        left -= count;
    }
    Ok(spent)
}

fn recording(criterion: &mut Criterion, gradients: bool) -> Result<()> {
    let name = if gradients {
        "record, with gradients"
    } else {
        "record"
    };
    let mut group = criterion.benchmark_group(name);
    let x = Tensor::ones([16, 16], ())?.requires_grad_(gradients)?;
    let y = Tensor::ones([16, 16], ())?;
    xla::sync()?.wait()?;
    let mut bench = |name: &str, record: &dyn Fn() -> Result<Tensor>| {
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|n| time(n, record).expect("valid operators"));
        });
    };
    bench("add a number", &|| x.add(0.5));
    bench("add", &|| x.add(&y));
    bench("relu", &|| x.relu());
    bench("matmul", &|| x.matmul(&y));
    bench("sum of an axis", &|| x.sum([1], false));
    bench("softmax", &|| x.softmax(-1));
    bench("transpose, a view", &|| x.transpose(0, 1));
    bench("select, a view", &|| x.select(0, 3));
    bench("reshape", &|| x.reshape([256]));
    group.finish();
    Ok(())
}

fn benches(criterion: &mut Criterion) {
    recording(criterion, false).expect("valid operators");
    recording(criterion, true).expect("valid operators");
}

criterion_group!(group, benches);
criterion_main!(group);
