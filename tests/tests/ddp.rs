//! Data-parallel training gives the model that one replica with the whole batch gives.

use tests::training::{self, Wrap, assert_same_model, model, values};
use tests::with_devices;
use xla::metrics::Scope;
use xla::nn::{DistributedDataParallel, Linear, Module};
use xla::{Error, Launcher, Result, Tensor, dist, optim};

/// The weights of every rank after training on `devices` devices.
fn train(devices: usize, wrap: Wrap) -> Vec<Vec<f32>> {
    let replica = |rank| training::weights(rank, devices, wrap, training::sgd);
    Launcher::new().devices(devices).run(replica).unwrap()
}

#[test]
fn one_two_and_four_devices_train_the_same_model() {
    with_devices(4, || {
        let plain: Wrap = |model| Ok(model);
        let one = train(1, plain);
        // Training has moved the weights: equal ones would otherwise prove nothing.
        xla::manual_seed(7).unwrap();
        let start = values(&model().unwrap().parameters()).unwrap();
        let moved = start
            .iter()
            .zip(&one[0])
            .filter(|(a, b)| (*a - *b).abs() > 1e-2)
            .count();
        assert!(
            moved > start.len() / 2,
            "{moved} of {} weights moved",
            start.len()
        );
        assert_same_model(&train(2, plain), &one[0]);
        assert_same_model(&train(4, plain), &one[0]);
    });
}

#[test]
fn buckets_and_views_change_nothing() {
    with_devices(2, || {
        let one = train(1, Ok);
        assert_same_model(&train(2, |model| model.bucket_cap_mb(0.0)), &one[0]);
        assert_same_model(
            &train(2, |model| Ok(model.gradient_as_bucket_view(true))),
            &one[0],
        );
    });
}

#[test]
fn gradients_are_averaged_and_no_sync_puts_it_off() {
    with_devices(2, || {
        let gradients = Launcher::new()
            .devices(2)
            .run(|rank| -> Result<[f32; 3]> {
                dist::init_process_group("xla", "xla://")?;
                let model = DistributedDataParallel::new(Linear::without_bias(1, 1, ())?)?;
                let weight = &model.parameters()[0];
                // The gradient of w · x is x: 1 on rank 0, 3 on rank 1.
                let x = Tensor::full([1, 1], 1.0 + 2.0 * rank as f64, ())?;
                let pass = || model.forward(&x)?.sum((), false)?.backward();
                let gradient = || weight.grad().map_or(Ok(f32::NAN), |g| g.item::<f32>());
                pass()?;
                let averaged = gradient()?;
                weight.zero_grad();
                model.no_sync(pass)?;
                let own = gradient()?;
                pass()?;
                Ok([averaged, own, gradient()?])
            })
            .unwrap();
        assert_eq!(gradients, [[2.0, 1.0, 4.0], [2.0, 3.0, 4.0]]);
    });
}

#[test]
fn a_step_is_one_program_and_compiles_once() {
    with_devices(2, || {
        let counts = Launcher::new()
            .devices(2)
            .run(|_| -> Result<(u64, u64)> {
                dist::init_process_group("xla", "xla://")?;
                let model = DistributedDataParallel::new(model()?)?;
                let mut optimizer = optim::Sgd::new(model.parameters(), 0.1).momentum(0.9);
                let x = Tensor::ones([4, 6], ())?;
                let mut step = || {
                    model.forward(&x)?.mean((), false)?.backward()?;
                    optimizer.step()?;
                    optimizer.zero_grad();
                    xla::sync()?.wait()
                };
                step()?;
                step()?;
                let scope = Scope::new();
                for _ in 0..5 {
                    step()?;
                }
                Ok((scope.compiles(), scope.executions()))
            })
            .unwrap();
        assert_eq!(counts, [(0, 5), (0, 5)]);
    });
}

/// Four batches a step: gradients add up, and only the last pass averages them.
#[test]
fn accumulated_gradients_are_one_program_a_step() {
    with_devices(2, || {
        let outcomes = Launcher::new()
            .devices(2)
            .run(|rank| -> Result<(f32, [u64; 2])> {
                dist::init_process_group("xla", "xla://")?;
                let model = DistributedDataParallel::new(Linear::without_bias(1, 1, ())?)?;
                let weight = &model.parameters()[0];
                let batches: Vec<Tensor> = (0..4)
                    .map(|i| Tensor::full([1, 1], (4 * rank + i) as f64, ()))
                    .collect::<Result<_>>()?;
                xla::sync()?.wait()?;
                let scope = Scope::new();
                let mut gradient = f32::NAN;
                for _step in 0..3 {
                    weight.zero_grad();
                    let pass = |x| model.forward(x)?.sum((), false)?.div(4)?.backward();
                    let (last, others) = batches.split_last().expect("four batches");
                    model.no_sync(|| others.iter().try_for_each(pass))?;
                    pass(last)?;
                    gradient = weight.grad().map_or(Ok(f32::NAN), |g| g.item::<f32>())?;
                }
                Ok((gradient, [scope.compiles(), scope.executions()]))
            })
            .unwrap();
        // The mean of 0 to 7, of which each replica has four.
        for (gradient, counts) in outcomes {
            assert_eq!(gradient, 3.5);
            assert!(counts[0] <= 1 && counts[1] == 3, "{counts:?}");
        }
    });
}

#[test]
fn a_rank_that_leaves_out_a_layer_is_divergence_on_every_rank() {
    with_devices(2, || {
        let outcomes = Launcher::new()
            .devices(2)
            .run(|rank| -> Result<bool> {
                dist::init_process_group("xla", "xla://")?;
                let layers = [Linear::new(4, 4, ())?, Linear::new(4, 4, ())?];
                let model = DistributedDataParallel::new(Pair(layers, rank == 0))?;
                model
                    .forward(&Tensor::ones([1, 4], ())?)?
                    .sum((), false)?
                    .backward()?;
                Ok(matches!(
                    xla::sync().map(drop),
                    Err(Error::Divergence { .. })
                ))
            })
            .unwrap();
        assert_eq!(outcomes, [true, true]);
    });
}

/// Two layers, of which the second may be left out.
#[derive(Module)]
struct Pair([Linear; 2], bool);

impl Pair {
    fn forward(&self, input: &Tensor) -> Result<Tensor> {
        let first = self.0[0].forward(input)?;
        if self.1 {
            self.0[1].forward(&first)
        } else {
            Ok(first)
        }
    }
}

#[test]
fn wrapping_needs_a_process_group() {
    with_devices(1, || {
        let model = Linear::new(2, 2, ()).unwrap();
        let error = DistributedDataParallel::new(model).err().unwrap();
        assert!(matches!(error, Error::ProcessGroup { .. }), "{error}");
    });
}

#[test]
fn parameters_of_the_wrapped_module_have_a_prefix_as_in_pytorch() {
    with_devices(1, || {
        dist::init_process_group("xla", "xla://").unwrap();
        let model = DistributedDataParallel::new(model().unwrap()).unwrap();
        assert_eq!(model.named_parameters()[0].0, "module.0.weight");
        let error = model.bucket_cap_mb(-1.0).err().unwrap();
        assert!(
            matches!(
                error,
                Error::Argument {
                    argument: "megabytes",
                    ..
                }
            ),
            "{error}"
        );
    });
}
