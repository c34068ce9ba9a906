//! Tensors that are spread over a mesh: what each device holds, and that values are those of one
//! device.

use tests::{with_devices, with_env};
use xla::spmd::{self, Mesh, NamedSharding, Shard};
use xla::testing::budget;
use xla::{
    DType, Device, Error, Launcher, Literal, ReplicaContext, Result, StartMethod, Tensor, dist,
};

/// `0, 1, 2, …` of this shape.
fn counted(dims: &[usize]) -> Tensor {
    let numbers: Vec<f32> = (0..dims.iter().product::<usize>())
        .map(|i| i as f32)
        .collect();
    Tensor::from_vec(numbers, dims.to_vec(), ()).unwrap()
}

fn grid() -> Mesh {
    Mesh::new(&[0, 1, 2, 3, 4, 5, 6, 7], &[2, 4], &["data", "model"]).unwrap()
}

/// What a shard should hold of [`counted`].
fn expected(shard: &Shard, dims: [usize; 2]) -> Vec<f32> {
    let rows = shard.index[0].clone();
    rows.flat_map(|row| {
        shard.index[1]
            .clone()
            .map(move |column| (row * dims[1] + column) as f32)
    })
    .collect()
}

#[test]
fn each_device_holds_its_block() {
    with_devices(8, || {
        let mesh = grid();
        spmd::enable(&mesh).unwrap();
        for dims in [[8, 8], [6, 10], [3, 5], [1, 1]] {
            let specs: [xla::spmd::PartitionSpec; 6] = [
                ().into(),
                ("data", ()).into(),
                ((), "model").into(),
                ("model", "data").into(),
                (("data", "model"), ()).into(),
                ((), ("model", "data")).into(),
            ];
            for spec in specs {
                let sharding = NamedSharding::new(&mesh, spec.clone()).unwrap();
                // Marked, made of the host's array, and as a result of a program.
                let marked = counted(&dims);
                spmd::mark_sharding(&marked, &mesh, spec.clone()).unwrap();
                let literal = Literal::from_vec(expected_whole(dims), dims).unwrap();
                let sent = Tensor::from_literal(literal, &sharding).unwrap();
                let computed = (counted(&dims) * 2.0).unwrap();
                let computed = (computed.to_sharding(&sharding).unwrap() / 2.0).unwrap();
                spmd::mark_sharding(&computed, &mesh, spec.clone()).unwrap();
                for x in [&marked, &sent, &computed] {
                    assert_eq!(
                        x.sharding().unwrap().unwrap(),
                        sharding,
                        "{spec} of {dims:?}"
                    );
                    let shards = x.local_shards().unwrap();
                    assert_eq!(shards.len(), 8);
                    for shard in &shards {
                        assert_eq!(shard.data.to_vec::<f32>().unwrap(), expected(shard, dims));
                    }
                    let covered: usize = shards
                        .iter()
                        .filter(|shard| shard.replica_id == 0)
                        .map(|shard| shard.data.shape().numel())
                        .sum();
                    assert_eq!(covered, dims[0] * dims[1], "{spec} of {dims:?}");
                    assert_eq!(x.to_vec::<f32>().unwrap(), expected_whole(dims));
                }
            }
        }
    });
}

fn expected_whole(dims: [usize; 2]) -> Vec<f32> {
    (0..dims[0] * dims[1]).map(|i| i as f32).collect()
}

