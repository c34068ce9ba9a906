//! Training over a mesh: data parallel, fully sharded and tensor parallel, each with the values of one
//! device.

use tests::with_devices;
use xla::data::{DataLoader, TensorDataset};
use xla::nn::ParallelStyle::{ColwiseParallel, RowwiseParallel, Spec};
use xla::nn::{
    self, BatchNorm2d, Conv2d, DistributedDataParallel, Flatten, Forward, FullyShardOptions,
    Linear, MaxPool2d, Module, MultiheadAttention, MultiheadAttentionOptions, Relu, Sequential,
    fully_shard, fully_shard_with, parallelize_module,
};
use xla::optim::{AdamW, Optimizer, Sgd};
use xla::spmd::{self, Mesh, NamedSharding, PartitionSpec};
use xla::{DType, Error, Literal, Result, Tensor};

#[path = "../../xla/examples/gpt/model.rs"]
#[expect(dead_code, reason = "the example also writes with its model")]
mod gpt;

/// Makes an optimizer of parameters.
type Make = fn(Vec<Tensor>) -> Box<dyn Optimizer>;

/// Its small denominator would make much of the last bits of a gradient.
fn adam_w(parameters: Vec<Tensor>) -> Box<dyn Optimizer> {
    Box::new(AdamW::new(parameters, 0.01).eps(1e-3).weight_decay(0.1))
}

fn sgd(parameters: Vec<Tensor>) -> Box<dyn Optimizer> {
    Box::new(Sgd::new(parameters, 0.2))
}

/// The first devices along one axis.
fn line(devices: usize) -> Mesh {
    let devices: Vec<usize> = (0..devices).collect();
    Mesh::new(&devices, &[devices.len()], &["data"]).unwrap()
}

fn square() -> Mesh {
    Mesh::new(&[0, 1, 2, 3], &[2, 2], &["data", "model"]).unwrap()
}

/// Numbers between -1 and 1.
fn waves(dims: &[usize], seed: usize) -> Result<Tensor> {
    let wave = |i: usize| ((i * 37 + seed * 11) as f32 * 0.173).sin();
    let waves: Vec<f32> = (0..dims.iter().product::<usize>()).map(wave).collect();
    Tensor::from_vec(waves, dims, ())
}

/// Whole numbers below `bound`.
fn labels(dims: &[usize], bound: usize, seed: usize) -> Result<Tensor> {
    let label = |i: usize| ((i * 7 + seed * 5 + i / 3) % bound) as i64;
    let labels: Vec<i64> = (0..dims.iter().product::<usize>()).map(label).collect();
    Tensor::from_vec(labels, dims, ())
}

/// All values of the parameters, after a few steps.
fn trained(
    model: &impl Forward,
    make: Make,
    batch: impl Fn(usize) -> Result<(Tensor, Tensor)>,
) -> Result<Vec<f32>> {
    let mut optimizer = make(model.parameters());
    // The initial values are a program of their own, so that the first step is the one of all others.
    xla::sync()?;
    for step in 0..3 {
        let (inputs, targets) = batch(step)?;
        let logits = model.forward(&inputs)?;
        let classes = logits.size(-1)?;
        let logits = logits.reshape([logits.numel() / classes, classes])?;
        nn::cross_entropy(&logits, &targets.reshape([targets.numel()])?)?.backward()?;
        optimizer.step()?;
        optimizer.zero_grad();
        xla::sync()?;
    }
    values(model)
}

fn values(model: &impl Module) -> Result<Vec<f32>> {
    let mut all = model.parameters();
    all.extend(model.buffers().into_iter().filter(|b| b.dtype().is_float()));
    let each: Result<Vec<Vec<f32>>> = all.iter().map(Tensor::to_vec).collect();
    Ok(each?.concat())
}

#[track_caller]
fn assert_near(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        assert!((g - e).abs() <= 1e-4, "{what}, value {i}: {g} is not {e}");
    }
}

