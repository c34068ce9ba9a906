//! Data-parallel training of models with buffers, and of models that ranks use in parts.

use tests::training::Pair;
use tests::{replicas, with_devices};
use xla::nn::{BatchNorm1d, DistributedDataParallel, Module};
use xla::{Result, Tensor};

#[test]
fn what_only_some_ranks_use_is_averaged_with_zeros() {
    with_devices(4, || {
        let gradients = replicas(4, |rank| {
            let model = DistributedDataParallel::new(Pair::new()?)?.find_unused_parameters(true);
            // The gradient of w · x is x: 1, 2, 3, 4 on ranks 0 to 3; odd ranks use b.
            let x = Tensor::full([1, 1], 1.0 + rank as f64, ())?;
            let mut passes = Vec::new();
            for _ in 0..2 {
                let y = model.forward(&x, rank % 2 == 1)?;
                y.sum((), false)?.backward()?;
                let gradient = |p: &Tensor| p.grad().map(|g| g.item::<f32>()).transpose();
                let all = model.parameters();
                passes.push(all.iter().map(gradient).collect::<Result<Vec<_>>>()?);
                all.iter().for_each(Tensor::zero_grad);
            }
            Ok(passes)
        });
        for rank in gradients {
            for pass in rank {
                // (1 + 2 + 3 + 4) / 4, (2 + 4) / 4, and none where no rank has one.
                assert_eq!(pass, [Some(2.5), Some(1.5), None]);
            }
        }
    });
}

/// Batch norm's running mean after a step, by rank.
fn running_means(broadcast: bool) -> Vec<f32> {
    replicas(2, |rank| {
        let model = DistributedDataParallel::new(BatchNorm1d::new(1, ())?)?;
        let model = model.broadcast_buffers(broadcast);
        let values = [rank as f32 * 10.0, rank as f32 * 10.0 + 2.0];
        let x = Tensor::from_slice(&values, [2, 1], ())?;
        model.forward(&x)?.sum((), false)?.backward()?;
        xla::sync()?;
        model.buffers()[0].item::<f32>()
    })
}

#[test]
fn buffers_follow_rank_0_unless_told_otherwise() {
    with_devices(2, || {
        // A tenth of the batches' means, 1 and 11.
        let near = |got: Vec<f32>, expected: [f32; 2]| {
            for (g, e) in got.iter().zip(expected) {
                assert!((g - e).abs() < 1e-6, "{got:?}");
            }
        };
        near(running_means(true), [0.1, 0.1]);
        near(running_means(false), [0.1, 1.1]);
    });
}
