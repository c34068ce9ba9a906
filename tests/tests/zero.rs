//! An optimizer whose state is divided among the ranks takes the steps of the undivided one.

use tests::with_devices;
use xla::metrics::Scope;
use xla::nn::{self, DistributedDataParallel, Linear, Module, Relu, Sequential, StateDict};
use xla::optim::{AdamW, Optimizer, Sgd, ZeroRedundancyOptimizer};
use xla::{Launcher, Result, Tensor, dist};

/// Samples of a step, over all ranks.
const BATCH: usize = 8;

/// Sizes 30, 5, 15 and 3: none of which is divided by 4, and one is smaller.
fn model() -> Result<Sequential> {
    xla::manual_seed(3)?;
    Ok(Sequential::new()
        .add(Linear::new(6, 5, ())?)
        .add(Relu)
        .add(Linear::new(5, 3, ())?))
}

/// This rank's part of a step's samples.
fn batch(step: usize, rank: usize, ranks: usize) -> Result<(Tensor, Tensor)> {
    let own = BATCH / ranks;
    let samples = rank * own..(rank + 1) * own;
    let point = |i: usize| (0..6).map(move |k| ((step * 31 + i * 5 + k * 3) as f32 * 0.37).sin());
    let points: Vec<f32> = samples.clone().flat_map(point).collect();
    let labels: Vec<i64> = samples.map(|i| ((i + step) % 3) as i64).collect();
    Ok((
        Tensor::from_slice(&points, [own, 6], ())?,
        Tensor::from_slice(&labels, [own], ())?,
    ))
}

fn steps<M: nn::Forward>(
    model: &M,
    optimizer: &mut dyn Optimizer,
    steps: std::ops::Range<usize>,
) -> Result<()> {
    let (rank, ranks) = (dist::get_rank()?, dist::get_world_size()?);
    for step in steps {
        let (points, labels) = batch(step, rank, ranks)?;
        nn::cross_entropy(&model.forward(&points)?, &labels)?.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        xla::sync()?;
    }
    Ok(())
}

fn values(parameters: &[Tensor]) -> Result<Vec<f32>> {
    let each: Result<Vec<Vec<f32>>> = parameters.iter().map(Tensor::to_vec).collect();
    Ok(each?.concat())
}

/// Runs `replica` on so many ranks and returns what each returned.
fn on<T: Send>(ranks: usize, replica: impl Fn() -> Result<T> + Send + Sync) -> Vec<T> {
    let launched = Launcher::new().devices(ranks).run(|_| -> Result<T> {
        dist::init_process_group("xla", "xla://")?;
        replica()
    });
    launched.unwrap()
}

type Make = fn(Vec<Tensor>) -> Result<Box<dyn Optimizer>>;

const OPTIMIZERS: [Make; 2] = [
    |parts| Ok(Box::new(AdamW::new(parts, 0.01).weight_decay(0.1))),
    |parts| Ok(Box::new(Sgd::new(parts, 0.1).momentum(0.9).nesterov(true))),
];

/// The weights after 6 steps of the undivided optimizer on one device.
fn undivided(make: Make) -> Vec<f32> {
    let ran = on(1, || {
        let model = model()?;
        steps(&model, &mut *make(model.parameters())?, 0..6)?;
        values(&model.parameters())
    });
    ran.concat()
}

#[track_caller]
fn assert_near(got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len());
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() <= 1e-5, "value {i}: {g} is not {e}");
    }
}

#[test]
fn divided_and_undivided_steps_are_equal() {
    with_devices(4, || {
        for (make, worlds) in OPTIMIZERS.into_iter().zip([vec![1, 2, 4], vec![4]]) {
            let expected = undivided(make);
            for ranks in worlds {
                let averaged_by_ddp = on(ranks, || {
                    let model = DistributedDataParallel::new(model()?)?;
                    let mut zero = ZeroRedundancyOptimizer::new(model.parameters(), make)?;
                    steps(&model, &mut zero, 0..6)?;
                    values(&model.parameters())
                });
                let averaged_by_the_step = on(ranks, || {
                    let model = model()?;
                    let zero = ZeroRedundancyOptimizer::new(model.parameters(), make)?;
                    steps(&model, &mut zero.average_gradients(true), 0..6)?;
                    values(&model.parameters())
                });
                for weights in averaged_by_ddp.iter().chain(&averaged_by_the_step) {
                    assert_near(weights, &expected);
                }
            }
        }
    });
}

