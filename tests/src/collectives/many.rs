//! Coalesced and bucketed forms.

use super::Checks;
use xla::dist::{self, ReduceOp};
use xla::{DType, Tensor};

/// Several tensors of several dtypes, by one collective a dtype and by buckets of any size.
///
/// # Errors
/// Those of the collectives.
pub fn many(rank: usize, world: usize) -> xla::Result<()> {
    let (r, n) = (rank as f64, world as f64);
    let sum = n * (n - 1.0) / 2.0;
    let mut checks = Checks::default();
    let a = Tensor::full([2 * world, 3], r, DType::F32)?;
    let b = Tensor::full([world], r, DType::F64)?;
    let c = Tensor::from_slice(&[r, 2.0 * r], [2], DType::F32)?;
    let c = Tensor::cat(&vec![&c; world], 0)?;
    let tensors = [&a, &b, &c];
    let caps = [None, Some(0.0), Some(1e-5), Some(25.0)];
    for cap in caps {
        let reduced = match cap {
            None => dist::all_reduce_many(&tensors, ReduceOp::Mean)?,
            Some(cap) => dist::all_reduce_bucketed(&tensors, ReduceOp::Mean, cap)?,
        };
        let gathered = match cap {
            None => dist::all_gather_many(&tensors)?,
            Some(cap) => dist::all_gather_bucketed(&tensors, cap)?,
        };
        let scattered = match cap {
            None => dist::reduce_scatter_many(&tensors, ReduceOp::Sum.scale(2.0))?,
            Some(cap) => dist::reduce_scatter_bucketed(&tensors, ReduceOp::Sum.scale(2.0), cap)?,
        };
        for (i, tensor) in tensors.iter().enumerate() {
            assert_eq!(reduced[i].dims(), tensor.dims());
            for result in [&reduced[i], &gathered[i], &scattered[i]] {
                assert_eq!(result.dtype(), tensor.dtype());
                assert_eq!(result.dims()[1..], tensor.dims()[1..]);
            }
            assert_eq!(gathered[i].dims()[0], world * tensor.dims()[0]);
            assert_eq!(scattered[i].dims()[0], tensor.dims()[0] / world);
        }
        let what = |name: &str| format!("{name} by {cap:?} MiB");
        let mean = sum / n;
        checks.expect(what("mean"), &reduced[0], vec![mean; 6 * world]);
        checks.expect(what("mean"), &reduced[1], vec![mean; world]);
        let pairs = |value: f64| std::iter::repeat_n([value, 2.0 * value], world).flatten();
        checks.expect(what("mean"), &reduced[2], pairs(mean));
        let all = |times: usize| (0..world).flat_map(move |s| std::iter::repeat_n(s as f64, times));
        checks.expect(what("gather"), &gathered[0], all(6 * world));
        checks.expect(what("gather"), &gathered[1], all(world));
        let expected = (0..world).flat_map(|s| pairs(s as f64));
        checks.expect(what("gather"), &gathered[2], expected);
        checks.expect(what("scatter"), &scattered[0], [2.0 * sum; 6]);
        checks.expect(what("scatter"), &scattered[1], [2.0 * sum]);
        checks.expect(what("scatter"), &scattered[2], [2.0 * sum, 4.0 * sum]);
    }
    let last = world - 1;
    let value = last as f64;
    for sent in [
        dist::broadcast_many(&tensors, last)?,
        dist::broadcast_bucketed(&tensors, last, 1e-5)?,
    ] {
        checks.expect("broadcast", &sent[0], vec![value; 6 * world]);
        checks.expect("broadcast", &sent[1], vec![value; world]);
        checks.expect("broadcast", &sent[2], [value, 2.0 * value].repeat(world));
    }
    checks.verify()
}
