//! Values that only some ranks keep: every rank computes them, and none is harmed by it.

use tests::with_devices;
use xla::{DType, Launcher, Result, Tensor, dist};

#[test]
fn what_another_rank_keeps_is_not_taken_for_something_else() {
    with_devices(2, || {
        let sums = Launcher::new()
            .devices(2)
            .run(|rank| -> Result<Vec<Vec<f32>>> {
                dist::init_process_group("xla", "xla://")?;
                let mut kept = Vec::new();
                let mut sums = Vec::new();
                for step in 0..4 {
                    let x = Tensor::full([3], f64::from(step), DType::F32)?;
                    let shared = dist::all_reduce(&x, dist::ReduceOp::Sum)?;
                    let only_rank_0_keeps = shared.mul(100.0)?;
                    if rank == 0 {
                        kept.push(only_rank_0_keeps);
                    } else {
                        drop(only_rank_0_keeps);
                    }
                    xla::sync()?;
                    // Memory of the value that rank 1 dropped may be used again from here on.
                    let y = Tensor::full([2], f64::from(step), DType::F32)?;
                    sums.push(y.add(0.5)?.to_vec::<f32>()?);
                }
                for (step, value) in kept.iter().enumerate() {
                    assert_eq!(value.to_vec::<f32>()?, [200.0 * step as f32; 3]);
                }
                Ok(sums)
            })
            .unwrap();
        let expected = [0.5f32, 1.5, 2.5, 3.5].map(|v| vec![v; 2]).to_vec();
        assert_eq!(sums, [expected.clone(), expected]);
    });
}
