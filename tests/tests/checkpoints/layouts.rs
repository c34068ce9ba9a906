//! Tensors that several ranks or the devices of a mesh hold.

use crate::{literals, names, several};
use std::fs;
use tests::check::{f32s, values};
use tests::{replicas, with_devices};
use xla::nn::StateDict;
use xla::nn::state::{Checkpoint, CheckpointManager, Stateful};
use xla::spmd::{Mesh, NamedSharding, PartitionSpec};
use xla::{DType, Error, Result, Tensor};

#[test]
fn ranks_save_what_they_share_once_and_what_is_their_own_each() {
    with_devices(2, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path();
        replicas(2, |rank| {
            let mine = format!("rank-{rank}");
            let mut checkpoints = CheckpointManager::new(path).keep(1);
            let shared = StateDict::from_iter([
                ("a", Tensor::full([64], 1.0, DType::F32)?),
                ("b", Tensor::full([64], 2.0, DType::F32)?),
            ]);
            let own = StateDict::from_iter([("c", f32s(&[rank as f32]))]);
            for step in 1..=3 {
                checkpoints.save_async(step, &[("shared", &shared), (&mine, &own)])?;
            }
            checkpoints.wait()?;
            let mut read = StateDict::from_iter([("c", f32s(&[9.0]))]);
            let last = checkpoints.resume(&mut [(&mine, &mut read)])?;
            assert_eq!(last, Some(3));
            assert_eq!(values(read.get("c").unwrap())?, [rank as f64]);

            // What is wrong on one is an error on both, and the checkpoint before stays.
            let different =
                StateDict::from_iter([("a", Tensor::full([1 + rank], 1.0, DType::F32)?)]);
            let error = checkpoints.save(4, &[("shared", &different)]).unwrap_err();
            let text = "shared/a of f32 [1] as on rank 0, got f32 [2] on rank 1";
            assert!(error.to_string().contains(text), "{error}");
            assert_eq!(checkpoints.latest_step()?, Some(3));
            let names = [("shared", &shared as &dyn Stateful), ("shared", &shared)];
            let given = if rank == 0 { &names[..1] } else { &names };
            let error = checkpoints.save(4, given).unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::ReplicaFailed { rank: 1, .. } | Error::Argument { .. }
                ),
                "{error}"
            );
            Ok(())
        });
        assert_eq!(names(path), ["step-3"]);
        let checkpoint = Checkpoint::open(path.join("step-3")).unwrap();
        let saved: Vec<&str> = checkpoint.tensors().map(|saved| saved.name()).collect();
        assert_eq!(saved, ["shared/a", "shared/b", "rank-0/c", "rank-1/c"]);
        let files = names(&path.join("step-3"));
        assert_eq!(
            files,
            [
                "00000-000.safetensors",
                "00001-000.safetensors",
                "index.json"
            ]
        );
        let sizes: Vec<u64> = files[..2]
            .iter()
            .map(|file| fs::metadata(path.join("step-3").join(file)).unwrap().len())
            .collect();
        // One of the two shared tensors, 256 bytes, an own one, and a header.
        assert!(
            sizes.iter().all(|size| (260..512).contains(size)),
            "{sizes:?}"
        );
    });
}

/// A state on meshes of these shapes, on one device for none; each tensor split as far as it goes.
fn spread(shape: &[usize]) -> StateDict {
    let place = |name: &str, tensor: &Tensor| -> Result<Tensor> {
        let spec: PartitionSpec = match (shape, name) {
            ([], _) => return Ok(tensor.clone()),
            ([_], "w" | "bools") => "x".into(),
            ([_], "halves") => ((), "x").into(),
            ([_, _], "w") => ("x", "y").into(),
            ([_, _], "bools" | "longs") => "y".into(),
            ([_, _], "halves") => ("y", "x").into(),
            _ => PartitionSpec::replicated(),
        };
        let names = &["x", "y"][..shape.len()];
        let mesh = Mesh::new(&[0, 1, 2, 3], shape, names)?;
        tensor.to_sharding(&NamedSharding::new(&mesh, spec)?)
    };
    let mut state = several();
    let placed: Vec<(String, Tensor)> = state
        .iter()
        .map(|(name, tensor)| (name.to_owned(), place(name, tensor).unwrap()))
        .collect();
    state.extend(placed);
    state
}

#[test]
fn what_one_mesh_saved_another_loads() {
    with_devices(4, || {
        let folder = tempfile::tempdir().unwrap();
        let expected = literals(&several());
        let shapes: [&[usize]; 4] = [&[4], &[2, 2], &[], &[4]];
        for (step, shapes) in (1..).zip(shapes.windows(2)) {
            let [from, to] = shapes else { continue };
            let mut checkpoints = CheckpointManager::new(folder.path());
            checkpoints.save(step, &[("state", &spread(from))]).unwrap();
            let checkpoint = Checkpoint::open(folder.path().join(format!("step-{step}"))).unwrap();
            let blocks: Vec<_> = checkpoint.get("state/w").unwrap().blocks().collect();
            match from {
                // Five rows over four devices: blocks of two, of which the last are short or empty.
                [4] => assert_eq!(blocks, [[0..2, 0..7], [2..4, 0..7], [4..5, 0..7]]),
                [2, 2] => assert_eq!(
                    blocks,
                    [[0..3, 0..4], [0..3, 4..7], [3..5, 0..4], [3..5, 4..7]]
                ),
                _ => assert_eq!(blocks, [[0..5, 0..7]]),
            }
            // Whatever there are of replicas, one is saved.
            let scalar = checkpoint.get("state/scalar").unwrap();
            assert_eq!(scalar.blocks().count(), 1);

            let target = spread(to);
            let mut restored: StateDict = target
                .iter()
                .map(|(name, tensor)| (name, tensor.zeros_like().unwrap()))
                .map(
                    |(name, zeros)| match target.get(name).unwrap().sharding().unwrap() {
                        Some(sharding) => (name, zeros.to_sharding(&sharding).unwrap()),
                        None => (name, zeros),
                    },
                )
                .collect();
            checkpoints
                .restore(step, &mut [("state", &mut restored)])
                .unwrap();
            assert_eq!(literals(&restored), expected);
            for (name, tensor) in restored.iter() {
                let like = target.get(name).unwrap();
                assert_eq!(
                    tensor.sharding().unwrap(),
                    like.sharding().unwrap(),
                    "{name}"
                );
            }
        }
    });
}