/// Trains on one device and then on so many, with parameters whole (`false`) or split (`true`), and
/// asserts that the values are the same.
fn trains_alike<M: Forward>(
    model: impl Fn() -> Result<M>,
    make: Make,
    batch: impl Fn(usize) -> Result<(Tensor, Tensor)>,
    runs: &[(usize, bool)],
) {
    with_devices(8, || {
        let seeded = || {
            xla::manual_seed(5)?;
            model()
        };
        let start = values(&seeded().unwrap()).unwrap();
        let expected = trained(&seeded().unwrap(), make, &batch).unwrap();
        let moved = start.iter().zip(&expected);
        let moved = moved.filter(|(a, b)| (*a - *b).abs() > 1e-3).count();
        assert!(moved > start.len() / 3, "{moved} of {}", start.len());
        for &(devices, split) in runs {
            let mesh = line(devices);
            let got = spmd::scope(&mesh, || {
                let model = seeded()?;
                if split {
                    fully_shard(&model, &mesh)?;
                }
                let model = DistributedDataParallel::new(model)?;
                trained(&model, make, &batch)
            });
            let what = format!("{devices} devices, split: {split}");
            assert_near(&what, &got.unwrap(), &expected);
        }
    });
}

fn mlp() -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Linear::new(6, 10, ())?)
        .add(Relu)
        .add(Linear::new(10, 3, ())?))
}

/// Six samples: 4 and 8 devices do not divide them.
fn points(step: usize) -> Result<(Tensor, Tensor)> {
    Ok((waves(&[6, 6], step)?, labels(&[6], 3, step)?))
}

#[test]
fn a_perceptron_with_whole_parameters() {
    trains_alike(mlp, adam_w, points, &[1, 2, 4, 8].map(|n| (n, false)));
}

#[test]
fn a_perceptron_with_split_parameters() {
    trains_alike(mlp, adam_w, points, &[1, 2, 4, 8].map(|n| (n, true)));
}

/// Normalisation is over the whole batch, whatever part of it a device has.
fn cnn() -> Result<Sequential> {
    Ok(Sequential::new()
        .add(Conv2d::builder(1, 4, 3).padding(1).build(())?)
        .add(BatchNorm2d::new(4, ())?)
        .add(Relu)
        .add(MaxPool2d::new(2))
        .add(Flatten)
        .add(Linear::new(64, 3, ())?))
}

fn images(step: usize) -> Result<(Tensor, Tensor)> {
    Ok((waves(&[8, 1, 8, 8], step)?, labels(&[8], 3, step)?))
}

/// Whole and split in turn.
const RUNS: [(usize, bool); 4] = [(1, false), (2, true), (4, false), (8, true)];

#[test]
fn a_convolutional_net() {
    trains_alike(cnn, sgd, images, &RUNS);
}

/// What is dropped is the same on any number of devices.
fn language_model() -> Result<gpt::Gpt> {
    let config = gpt::Config {
        vocabulary: 17,
        context: 6,
        layers: 1,
        heads: 2,
        features: 16,
        dropout: 0.1,
        checkpoint: false,
    };
    gpt::Gpt::new(config, ())
}

fn tokens(step: usize) -> Result<(Tensor, Tensor)> {
    Ok((labels(&[8, 6], 17, step)?, labels(&[8, 6], 17, step + 1)?))
}

#[test]
fn a_language_model() {
    trains_alike(language_model, sgd, tokens, &RUNS);
}

fn spec(axes: impl Into<PartitionSpec>) -> PartitionSpec {
    axes.into()
}

fn sharding_of(tensor: &Tensor) -> PartitionSpec {
    tensor.sharding().unwrap().unwrap().spec().clone()
}