#[test]
fn a_product_needs_an_all_reduce_where_the_contracted_axis_is_split() {
    with_devices(4, || {
        let mesh = Mesh::new(&[0, 1, 2, 3], &[4], &["x"]).unwrap();
        spmd::enable(&mesh).unwrap();
        let product = |left: spmd::PartitionSpec, right: spmd::PartitionSpec| {
            let (a, b) = (counted(&[8, 12]), counted(&[12, 16]));
            spmd::mark_sharding(&a, &mesh, left).unwrap();
            spmd::mark_sharding(&b, &mesh, right).unwrap();
            xla::sync().unwrap();
            let c = a.matmul(&b).unwrap();
            let hlo = xla::debug::pending().unwrap().optimized_hlo().unwrap();
            (c, hlo)
        };
        let whole: Vec<f32> = (0..8 * 16)
            .map(|at| {
                let (i, j) = (at / 16, at % 16);
                (0..12).map(|k| ((i * 12 + k) * (k * 16 + j)) as f32).sum()
            })
            .collect();
        for (left, right, reduces) in [
            (spec(("x", ())), spec(()), false),
            (spec(()), spec(((), "x")), false),
            (spec(((), "x")), spec(("x", ())), true),
        ] {
            let (c, hlo) = product(left.clone(), right.clone());
            assert_eq!(c.to_vec::<f32>().unwrap(), whole, "{left} by {right}");
            assert_eq!(
                hlo.contains("all-reduce"),
                reduces,
                "{left} by {right}:\n{hlo}"
            );
        }
    });
}

fn spec(axes: impl Into<spmd::PartitionSpec>) -> spmd::PartitionSpec {
    axes.into()
}

#[test]
fn tensors_from_before_keep_their_values_and_the_generator_its_place() {
    let draw = || Tensor::rand([5], ()).unwrap().to_vec::<f32>().unwrap();
    with_devices(4, || {
        xla::manual_seed(7).unwrap();
        let first = draw();
        let before = counted(&[6]);
        let pending = (&before + 1.0).unwrap();
        let mesh = Mesh::all("data").unwrap();
        let on_one_device = {
            let generator = xla::default_generator(Device::new(0)).unwrap();
            generator.state().unwrap()
        };
        spmd::enable(&mesh).unwrap();
        assert_eq!(xla::device().unwrap(), mesh.device());
        assert_eq!(xla::devices().unwrap(), [mesh.device()]);
        assert_eq!(xla::device_count().unwrap(), 4);
        assert_eq!(xla::real_devices().unwrap().len(), 4);
        let sum = (&before + &pending).unwrap();
        assert_eq!(sum.to_vec::<f32>().unwrap(), [1., 3., 5., 7., 9., 11.]);
        assert!(sum.sharding().unwrap().unwrap().is_replicated());
        assert_eq!(before.device(), mesh.device());
        before.add_(1.0).unwrap();
        assert_eq!(before.to_vec::<f32>().unwrap(), [1., 2., 3., 4., 5., 6.]);
        let generator = xla::default_generator(mesh.device()).unwrap();
        assert_eq!(generator.state().unwrap(), on_one_device);
        assert_ne!(draw(), first);
        xla::manual_seed(7).unwrap();
        assert_eq!(draw(), first);
    });
}

/// A step of training in which a weight is split, and its state with it.
#[test]
fn state_keeps_its_sharding_and_its_program() {
    with_devices(4, || {
        let mesh = Mesh::all("x").unwrap();
        spmd::enable(&mesh).unwrap();
        let weight = counted(&[6, 4]);
        spmd::mark_sharding(&weight, &mesh, "x").unwrap();
        let velocity = weight.zeros_like().unwrap();
        let mut factor = 0.25;
        let mut steps = |count: usize| {
            budget(|| -> Result<()> {
                for _ in 0..count {
                    velocity.mul_(0.5)?;
                    velocity.add_(&weight)?;
                    weight.sub_(&velocity.mul(factor)?)?;
                    factor = -factor;
                    xla::sync()?;
                }
                Ok(())
            })
            .unwrap()
        };
        let _first = steps(2).executions(2);
        steps(4).compiles(0).executions(4).donations_missed(0);
        for x in [&weight, &velocity] {
            let shards = x.local_shards().unwrap();
            let rows: Vec<usize> = shards.iter().map(|s| s.index[0].len()).collect();
            assert_eq!(rows, [2, 2, 2, 0]);
        }
        let (mut w, mut v) = (expected_whole([6, 4]), vec![0.0; 24]);
        for step in 0..6 {
            let factor = if step % 2 == 0 { 0.25 } else { -0.25 };
            for (w, v) in w.iter_mut().zip(&mut v) {
                *v = *v * 0.5 + *w;
                *w -= *v * factor;
            }
        }
        assert_eq!(weight.to_vec::<f32>().unwrap(), w);
    });
}

