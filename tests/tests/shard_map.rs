//! Functions of the blocks that each device of a mesh holds.

use tests::{with_devices, with_env};
use xla::dist::{self, ReduceOp};
use xla::spmd::{self, Mesh, PartitionSpec};
use xla::{DType, Error, Result, Tensor};

/// `0, 1, 2, …` of this shape.
fn counted(dims: &[usize]) -> Tensor {
    let numbers = numbers(dims.iter().product());
    Tensor::from_vec(numbers, dims.to_vec(), ()).unwrap()
}

fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| i as f32).collect()
}

fn line(devices: usize) -> Mesh {
    let all: Vec<usize> = (0..devices).collect();
    Mesh::new(&all, &[devices], &["x"]).unwrap()
}

fn grid() -> Mesh {
    Mesh::new(&[0, 1, 2, 3, 4, 5, 6, 7], &[2, 4], &["x", "y"]).unwrap()
}

/// One tensor in, one out.
fn map(
    mesh: &Mesh,
    from: impl Into<PartitionSpec>,
    to: impl Into<PartitionSpec>,
    x: &Tensor,
    body: impl FnOnce(&Tensor) -> Result<Tensor>,
) -> Result<Tensor> {
    let mut results = spmd::shard_map(mesh, [from], [to], &[x], |b| Ok(vec![body(&b[0])?]))?;
    Ok(results.remove(0))
}

fn values(x: &Tensor) -> Vec<f32> {
    x.to_vec::<f32>().unwrap()
}

#[test]
fn blocks_go_round_a_ring_of_any_number_of_devices() {
    with_devices(8, || {
        for n in [1, 2, 4, 8] {
            let mesh = line(n);
            spmd::scope(&mesh, || {
                let x = counted(&[2 * n, 3]);
                let ring: Vec<(usize, usize)> = (0..n).map(|i| (i, (i + 1) % n)).collect();
                let y = map(&mesh, "x", "x", &x, |block| {
                    assert_eq!(block.dims(), [2, 3]);
                    dist::collective_permute(&block.mul(2.0)?, &ring)
                })?;
                let count = 6 * n;
                let moved: Vec<f32> = (0..count)
                    .map(|i| 2.0 * ((i + count - 6) % count) as f32)
                    .collect();
                assert_eq!(values(&y), moved, "{n} devices");
                let tiles = y.sharding()?.unwrap().tiles(2);
                assert_eq!(tiles, [n, 1]);
                let z = map(&mesh, "x", "x", &x, |_| {
                    spmd::axis_index("x")?.to_dtype(DType::F32)?.reshape([1])
                })?;
                assert_eq!(values(&z), numbers(n));
                Ok(())
            })
            .unwrap();
        }
    });
}