#[test]
fn each_rank_remembers_its_part_only() {
    with_devices(4, || {
        let lengths = on(4, || {
            let model = model()?;
            let zero = ZeroRedundancyOptimizer::new(model.parameters(), OPTIMIZERS[0])?;
            let mut zero = zero.average_gradients(true);
            steps(&model, &mut zero, 0..1)?;
            let state = zero.optimizer().state_dict()?;
            let length = |i: usize| state.get(&format!("state.{i}.exp_avg")).map(Tensor::numel);
            Ok([0, 1, 2, 3].map(length))
        });
        for rank in lengths {
            assert_eq!(rank, [Some(8), Some(2), Some(4), Some(1)]);
        }
    });
}

/// A state's tensors and words, readable outside the replica.
type Saved = (Vec<(String, Vec<usize>, Vec<f32>)>, Vec<(String, String)>);

fn save(state: &StateDict) -> Result<Saved> {
    let tensor = |(name, t): (&str, &Tensor)| Ok((name.to_owned(), t.dims().to_vec(), t.to_vec()?));
    let tensors = state.iter().map(tensor).collect::<Result<_>>()?;
    Ok((tensors, state.metadata().clone().into_iter().collect()))
}

fn load((tensors, words): &Saved) -> Result<StateDict> {
    let mut state = StateDict::new();
    for (name, dims, values) in tensors {
        state.insert(name, Tensor::from_slice(values, dims.as_slice(), ())?);
    }
    state.metadata_mut().extend(words.iter().cloned());
    Ok(state)
}

#[test]
fn a_saved_state_continues_on_another_number_of_ranks() {
    with_devices(4, || {
        let make = OPTIMIZERS[0];
        let expected = undivided(make);
        let saved = on(2, || {
            let model = model()?;
            let zero = ZeroRedundancyOptimizer::new(model.parameters(), make)?;
            let mut zero = zero.average_gradients(true);
            steps(&model, &mut zero, 0..3)?;
            Ok((save(&zero.state_dict()?)?, save(&model.state_dict()?)?))
        });
        let (optimizer_state, model_state) = &saved[0];
        let continued = on(4, || {
            let model = model()?;
            model.load_state_dict(&load(model_state)?, true)?;
            let zero = ZeroRedundancyOptimizer::new(model.parameters(), make)?;
            let mut zero = zero.average_gradients(true);
            zero.load_state_dict(&load(optimizer_state)?)?;
            steps(&model, &mut zero, 3..6)?;
            values(&model.parameters())
        });
        assert_near(&continued[3], &expected);
        let undivided = on(1, || {
            let model = model()?;
            model.load_state_dict(&load(model_state)?, true)?;
            let mut optimizer = make(model.parameters())?;
            optimizer.load_state_dict(&load(optimizer_state)?)?;
            steps(&model, &mut *optimizer, 3..6)?;
            values(&model.parameters())
        });
        assert_near(&undivided[0], &expected);
    });
}

#[test]
fn a_step_is_one_program_and_compiles_once() {
    with_devices(2, || {
        let counts = on(2, || {
            let model = DistributedDataParallel::new(model()?)?;
            let mut zero = ZeroRedundancyOptimizer::new(model.parameters(), OPTIMIZERS[0])?;
            steps(&model, &mut zero, 0..2)?;
            let scope = Scope::new();
            steps(&model, &mut zero, 2..7)?;
            Ok((scope.compiles(), scope.executions()))
        });
        assert_eq!(counts, [(0, 5), (0, 5)]);
    });
}