#[test]
fn a_language_model_in_tensor_parallel() {
    with_devices(4, || {
        let seeded = || {
            xla::manual_seed(5)?;
            language_model()
        };
        let expected = trained(&seeded().unwrap(), adam_w, tokens).unwrap();
        let mesh = square();
        spmd::scope(&mesh, || {
            let model = seeded()?;
            let plan = [
                ("h.*.attn.qkv", ColwiseParallel("model")),
                ("h.*.attn.proj", RowwiseParallel("model")),
                ("h.*.fc", ColwiseParallel("model")),
                ("h.*.proj", RowwiseParallel("model")),
                // 17 rows, 9 and 8 of them.
                ("wte.weight", Spec("model".into())),
            ];
            parallelize_module(&model, &mesh, &plan)?;
            let model = DistributedDataParallel::new(model)?;
            assert_near("(2, 2)", &trained(&model, adam_w, tokens)?, &expected);
            let parameters = model.named_parameters();
            let parameter = |name: &str| {
                let found = parameters.iter().find(|(path, _)| path == name);
                found.unwrap_or_else(|| panic!("no {name}")).1.clone()
            };
            for (name, expected) in [
                ("module.wte.weight", spec("model")),
                ("module.wpe.weight", spec(())),
                ("module.h.0.attn.qkv.weight", spec("model")),
                ("module.h.0.attn.qkv.bias", spec("model")),
                ("module.h.0.attn.proj.weight", spec(((), "model"))),
                ("module.h.0.attn.proj.bias", spec(())),
            ] {
                assert_eq!(sharding_of(&parameter(name)), expected, "{name}");
            }
            Ok(())
        })
        .unwrap();
    });
}

/// Over both axes: what a layer is split by stays, and is split further.
#[test]
fn tensor_parallel_layers_are_fully_sharded_too() {
    with_devices(4, || {
        let expected = {
            xla::manual_seed(5).unwrap();
            trained(&mlp().unwrap(), adam_w, points).unwrap()
        };
        let mesh = square();
        spmd::scope(&mesh, || {
            xla::manual_seed(5)?;
            let model = mlp()?;
            let plan = [
                ("0", ColwiseParallel("model")),
                ("2", RowwiseParallel("model")),
            ];
            parallelize_module(&model, &mesh, &plan)?;
            fully_shard(&model, &mesh)?;
            let parameters = model.parameters();
            let got: Vec<PartitionSpec> = parameters.iter().map(sharding_of).collect();
            // Of [10, 6] by 2 the parts are [5, 6]: the second axis divides evenly.
            let expected_specs = [
                spec(("model", "data")),
                spec([["model", "data"]]),
                spec(((), ["model", "data"])),
                spec("data"),
            ];
            assert_eq!(got, expected_specs);
            let model = DistributedDataParallel::new(model)?;
            assert_near("both", &trained(&model, adam_w, points)?, &expected);
            Ok(())
        })
        .unwrap();
    });
}

#[test]
fn heads_of_attention_are_split() {
    let run = |mesh: Option<&Mesh>| -> Result<Vec<f32>> {
        xla::manual_seed(5)?;
        let attention = MultiheadAttention::builder(16, 4)
            .batch_first(true)
            .build(())?;
        if let Some(mesh) = mesh {
            let plan = [
                ("", ColwiseParallel("model")),
                ("out_proj", RowwiseParallel("model")),
            ];
            parallelize_module(&attention, mesh, &plan)?;
        }
        let x = waves(&[3, 5, 16], 1)?;
        let (y, weights) = attention.forward(&x, &x, &x, MultiheadAttentionOptions::default())?;
        y.square()?.mean((), false)?.backward()?;
        let mut all = vec![y.to_vec()?, weights.unwrap().to_vec()?];
        for (name, parameter) in attention.named_parameters() {
            all.push(parameter.grad().unwrap().to_vec()?);
            if name == "in_proj_weight" && mesh.is_some() {
                assert_eq!(sharding_of(&parameter), spec("model"));
            }
        }
        Ok(all.concat())
    };
    with_devices(4, || {
        let expected = run(None).unwrap();
        let mesh = square();
        let got = spmd::scope(&mesh, || run(Some(&mesh))).unwrap();
        assert_near("attention", &got, &expected);
    });
}

