//! A sum over four replicas in one process, a thread each: a step that holds nothing else.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use std::time::{Duration, Instant};
use xla::dist::{self, ReduceOp};
use xla::{Launcher, Result, StartMethod, Tensor};

const REPLICAS: usize = 4;

/// How long so many steps take on each replica.
fn time(steps: u64, elements: usize) -> Result<Vec<Duration>> {
    Launcher::new()
        .start_method(StartMethod::Threads)
        .devices(REPLICAS)
        .run(|_| -> Result<Duration> {
            dist::init_process_group("xla", "xla://")?;
            let x = Tensor::ones([elements], ())?;
            let step = || -> Result<()> {
                let y = dist::all_reduce(&x, ReduceOp::Sum)?;
                xla::sync()?.wait()?;
                black_box(y);
                Ok(())
            };
            step()?;
            let start = Instant::now();
            for _ in 0..steps {
                step()?;
            }
            let spent = start.elapsed();
            dist::destroy_process_group()?;
            Ok(spent)
        })
}

fn sums(criterion: &mut Criterion) {
    benches::with_devices(REPLICAS).expect("this program");
    let mut group = criterion.benchmark_group("all_reduce over 4 replicas");
    group.sample_size(10);
    for elements in [1, 64 << 10, 1 << 20] {
        group.throughput(Throughput::Bytes(4 * elements as u64));
        group.bench_with_input(
            BenchmarkId::from_parameter(4 * elements),
            &elements,
            |bencher, &elements| {
                bencher.iter_custom(|steps| {
                    let each = time(steps, elements).expect("replicas that all come");
                    each.into_iter().max().unwrap_or_default()
                });
            },
        );
    }
    group.finish();
}

criterion_group!(group, sums);
criterion_main!(group);