#[test]
fn collectives_are_along_the_axes_asked_for() {
    with_devices(8, || {
        let mesh = grid();
        spmd::enable(&mesh).unwrap();
        let x = counted(&[8, 8]);
        let at = |row: usize, column: usize| (8 * row + column) as f32;
        let table = |rows: usize, columns: usize, f: &dyn Fn(usize, usize) -> f32| -> Vec<f32> {
            (0..rows * columns)
                .map(|i| f(i / columns, i % columns))
                .collect()
        };
        let along = |axis: &'static str| dist::axis_group(axis);
        // Sums over each axis and over both.
        let y = map(&mesh, ("x", "y"), ((), "y"), &x, |b| {
            along("x")?.all_reduce(b, ReduceOp::Sum)
        });
        let sums = table(4, 8, &|r, c| at(r, c) + at(r + 4, c));
        assert_eq!(values(&y.unwrap()), sums);
        let y = map(&mesh, ("x", "y"), ("x", ()), &x, |b| {
            along("y")?.all_reduce(b, ReduceOp::Sum)
        });
        let sums = table(8, 2, &|r, c| (0..4).map(|j| at(r, 2 * j + c)).sum());
        assert_eq!(values(&y.unwrap()), sums);
        let y = map(&mesh, ("x", "y"), (), &x, |b| {
            dist::all_reduce(b, ReduceOp::Mean)
        });
        let mean = |r, c| {
            (0..8)
                .map(|k| at(r + 4 * (k / 4), 2 * (k % 4) + c) / 8.0)
                .sum()
        };
        assert_eq!(values(&y.unwrap()), table(4, 2, &mean));
        // Others than sums.
        let y = map(&mesh, ("x", "y"), ("x", ()), &x, |b| {
            along("y")?.all_reduce(b, ReduceOp::Max)
        });
        assert_eq!(values(&y.unwrap()), table(8, 2, &|r, c| at(r, 6 + c)));
        let y = map(&mesh, ("x", "y"), ((), "y"), &x, |b| {
            along("x")?.all_reduce(b, ReduceOp::Product)
        });
        let products = table(4, 8, &|r, c| at(r, c) * at(r + 4, c));
        assert_eq!(values(&y.unwrap()), products);
        // What is gathered, exchanged and scattered is where it was.
        let y = map(&mesh, ("x", "y"), ("x", ()), &x, |b| {
            along("y")?.all_gather_into_tensor(b, 1)
        });
        assert_eq!(values(&y.unwrap()), numbers(64));
        let y = map(&mesh, ("x", "y"), (("x", "y"), ()), &x, |b| {
            along("y")?.all_to_all_tensor(b, 0, 1)
        });
        assert_eq!(values(&y.unwrap()), numbers(64));
        let y = map(&mesh, (), ((), "y"), &x, |b| {
            along("y")?.reduce_scatter_tensor(b, 1, ReduceOp::Sum)
        });
        assert_eq!(values(&y.unwrap()), table(8, 8, &|r, c| 4.0 * at(r, c)));
        let y = map(&mesh, ("x", "y"), ("x", ()), &x, |b| {
            along("y")?.broadcast(b, 2)
        });
        assert_eq!(values(&y.unwrap()), table(8, 2, &|r, c| at(r, 4 + c)));
        // Places along both axes, the second first.
        let y = map(&mesh, (), [("y", "x")], &x, |_| {
            spmd::axis_index(("y", "x"))?
                .to_dtype(DType::F32)?
                .reshape([1])
        });
        assert_eq!(values(&y.unwrap()), numbers(8));
        let y = map(&mesh, ("x", "y"), (), &x, |b| {
            let all = dist::axis_group(("y", "x"))?;
            all.all_gather_into_tensor(&b.narrow(0, 0, 1)?, 0)
        });
        let first = |k: usize, c: usize| at(4 * (k % 2), 2 * (k / 2) + c);
        assert_eq!(values(&y.unwrap()), table(8, 2, &first));
    });
}

/// Small numbers of no pattern.
fn waves(dims: &[usize], frequency: f32) -> Tensor {
    let count = dims.iter().product();
    let numbers: Vec<f32> = (0..count)
        .map(|i| (i as f32 * frequency).sin() * 0.5)
        .collect();
    Tensor::from_vec(numbers, dims.to_vec(), ()).unwrap()
}

fn close(left: &Tensor, right: &Tensor, what: &str) {
    let (left, right) = (values(left), values(right));
    assert_eq!(left.len(), right.len(), "{what}");
    for (l, r) in left.iter().zip(&right) {
        assert!((l - r).abs() <= 1e-4 * (1.0 + r.abs()), "{what}: {l}, {r}");
    }
}

/// Two layers, the first split by columns and the second by rows.
struct Layers {
    mesh: Mesh,
    split: bool,
}

impl Layers {
    fn output(&self, x: &Tensor, w: &[Tensor; 2], bias: &Tensor) -> Result<Tensor> {
        if !self.split {
            return x.matmul(&w[0])?.tanh()?.matmul(&w[1])?.add(bias);
        }
        let specs: [PartitionSpec; 3] = ["x".into(), ((), "y").into(), ("y", ()).into()];
        let inputs = [x, &w[0], &w[1]];
        let mut results = spmd::shard_map(&self.mesh, specs, ["x"], &inputs, |blocks| {
            let part = blocks[0].matmul(&blocks[1])?.tanh()?.matmul(&blocks[2])?;
            let whole = dist::axis_group("y")?.all_reduce(&part, ReduceOp::Sum)?;
            // Read from outside.
            Ok(vec![whole.add(bias)?])
        })?;
        Ok(results.remove(0))
    }