/// A device holds a quarter of the parameters and of the optimizer's state, and nothing else.
#[test]
fn memory_is_divided() {
    with_devices(4, || {
        let mesh = line(4);
        spmd::enable(&mesh).unwrap();
        let model = Sequential::new()
            .add(Linear::new(256, 510, ()).unwrap())
            .add(Relu)
            .add(Linear::new(510, 10, ()).unwrap());
        fully_shard(&model, &mesh).unwrap();
        let model = DistributedDataParallel::new(model).unwrap();
        let mut optimizer = AdamW::new(model.parameters(), 1e-3);
        let (x, y) = (waves(&[8, 256], 1).unwrap(), labels(&[8], 10, 1).unwrap());
        for _ in 0..3 {
            let loss = nn::cross_entropy(&model.forward(&x).unwrap(), &y).unwrap();
            loss.backward().unwrap();
            optimizer.step().unwrap();
            optimizer.zero_grad();
            xla::sync().unwrap().wait().unwrap();
        }
        let whole = 4 * model.num_parameters();
        let state = optimizer.state_dict().unwrap();
        let mut held = [0; 4];
        let moments = state.iter().filter(|(name, _)| name.contains("exp_avg"));
        let parameters = model.parameters();
        for tensor in moments.map(|(_, tensor)| tensor).chain(&parameters) {
            for shard in tensor.local_shards().unwrap() {
                held[shard.device] += shard.data.bytes().len();
            }
        }
        // The last layer's bias of 10 is 3, 3, 3 and 1.
        assert_eq!(held.iter().sum::<usize>(), 3 * whole);
        drop(state);
        let client = xla_runtime::Client::global().unwrap();
        for (device, held) in held.into_iter().enumerate() {
            let quarter = 3 * whole / 4;
            assert!(
                held.abs_diff(quarter) <= quarter / 100,
                "{held} of {quarter}"
            );
            // Batch, step's numbers and generator as well.
            let live = client.live_bytes(device).unwrap() as usize;
            assert!(live <= quarter + quarter / 10, "{live} bytes of {quarter}");
        }
    });
}

#[test]
fn options_of_replicas_change_nothing() {
    with_devices(4, || {
        let mesh = line(4);
        spmd::enable(&mesh).unwrap();
        let model = DistributedDataParallel::new(Linear::without_bias(1, 1, ()).unwrap())
            .and_then(|model| model.bucket_cap_mb(0.0))
            .unwrap()
            .find_unused_parameters(true)
            .broadcast_buffers(false)
            .gradient_as_bucket_view(true);
        let weight = &model.parameters()[0];
        // The gradient of the sum of w · x is the sum of x: 15 for five samples.
        let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0, 5.0], [5, 1], ()).unwrap();
        let pass = || -> Result<()> {
            let y = model.forward(&x)?;
            assert_eq!(
                spmd::marked(&model.scatter(&x)?).unwrap().spec(),
                &spec("data")
            );
            y.sum((), false)?.backward()
        };
        model.no_sync(pass).unwrap();
        pass().unwrap();
        assert_eq!(weight.grad().unwrap().item::<f32>().unwrap(), 30.0);
    });
}

/// Each device is sent its part of a batch, also of the last one, which is smaller.
#[test]
fn a_loader_sends_each_device_its_part() {
    with_devices(4, || {
        let mesh = line(4);
        let samples = Literal::from_vec((0..20).map(|i| i as f32).collect(), [10, 2]).unwrap();
        let targets = Literal::from_vec((0..10i64).collect(), [10]).unwrap();
        let data = TensorDataset::new(samples, targets).unwrap();
        let rows = NamedSharding::new(&mesh, "data").unwrap();
        let loader = DataLoader::new(data).batch_size(6).sharding(&rows);
        let mut seen: Vec<Vec<Vec<i64>>> = Vec::new();
        for batch in &loader {
            let (samples, targets) = batch.unwrap();
            assert_eq!(samples.sharding().unwrap().unwrap(), rows);
            let parts = targets.local_shards().unwrap();
            seen.push(
                parts
                    .iter()
                    .map(|part| part.data.to_vec().unwrap())
                    .collect(),
            );
        }
        let expected: [Vec<Vec<i64>>; 2] = [
            vec![vec![0, 1], vec![2, 3], vec![4, 5], vec![]],
            vec![vec![6], vec![7], vec![8], vec![9]],
        ];
        assert_eq!(seen, expected);
    });
}

