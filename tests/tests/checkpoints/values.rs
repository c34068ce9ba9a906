//! What was saved is what is loaded.

use crate::{literals, names, several};
use std::fs;
use tests::check::{f32s, i64s, values};
use tests::with_devices;
use xla::nn::state::Checkpoint;
use xla::nn::{Linear, Module, StateDict};
use xla::{DType, Error, Literal, Tensor};

#[test]
fn every_dtype_and_shape_comes_back_bit_for_bit() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let state = several();
        Checkpoint::save(&path, &state).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let loaded = checkpoint.load(()).unwrap();
        assert_eq!(literals(&loaded), literals(&state));
        assert_eq!(loaded.metadata()["epoch"], "3");
        let half = checkpoint.load(DType::F16).unwrap();
        assert_eq!(half.get("w").unwrap().dtype(), DType::F16);
        assert_eq!(half.get("longs").unwrap().dtype(), DType::I64);

        // Any block, of which the values are known.
        let block = checkpoint.read_block("w", &[1..4, 2..5]).unwrap();
        let expected: Vec<f32> = (1..4)
            .flat_map(|r| (2..5).map(move |c| (7 * r + c) as f32))
            .collect();
        assert_eq!(block, Literal::from_vec(expected, [3, 3]).unwrap());
        for bad in [vec![0..6, 0..7], vec![0..5; 1], vec![0..1; 3]] {
            let error = checkpoint.read_block("w", &bad).unwrap_err();
            assert!(matches!(error, Error::Argument { .. }), "{error}");
        }
        assert!(
            checkpoint
                .read("v")
                .unwrap_err()
                .to_string()
                .contains("missing: v")
        );

        // One of the name is replaced, something else is not.
        Checkpoint::save(&path, &StateDict::from_iter([("x", f32s(&[1.0]))])).unwrap();
        assert_eq!(Checkpoint::open(&path).unwrap().tensors().count(), 1);
        let foreign = folder.path().join("foreign");
        fs::create_dir(&foreign).unwrap();
        fs::write(foreign.join("index.json"), "{}").unwrap();
        let error = Checkpoint::save(&foreign, &state).unwrap_err();
        assert!(matches!(error, Error::FileFormat { .. }), "{error}");
        assert_eq!(names(folder.path()), ["foreign", "saved"]);
        assert_eq!(names(&foreign), ["index.json"]);
    });
}

#[test]
fn large_tensors_are_written_in_pieces_and_read_across_them() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("large");
        // 160 MiB: more than one piece, of which each is more than a file's worth.
        let (rows, columns) = (5 * 1024, 8 * 1024);
        let data: Vec<f32> = (0..rows * columns).map(|i| (i % 9973) as f32).collect();
        let large = Tensor::from_vec(data, [rows, columns], ()).unwrap();
        Checkpoint::save(&path, &StateDict::from_iter([("large", large)])).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let pieces = checkpoint.get("large").unwrap().blocks().count();
        assert!(pieces > 1, "{pieces}");
        // A column goes across all pieces, rows across a border, and many bytes lie between.
        for block in [
            [0..rows, 4099..4101],
            [4000..4200, 0..columns],
            [1..2, 3..4],
        ] {
            let expected: Vec<f32> = block[0]
                .clone()
                .flat_map(|r| {
                    block[1]
                        .clone()
                        .map(move |c| ((r * columns + c) % 9973) as f32)
                })
                .collect();
            let dims = [block[0].len(), block[1].len()];
            let read = checkpoint.read_block("large", &block).unwrap();
            assert!(
                read == Literal::from_vec(expected, dims).unwrap(),
                "{block:?}"
            );
        }
    });
}

#[test]
fn values_are_loaded_in_place_or_nothing_is() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("saved");
        let model = Linear::new(3, 2, ()).unwrap();
        Checkpoint::save(&path, &model.state_dict().unwrap()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let other = Linear::new(3, 2, ()).unwrap();
        let weight = other.weight().clone();
        let keys = checkpoint
            .load_into(&other.state_dict().unwrap(), true)
            .unwrap();
        assert_eq!(keys, Default::default());
        assert_eq!(
            weight.to_vec::<f32>().unwrap(),
            model.weight().to_vec::<f32>().unwrap()
        );
        assert!(weight.requires_grad() && weight.is_leaf());

        let into = StateDict::from_iter([
            ("weight", f32s(&[7.0, 7.0])),
            ("bias", i64s(&[7, 7])),
            ("scale", f32s(&[7.0])),
        ]);
        let line = line!() + 1;
        let error = checkpoint.load_into(&into, true).unwrap_err();
        assert_eq!(error.location().map(|l| l.line()), Some(line));
        for part in [
            "missing: scale",
            "weight: expected shape [2], got [2, 3]",
            "bias: expected dtype i64, got f32",
        ] {
            assert!(error.to_string().contains(part), "{error}");
        }
        assert!(
            into.iter()
                .all(|(_, tensor)| values(tensor).unwrap().iter().all(|v| *v == 7.0))
        );
    });
}