    /// The loss, the gradients, and those of the gradient's square.
    fn derivatives(&self) -> Result<Vec<Tensor>> {
        let x = waves(&[4, 8], 0.7);
        let w = [waves(&[8, 16], 1.3), waves(&[16, 4], 0.9)];
        let bias = waves(&[4], 2.1);
        let leaves = [&x, &w[0], &w[1], &bias];
        for leaf in leaves {
            leaf.requires_grad_(true)?;
        }
        let output = self.output(&x, &w, &bias)?;
        let loss = output.mul(&output)?.sum((), false)?;
        let options = xla::GradOptions {
            create_graph: true,
            ..Default::default()
        };
        let first = xla::grad(&[&loss], &leaves, options)?;
        let mut all = vec![loss];
        let mut square = Tensor::zeros((), ())?;
        for gradient in first.into_iter().flatten() {
            square = square.add(&gradient.mul(&gradient)?.sum((), false)?)?;
            all.push(gradient);
        }
        let second = xla::grad(&[&square], &leaves, Default::default())?;
        all.extend(second.into_iter().flatten());
        Ok(all)
    }
}

#[test]
fn gradients_are_those_without_it() {
    with_devices(8, || {
        let mesh = grid();
        spmd::enable(&mesh).unwrap();
        let split = Layers { mesh, split: true }.derivatives().unwrap();
        let whole = Layers { mesh, split: false }.derivatives().unwrap();
        assert_eq!((split.len(), whole.len()), (9, 9));
        for (at, (split, whole)) in split.iter().zip(&whole).enumerate() {
            close(split, whole, &format!("derivative {at}"));
        }
    });
}

#[test]
fn without_shardy_it_is_refused() {
    let variables = [("CPU_NUM_DEVICES", "4"), ("XLA_USE_SHARDY", "0")];
    with_env(&variables, || {
        let mesh = line(4);
        spmd::enable(&mesh).unwrap();
        let refused = map(&mesh, "x", "x", &counted(&[4]), |block| Ok(block.clone()));
        assert!(matches!(refused, Err(Error::Config { .. })), "{refused:?}");
    });
}

/// A loss that each device computes and all have.
#[test]
fn what_all_devices_compute_alike_counts_once() {
    with_devices(4, || {
        for n in [1, 2, 4] {
            let mesh = line(n);
            spmd::scope(&mesh, || {
                let (x, scale) = (waves(&[8, 3], 0.7), waves(&[3], 1.1));
                x.requires_grad_(true)?;
                scale.requires_grad_(true)?;
                let specs: [PartitionSpec; 2] = ["x".into(), ().into()];
                let loss = spmd::shard_map(&mesh, specs, [()], &[&x, &scale], |b| {
                    let own = b[0].mul(&b[1])?.exp()?.sum((), false)?;
                    let square = b[1].mul(&b[1])?.sum((), false)?;
                    Ok(vec![dist::all_reduce(&own, ReduceOp::Sum)?.add(&square)?])
                })?;
                loss[0].backward()?;
                let gradients = [x.grad().unwrap(), scale.grad().unwrap()];
                for leaf in [&x, &scale] {
                    leaf.zero_grad();
                }
                let whole = x.mul(&scale)?.exp()?.sum((), false)?;
                let whole = whole.add(&scale.mul(&scale)?.sum((), false)?)?;
                whole.backward()?;
                close(&loss[0], &whole, "loss");
                close(&gradients[0], &x.grad().unwrap(), "by x");
                close(&gradients[1], &scale.grad().unwrap(), "by scale");
                Ok(())
            })
            .unwrap();
        }
    });
}