#[test]
fn gradients_flow_through_constraints() {
    with_devices(4, || {
        let mesh = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["data", "model"]).unwrap();
        spmd::enable(&mesh).unwrap();
        let x = counted(&[4, 6]);
        x.requires_grad_(true).unwrap();
        let sharding = NamedSharding::new(&mesh, ("data", "model")).unwrap();
        let y = x.with_sharding_constraint(&sharding).unwrap();
        let loss = (&y * &y).unwrap().sum((), false).unwrap();
        loss.backward().unwrap();
        let twice: Vec<f32> = (0..24).map(|i| 2.0 * i as f32).collect();
        assert_eq!(x.grad().unwrap().to_vec::<f32>().unwrap(), twice);
    });
}

#[test]
fn without_shardy_the_values_are_the_same() {
    let variables = [("CPU_NUM_DEVICES", "4"), ("XLA_USE_SHARDY", "0")];
    with_env(&variables, || {
        let mesh = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["data", "model"]).unwrap();
        spmd::enable(&mesh).unwrap();
        let (a, b) = (counted(&[5, 6]), counted(&[6, 7]));
        spmd::mark_sharding(&a, &mesh, ("data", "model")).unwrap();
        spmd::mark_sharding(&b, &mesh, ("model", ())).unwrap();
        let c = a.matmul(&b).unwrap();
        let product: Vec<f32> = (0..35)
            .map(|at| {
                let (i, j) = (at / 7, at % 7);
                (0..6).map(|k| ((i * 6 + k) * (k * 7 + j)) as f32).sum()
            })
            .collect();
        assert_eq!(c.to_vec::<f32>().unwrap(), product);
        assert_eq!(a.local_shards().unwrap()[3].index, [3..5, 3..6]);
    });
}

#[test]
fn blocks_are_made_and_loaded_each_where_it_belongs() {
    with_devices(4, || {
        let mesh = Mesh::new(&[3, 2, 1, 0], &[2, 2], &["a", "b"]).unwrap();
        let sharding = NamedSharding::new(&mesh, ((), "b")).unwrap();
        let mut asked = 0;
        let x = Tensor::from_local_shards([2, 3], DType::I64, &sharding, |index| {
            asked += 1;
            let columns = index[1].clone();
            let values: Vec<i64> = (0..2)
                .flat_map(|row| columns.clone().map(move |column| 10 * row + column as i64))
                .collect();
            Literal::from_vec(values, [2, index[1].len()])
        })
        .unwrap();
        assert_eq!(asked, 2);
        assert_eq!(x.to_vec::<i64>().unwrap(), [0, 1, 2, 10, 11, 12]);
        let mut shards = x.local_shards().unwrap();
        let places: Vec<_> = shards.iter().map(|s| (s.device, s.replica_id)).collect();
        assert_eq!(places, [(3, 0), (2, 0), (1, 1), (0, 1)]);
        assert_eq!(shards[1].data.shape().dims(), [2, 1]);
        shards[0].data = Literal::from_vec(vec![7i64; 4], [2, 2]).unwrap();
        x.load_local_shards(&shards).unwrap();
        assert_eq!(x.to_vec::<i64>().unwrap(), [7, 7, 2, 7, 7, 12]);
        assert!(x.load_local_shards(&shards[..1]).is_err());
    });
}

#[test]
fn all_dtypes_are_sent_and_read_block_by_block() {
    with_devices(4, || {
        let mesh = Mesh::all("x").unwrap();
        let rows = NamedSharding::new(&mesh, "x").unwrap();
        for dtype in [
            DType::Bool,
            DType::U8,
            DType::I16,
            DType::BF16,
            DType::F16,
            DType::I32,
            DType::I64,
            DType::F64,
        ] {
            let whole: Vec<f64> = (0..10).map(|i| f64::from(i % 2)).collect();
            let literal = Literal::from_vec(whole.clone(), [5, 2])
                .unwrap()
                .cast(dtype);
            let x = Tensor::from_literal(literal, &rows).unwrap();
            let shards = x.local_shards().unwrap();
            assert_eq!(shards[2].data.shape().dims(), [1, 2]);
            let y = (&x + &x).unwrap().logical_or(&x).unwrap();
            let read = y.to_dtype(DType::F64).unwrap().to_vec::<f64>().unwrap();
            assert_eq!(read, whole, "{dtype}");
        }
    });
}

