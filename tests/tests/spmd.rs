//! Tensors that are spread over a mesh: what each device holds, and that values are those of one
//! device.

use tests::{with_devices, with_env};
use xla::spmd::{self, Mesh, NamedSharding, Shard};
use xla::{DType, Device, Literal, Result, Tensor};

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
        let budget = xla::testing::budget(|| -> Result<()> {
            for _ in 0..6 {
                velocity.mul_(0.5)?;
                velocity.add_(&weight)?;
                weight.sub_(&velocity.mul(0.25)?)?;
                xla::sync()?;
            }
            Ok(())
        });
        drop(budget);
        for x in [&weight, &velocity] {
            let shards = x.local_shards().unwrap();
            let rows: Vec<usize> = shards.iter().map(|s| s.index[0].len()).collect();
            assert_eq!(rows, [2, 2, 2, 0]);
        }
        let (mut w, mut v) = (expected_whole([6, 4]), vec![0.0; 24]);
        for _ in 0..6 {
            for (w, v) in w.iter_mut().zip(&mut v) {
                *v = *v * 0.5 + *w;
                *w -= *v * 0.25;
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