#[test]
fn loops_and_changes_in_place_are_possible_in_it() {
    with_devices(4, || {
        let mesh = line(4);
        spmd::enable(&mesh).unwrap();
        let x = counted(&[4]);
        let calls = Tensor::zeros([2], ()).unwrap();
        let ring: Vec<(usize, usize)> = (0..4).map(|i| (i, (i + 1) % 4)).collect();
        for _ in 0..2 {
            // The sum, by passing blocks on.
            let y = map(&mesh, "x", "x", &x, |block| {
                calls.add_(1.0)?;
                let passed = xla::fori_loop(3, &[block, block], |_, carry| {
                    let next = dist::collective_permute(&carry[0], &ring)?;
                    let sum = carry[1].add(&next)?;
                    Ok(vec![next, sum])
                })?;
                Ok(passed[1].clone())
            })
            .unwrap();
            assert_eq!(values(&y), [6.0; 4]);
        }
        assert_eq!(values(&calls), [2.0; 2]);
        // What is drawn is the same on all devices.
        let drawn = map(&mesh, "x", "x", &x, |block| block.rand_like()).unwrap();
        let drawn = values(&drawn);
        assert!(drawn.iter().all(|one| *one == drawn[0]), "{drawn:?}");
    });
}

#[test]
fn what_does_not_fit_is_an_error_of_the_call() {
    with_devices(8, || {
        let mesh = grid();
        spmd::enable(&mesh).unwrap();
        let x = counted(&[6, 8]);
        let same = |block: &Tensor| Ok(block.clone());
        let error = map(&mesh, (), "y", &x, same).map(|_| ());
        assert!(error.is_ok());
        let refused = |result: Result<Tensor>, words: &[&str]| {
            let error = result.unwrap_err();
            let text = error.to_string();
            for word in words.iter().chain(&["tests/shard_map.rs"]) {
                assert!(text.contains(word), "{word}: {text}");
            }
            error
        };
        let uneven = map(&mesh, "y", "y", &x, same);
        let words = ["axis 0 of length 6", "4 blocks", "2 over, 2 missing"];
        assert!(matches!(refused(uneven, &words), Error::Sharding { .. }));
        let rank = map(&mesh, ((), (), "x"), "x", &x, same);
        refused(rank, &["3 axes", "has 2"]);
        let rank = map(&mesh, "x", ((), (), "x"), &x, same);
        refused(rank, &["3 axes", "has 2"]);
        let unknown = map(&mesh, "z", "x", &x, same);
        refused(unknown, &["no axis \"z\"", "x=2, y=4"]);
        let unknown = map(&mesh, "x", "x", &x, |b| {
            dist::axis_group("z")?.all_reduce(b, ReduceOp::Sum)
        });
        refused(unknown, &["axis_group", "\"z\"", "x=2, y=4"]);
        let twice = map(&mesh, "x", "x", &x, |_| spmd::axis_index(("x", "x")));
        refused(twice, &["axis_index", "once"]);
        let other = line(4);
        let elsewhere = map(&other, (), (), &x, same);
        refused(elsewhere, &["x=2, y=4", "x=4"]);
        let read = map(&mesh, "x", "x", &x, |b| {
            b.to_vec::<f32>()?;
            Ok(b.clone())
        });
        assert!(matches!(read, Err(Error::InBody { .. })), "{read:?}");
        let nested = map(&mesh, "x", "x", &x, |b| map(&mesh, "x", "x", b, same));
        assert!(matches!(nested, Err(Error::InBody { .. })), "{nested:?}");
        let spread = map(&mesh, "x", "x", &x, |b| {
            b.with_sharding_constraint(&spmd::NamedSharding::new(&mesh, "x")?)
        });
        refused(spread, &["body of a shard_map"]);
        let replicas = map(&mesh, "x", "x", &x, |b| dist::scatter(b, None, 0));
        assert!(matches!(replicas, Err(Error::ProcessGroup { .. })));
        let count = spmd::shard_map(&mesh, ["x", "x"], ["x"], &[&x], |b| Ok(b.to_vec()));
        assert!(matches!(count, Err(Error::Argument { .. })), "{count:?}");
        let count = spmd::shard_map(&mesh, ["x"], ["x", "x"], &[&x], |b| Ok(b.to_vec()));
        assert!(matches!(count, Err(Error::Argument { .. })), "{count:?}");
        let outside = spmd::axis_index("x");
        refused(outside, &["axis_index", "outside"]);
        assert!(dist::axis_group("x").is_err());
        // Nothing of what failed is left behind.
        assert_eq!(values(&x), numbers(48));
    });
}