#[test]
fn a_sharding_serves_each_rank_that_it_fits() {
    with_devices(2, || {
        let mesh = Mesh::all("x").unwrap();
        let of_two = NamedSharding::new(&mesh, ("x", ())).unwrap();
        let of_one = NamedSharding::new(&mesh, "x").unwrap();
        assert_eq!(of_one, of_two);
        assert!(Tensor::zeros([4], &of_two).is_err());
        let matrix = Tensor::ones([4, 2], &of_two).unwrap();
        let vector = Tensor::ones([4], &of_one).unwrap();
        let sum = matrix.sum(1, false).unwrap().add(&vector).unwrap();
        assert_eq!(sum.to_vec::<f32>().unwrap(), [3.0; 4]);
    });
}

#[test]
fn a_compiled_function_goes_by_how_its_arguments_are_spread() {
    with_devices(4, || {
        let mesh = Mesh::all("x").unwrap();
        spmd::enable(&mesh).unwrap();
        let total = counted(&[1]);
        let mut state = ();
        let mut step = xla::compile(|_: &mut (), x: Tensor| {
            total.add_(&x.sum((), false)?)?;
            x.mul(2.0)
        });
        let rows = NamedSharding::new(&mesh, "x").unwrap();
        for call in 0..6 {
            let x = counted(&[8, 2]);
            if call % 2 == 1 {
                spmd::mark_sharding(&x, &mesh, "x").unwrap();
            }
            let y = step.call(&mut state, &x).unwrap();
            let doubled: Vec<f32> = (0..16).map(|i| 2.0 * i as f32).collect();
            assert_eq!(y.to_vec::<f32>().unwrap(), doubled);
            if call % 2 == 1 {
                assert_eq!(x.sharding().unwrap().unwrap(), rows);
            }
        }
        assert_eq!(total.to_vec::<f32>().unwrap(), [6.0 * 120.0]);
    });
}

/// Programs with collectives follow each other faster than they run, on more devices than there are
/// cores.
#[test]
fn many_steps_with_collectives_run_ahead() {
    with_devices(8, || {
        let mesh = grid();
        spmd::enable(&mesh).unwrap();
        let weight = counted(&[16, 16]).div(256.0).unwrap();
        spmd::mark_sharding(&weight, &mesh, ("model", "data")).unwrap();
        let x = counted(&[8, 16]).div(128.0).unwrap();
        spmd::mark_sharding(&x, &mesh, ("data", "model")).unwrap();
        for _ in 0..200 {
            let y = x.matmul(&weight).unwrap().tanh().unwrap();
            weight
                .add_(&y.sum((), false).unwrap().mul(1e-4).unwrap())
                .unwrap();
            xla::sync().unwrap();
        }
        let spread = weight.to_vec::<f32>().unwrap();
        let (mut w, x): (Vec<f64>, Vec<f64>) = (
            (0..256).map(|i| f64::from(i) / 256.0).collect(),
            (0..128).map(|i| f64::from(i) / 128.0).collect(),
        );
        for _ in 0..200 {
            let mut sum = 0.0;
            for row in x.chunks(16) {
                for column in 0..16 {
                    let y: f64 = (0..16).map(|k| row[k] * w[k * 16 + column]).sum();
                    sum += y.tanh();
                }
            }
            w.iter_mut().for_each(|w| *w += sum * 1e-4);
        }
        for (got, expected) in spread.iter().zip(&w) {
            assert!(
                (f64::from(*got) - expected).abs() < 1e-3,
                "{got} {expected}"
            );
        }
    });
}

