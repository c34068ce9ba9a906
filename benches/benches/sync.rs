//! What a sync costs that finds its program compiled: by the operators that it cuts off, and by the
//! results that live. What is waited for is the program's end too.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::{Duration, Instant};
use xla::{Result, Tensor};

/// Times `n` syncs of what `record` records and keeps.
fn time(n: u64, wait: bool, mut record: impl FnMut() -> Result<Vec<Tensor>>) -> Result<Duration> {
    let mut spent = Duration::ZERO;
    for _ in 0..n {
        let kept = record()?;
        let start = Instant::now();
        let step = xla::sync()?;
        if wait {
            step.wait()?;
        }
        spent += start.elapsed();
        black_box(kept);
        // So that the next one does not pay for this one's execution.
        xla::sync()?.wait()?;
    }
    Ok(spent)
}

/// A chain of operators whose last result lives.
fn chain(x: &Tensor, operators: u64) -> Result<Vec<Tensor>> {
    let mut y = x.add(0.5)?;
    for _ in 1..operators {
        y = y.add(0.5)?;
    }
    Ok(vec![y])
}

/// Operators whose results all live.
fn fan(x: &Tensor, results: u64) -> Result<Vec<Tensor>> {
    (0..results).map(|_| x.add(0.5)).collect()
}

type Record = fn(&Tensor, u64) -> Result<Vec<Tensor>>;

fn syncing(criterion: &mut Criterion) -> Result<()> {
    let x = Tensor::ones([16, 16], ())?;
    xla::sync()?.wait()?;
    for (name, record) in [
        ("sync by operators", chain as Record),
        ("sync by live results", fan),
    ] {
        let mut group = criterion.benchmark_group(name);
        for count in [1, 20, 200] {
            group.throughput(Throughput::Elements(count));
            for wait in [false, true] {
                let how = if wait { "waited for" } else { "not waited for" };
                group.bench_with_input(BenchmarkId::new(how, count), &count, |bencher, &count| {
                    bencher.iter_custom(|n| {
                        time(n, wait, || record(&x, count)).expect("valid operators")
                    });
                });
            }
        }
        group.finish();
    }
    Ok(())
}

fn benches(criterion: &mut Criterion) {
    syncing(criterion).expect("valid operators");
}

criterion_group!(group, benches);
criterion_main!(group);