/// Bits of what is drawn, whatever it is drawn of and however it is spread.
#[test]
fn random_numbers_are_those_of_one_device() {
    fn draw(spread: impl Fn(&Tensor) -> Result<()>) -> Result<Vec<Vec<u32>>> {
        xla::manual_seed(11)?;
        let mut drawn = Vec::new();
        for dims in [[64, 3], [5, 7], [1, 100]] {
            let uniform = Tensor::rand(dims, ())?;
            let normal = Tensor::randn(dims, ())?;
            let whole = Tensor::randint(-9, 1000, dims, DType::F32)?;
            let dropped = nn::functional::dropout(&Tensor::ones(dims, ())?, 0.3, true)?;
            drawn.extend([uniform, normal, whole, dropped]);
        }
        drawn.push(Tensor::randperm(37, ())?.reshape([37, 1])?.to(DType::F32)?);
        drawn.iter().try_for_each(spread)?;
        xla::sync()?;
        let bits = |x: &Tensor| Ok(x.to_vec()?.into_iter().map(f32::to_bits).collect());
        drawn.iter().map(bits).collect()
    }
    with_devices(8, || {
        let expected = draw(|_| Ok(())).unwrap();
        for (devices, axes) in [
            (1, spec("data")),
            (2, spec("data")),
            (4, spec(((), "data"))),
            (8, spec("data")),
            (8, spec(())),
        ] {
            let mesh = line(devices);
            let spread = |tensor: &Tensor| spmd::mark_sharding(tensor, &mesh, &axes);
            let got = spmd::scope(&mesh, || draw(spread)).unwrap();
            assert_eq!(got, expected, "{devices} devices, {axes}");
        }
    });
}

#[test]
fn what_does_not_fit_is_said_at_the_call() {
    with_devices(4, || {
        let mesh = square();
        let model = spmd::scope(&mesh, mlp).unwrap();
        let said = |result: Result<()>, parts: &[&str]| {
            let error = result.unwrap_err();
            let text = error.to_string();
            for part in parts.iter().chain(&[file!()]) {
                assert!(text.contains(part), "{part:?} is not in {text}");
            }
            error
        };
        let axis = FullyShardOptions {
            axis: Some("rows"),
            ..Default::default()
        };
        said(
            fully_shard_with(&model, &mesh, axis),
            &["rows", "data, model"],
        );
        let plan = [("1", ColwiseParallel("model"))];
        let unknown = parallelize_module(&model, &mesh, &plan);
        said(
            unknown,
            &["parallelize_module", "0.weight, 0.bias, 2.weight"],
        );
        let plan = [("0", ColwiseParallel("rows"))];
        let no_axis = parallelize_module(&model, &mesh, &plan);
        let error = said(no_axis, &["parallelize_module", "0.weight", "rows"]);
        assert!(matches!(error, Error::Sharding { .. }));
        let plan = [("0.bias", Spec(((), "model").into()))];
        let rank = parallelize_module(&model, &mesh, &plan);
        said(rank, &["0.bias of shape [10]", "2 axes"]);
        assert!(model.parameters().iter().all(|p| spmd::marked(p).is_none()));

        let wrapped = spmd::scope(&mesh, || DistributedDataParallel::new(mlp()?)).unwrap();
        let elsewhere = waves(&[4, 6], 1).unwrap();
        said(wrapped.forward(&elsewhere).map(drop), &["xla:0", "data=2"]);
        said(wrapped.batch_axes("rows").map(drop), &["rows", "data=2"]);
    });
}