#[test]
fn a_scope_has_a_mesh_of_its_own() {
    with_devices(4, || {
        let mesh = Mesh::new(&[2, 1], &[2], &["x"]).unwrap();
        let outside = counted(&[4]);
        let inside = spmd::scope(&mesh, || {
            let x = counted(&[4]);
            spmd::mark_sharding(&x, &mesh, "x")?;
            let mixed = x.add(&outside).unwrap_err();
            assert!(matches!(mixed, Error::DeviceMismatch { .. }), "{mixed}");
            x.add(&outside.to(mesh.device())?)
        })
        .unwrap();
        assert_eq!(xla::device().unwrap(), Device::new(0));
        assert_eq!(inside.device(), mesh.device());
        let devices: Vec<_> = inside
            .local_shards()
            .unwrap()
            .iter()
            .map(|s| s.device)
            .collect();
        assert_eq!(devices, [2, 1]);
        let back = inside.to(Device::new(3)).unwrap();
        assert_eq!(
            back.add(1.0).unwrap().to_vec::<f32>().unwrap(),
            [1., 3., 5., 7.]
        );
    });
}

#[test]
fn one_call_on_all_devices_under_the_variable() {
    let variables = [("CPU_NUM_DEVICES", "4"), ("XLA_USE_SPMD", "1")];
    with_env(&variables, || {
        let ranks = Launcher::new().run(|rank| -> Result<_> {
            dist::init_process_group("xla", "xla://")?;
            let mesh = spmd::current_mesh();
            let device = xla::device()?;
            let x = Tensor::ones([8], ())?;
            spmd::mark_sharding(&x, &mesh.unwrap_or(Mesh::of(device).unwrap()), "data")?;
            let sum = dist::all_reduce(&x.sum((), false)?, dist::ReduceOp::Sum)?;
            assert_eq!(sum.item::<f32>()?, 8.0);
            assert_eq!(xla::devices()?, [device]);
            assert_eq!((xla::device_count()?, xla::real_devices()?.len()), (4, 4));
            assert_eq!((dist::get_rank()?, dist::get_world_size()?), (0, 1));
            dist::destroy_process_group()?;
            Ok((rank, device.is_virtual()))
        });
        assert_eq!(ranks.unwrap(), [(0, true)]);
        assert!(xla::device().unwrap().is_virtual());
    });
}

#[test]
fn a_launch_after_enabling_calls_once() {
    with_devices(2, || {
        spmd::enable(&Mesh::all("x").unwrap()).unwrap();
        let ranks = Launcher::new().run(|rank| xla::device().map(|d| (rank, d.is_virtual())));
        assert_eq!(ranks.unwrap(), [(0, true)]);
    });
}

#[test]
fn replicas_of_a_launch_have_no_mesh_of_the_process() {
    with_devices(2, || {
        let launched =
            Launcher::new()
                .start_method(StartMethod::Threads)
                .run(|_| -> Result<String> {
                    let _: std::sync::Arc<ReplicaContext> = xla::context()?;
                    let refused = spmd::enable(&Mesh::all("x")?).unwrap_err();
                    Ok(refused.to_string())
                });
        for error in launched.unwrap() {
            assert!(
                error.contains("spmd::enable") && error.contains("before the launch"),
                "{error}"
            );
        }
    });
}

