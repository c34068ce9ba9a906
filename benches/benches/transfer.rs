//! Host to device and back, beside a copy into memory that is as fresh: most of the time goes into
//! the pages that the kernel hands out.

use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use std::hint::black_box;
use xla::{Literal, Result, Tensor};

const SIZES: [(&str, usize); 3] = [("1 KiB", 256), ("1 MiB", 256 << 10), ("64 MiB", 16 << 20)];

/// An upload, which is there when the call returns.
fn arrived(x: Result<Tensor>) -> Tensor {
    x.expect("values that fit their shape")
}

fn transfers(criterion: &mut Criterion) {
    for (name, elements) in SIZES {
        let mut group = criterion.benchmark_group(name);
        group.throughput(Throughput::Bytes(4 * elements as u64));
        group.sample_size(20);
        let host = vec![1.0_f32; elements];
        let device = arrived(Tensor::from_slice(&host, [elements], ()));
        group.bench_function("copy into fresh memory", |bencher| {
            bencher.iter_with_large_drop(|| black_box(&host).to_vec());
        });
        group.bench_function("from_slice", |bencher| {
            bencher.iter_with_large_drop(|| arrived(Tensor::from_slice(&host, [elements], ())));
        });
        group.bench_function("from_vec", |bencher| {
            bencher.iter_batched(
                || host.clone(),
                |values| arrived(Tensor::from_vec(values, [elements], ())),
                BatchSize::PerIteration,
            );
        });
        group.bench_function("from_literal, aligned", |bencher| {
            let literal = Literal::from_slice(&host, [elements]).expect("values that fit");
            bencher.iter_with_large_drop(|| arrived(Tensor::from_literal(literal.clone(), ())));
        });
        group.bench_function("to_vec", |bencher| {
            bencher.iter_with_large_drop(|| device.to_vec::<f32>().expect("a computed value"));
        });
        group.bench_function("to_literal", |bencher| {
            bencher.iter_with_large_drop(|| device.to_literal().expect("a computed value"));
        });
        group.finish();
    }
}

criterion_group!(group, transfers);
criterion_main!(group);