#[test]
fn what_does_not_fit_is_an_error_at_the_call() {
    with_devices(4, || {
        let mesh = Mesh::all("x").unwrap();
        let other = Mesh::new(&[0, 1, 2, 3], &[2, 2], &["x", "y"]).unwrap();
        spmd::enable(&mesh).unwrap();
        let x = counted(&[4, 4]);
        let long = spmd::mark_sharding(&x, &mesh, ((), (), "x"))
            .unwrap_err()
            .to_string();
        assert!(
            long.contains("[4, 4]") && long.contains("spmd.rs"),
            "{long}"
        );
        let foreign = NamedSharding::new(&other, ("x", "y")).unwrap();
        let error = x
            .with_sharding_constraint(&foreign)
            .unwrap_err()
            .to_string();
        assert!(error.contains("x=4") && error.contains("y=2"), "{error}");
        let moved = x.to_sharding(&foreign).unwrap();
        let error = x.add(&moved).unwrap_err().to_string();
        assert!(
            error.contains("4 devices: x=4") && error.contains("x=2, y=2"),
            "{error}"
        );
        let view = x.select(0, 1).unwrap();
        let error = spmd::mark_sharding(&view, &mesh, "x")
            .unwrap_err()
            .to_string();
        assert!(error.contains("view"), "{error}");
        assert!(spmd::enable(&other).is_err());
        // Nothing of it has done harm.
        assert_eq!(x.to_vec::<f32>().unwrap(), expected_whole([4, 4]));
        assert_eq!(moved.to_vec::<f32>().unwrap(), expected_whole([4, 4]));
    });
}

/// Random bits, sums and a gradient over the first `n` devices.
fn on_so_many(n: usize) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
    let devices: Vec<usize> = (0..n).collect();
    let mesh = Mesh::new(&devices, &[n], &["x"]).unwrap();
    spmd::scope(&mesh, || {
        xla::manual_seed(3)?;
        let rows = NamedSharding::new(&mesh, "x")?;
        let drawn = Tensor::rand([24, 10], &rows)?;
        let bits = drawn.to_vec::<f32>()?.iter().map(|x| x.to_bits()).collect();
        let sums = drawn.sum(0, false)?.to_vec::<f32>()?;
        let w = Tensor::randn([10, 3], ())?.requires_grad_(true)?;
        spmd::mark_sharding(&w, &mesh, ((), "x"))?;
        drawn.matmul(&w)?.tanh()?.sum((), false)?.backward()?;
        let gradient = w.grad().unwrap().to_vec::<f32>()?;
        Ok((bits, sums, gradient))
    })
    .unwrap()
}

#[test]
fn as_many_devices_as_there_are_give_the_same_numbers() {
    with_devices(8, || {
        let (bits, sums, gradient) = on_so_many(1);
        // Those of a device without a mesh.
        xla::manual_seed(3).unwrap();
        let drawn = Tensor::rand([24, 10], ()).unwrap().to_vec::<f32>().unwrap();
        assert!(drawn.iter().map(|x| x.to_bits()).eq(bits.iter().copied()));
        for n in [2, 4, 8] {
            let other = on_so_many(n);
            assert_eq!(other.0, bits, "{n} devices");
            for (got, expected) in other
                .1
                .iter()
                .chain(&other.2)
                .zip(sums.iter().chain(&gradient))
            {
                assert!(
                    (got - expected).abs() <= 1e-5 * expected.abs().max(1.0),
                    "{n}: {got} {expected}"
                );
            }
        }
    });
}

#[test]
fn the_tools_that_look_at_programs_work_on_a_mesh() {
    let variables = [("CPU_NUM_DEVICES", "4"), ("XLA_DEBUG", "nan,index")];
    with_env(&variables, || {
        let mesh = Mesh::all("x").unwrap();
        spmd::enable(&mesh).unwrap();
        let x = counted(&[6, 2]).sub(1.0).unwrap();
        spmd::mark_sharding(&x, &mesh, "x").unwrap();
        let y = x.log().unwrap().sum((), false).unwrap();
        let error = y.item::<f32>().unwrap_err();
        let text = error.to_string();
        assert!(
            matches!(error, Error::NotANumber { op: "log", .. }),
            "{text}"
        );
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("step.safetensors");
        let x = counted(&[6, 2]);
        spmd::mark_sharding(&x, &mesh, "x").unwrap();
        xla::sync().unwrap();
        let total = xla::debug::capsule(&file, || x.mul(2.0)?.sum((), false)).unwrap();
        assert_eq!(total.item::<f32>().unwrap(), 132.0);
        let capsule = xla_runtime::Capsule::load(&file).unwrap();
        assert_eq!(capsule.options.num_partitions, 1);
        assert_eq!(capsule.inputs.last().unwrap().shape().dims(), [6, 2]);
    });
}
