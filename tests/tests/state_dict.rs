//! A module's state, in memory and in files.

use std::path::{Path, PathBuf};
use tests::check::{counted, f32s, values};
use tests::with_devices;
use xla::nn::{Linear, Module, Relu, Sequential, StateDict};
use xla::{DType, Error, Tensor, optim};

fn model() -> Sequential {
    Sequential::new()
        .add(Linear::new(3, 2, ()).unwrap())
        .add(Relu)
        .add(Linear::new(2, 1, ()).unwrap())
}

fn same_values(a: &StateDict, b: &StateDict) -> bool {
    let all = |s: &StateDict| -> Vec<(String, Vec<f64>)> {
        s.iter()
            .map(|(n, t)| (n.to_owned(), values(t).unwrap()))
            .collect()
    };
    all(a) == all(b)
}

fn pytorch_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data/modules/dtypes.safetensors")
}

#[test]
fn loading_takes_over_values_in_place() {
    with_devices(1, || {
        let (from, to) = (model(), model());
        // The optimizer holds the parameters themselves: they must stay the same tensors.
        let mut optimizer = optim::Sgd::new(to.parameters(), 1.0);
        let ids = |m: &Sequential| -> Vec<usize> {
            m.parameters().iter().map(Tensor::storage_id).collect()
        };
        let before = ids(&to);
        let keys = to
            .load_state_dict(&from.state_dict().unwrap(), true)
            .unwrap();
        assert_eq!(keys, Default::default());
        assert_eq!(ids(&to), before);
        assert!(same_values(
            &from.state_dict().unwrap(),
            &to.state_dict().unwrap()
        ));
        assert!(
            to.parameters()
                .iter()
                .all(|p| p.requires_grad() && p.is_leaf())
        );

        // What one model learns then is not seen in the other.
        to.forward(&counted(&[4, 3]))
            .unwrap()
            .sum((), false)
            .unwrap()
            .backward()
            .unwrap();
        optimizer.step().unwrap();
        assert!(!same_values(
            &from.state_dict().unwrap(),
            &to.state_dict().unwrap()
        ));

        // Values are converted.
        let half = Linear::new(2, 1, DType::BF16).unwrap();
        let state = StateDict::from_iter([
            (
                "weight",
                Tensor::from_slice(&[1i64, 2], [1, 2], ()).unwrap(),
            ),
            ("bias", f32s(&[0.5])),
        ]);
        half.load_state_dict(&state, true).unwrap();
        assert_eq!(half.weight().dtype(), DType::BF16);
        assert_eq!(values(half.weight()).unwrap(), [1.0, 2.0]);
    });
}

#[test]
fn all_that_does_not_fit_is_said_and_nothing_changed() {
    with_devices(1, || {
        let model = model();
        let original: Vec<Vec<f64>> = model
            .parameters()
            .iter()
            .map(|p| values(p).unwrap())
            .collect();
        let mut state = model.state_dict().unwrap();
        state.insert("0.weight", counted(&[3, 2]));
        state.insert("0.bias", f32s(&[7.0, 7.0]));
        state.remove("2.bias");
        state.remove("2.weight");
        state.insert("1.weight", f32s(&[0.0]));
        let line = line!() + 1;
        let error = model.load_state_dict(&state, true).unwrap_err();
        assert_eq!(error.location().map(|l| l.line()), Some(line));
        let text = error.to_string();
        for part in [
            "missing: 2.weight, 2.bias",
            "unexpected: 1.weight",
            "0.weight: expected shape [2, 3], got [3, 2]",
        ] {
            assert!(text.contains(part), "{text}");
        }
        // A shape that differs is an error also where keys may.
        let error = model.load_state_dict(&state, false).unwrap_err();
        let Error::StateDict {
            missing,
            unexpected,
            mismatched,
            ..
        } = &error
        else {
            panic!("{error}");
        };
        assert!(missing.is_empty() && unexpected.is_empty());
        assert_eq!(mismatched[0].key, "0.weight");
        for (parameter, original) in model.parameters().iter().zip(&original) {
            assert_eq!(&values(parameter).unwrap(), original);
        }

        state.remove("0.weight");
        let keys = model.load_state_dict(&state, false).unwrap();
        assert_eq!(keys.missing, ["0.weight", "2.weight", "2.bias"]);
        assert_eq!(keys.unexpected, ["1.weight"]);
        assert_eq!(values(&model.parameters()[1]).unwrap(), [7.0, 7.0]);
    });
}

#[test]
fn a_file_of_pytorch_is_read_and_written_alike() {
    with_devices(1, || {
        let state = StateDict::load(pytorch_file(), ()).unwrap();
        let dtypes = [
            ("int8", DType::I8),
            ("int16", DType::I16),
            ("int32", DType::I32),
            ("int64", DType::I64),
            ("uint8", DType::U8),
            ("uint16", DType::U16),
            ("uint32", DType::U32),
            ("uint64", DType::U64),
            ("float16", DType::F16),
            ("bfloat16", DType::BF16),
            ("float32", DType::F32),
            ("float64", DType::F64),
        ];
        assert_eq!(state.len(), dtypes.len() + 3);
        let check = |state: &StateDict| {
            for (name, dtype) in dtypes {
                let tensor = state.get(name).unwrap();
                assert_eq!((tensor.dtype(), tensor.dims()), (dtype, &[3][..]));
                assert_eq!(values(tensor).unwrap(), [1.0, 2.0, 100.0], "{name}");
            }
            let bools = state.get("bool").unwrap();
            assert_eq!(bools.to_vec::<bool>().unwrap(), [true, false, false, true]);
            let scalar = state.get("scalar").unwrap();
            assert_eq!((scalar.rank(), scalar.item::<f32>().unwrap()), (0, -0.5));
            assert_eq!(state.get("empty").unwrap().dims(), [2, 0]);
            assert_eq!(state.metadata()["epoch"], "3");
        };
        check(&state);

        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.safetensors");
        std::fs::write(&path, "an older file").unwrap();
        state.save(&path).unwrap();
        check(&StateDict::load(&path, ()).unwrap());
        // Byte for byte what PyTorch wrote, but for the order of the metadata in the header.
        let header = |path: &Path| {
            let bytes = std::fs::read(path).unwrap();
            let end = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let text: serde_json::Value = serde_json::from_slice(&bytes[8..end]).unwrap();
            (text, bytes[end..].to_vec())
        };
        assert_eq!(header(&path), header(&pytorch_file()));
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, 1, "the temporary file is gone");

        let narrow = StateDict::load(&path, DType::F16).unwrap();
        assert_eq!(narrow.get("float64").unwrap().dtype(), DType::F16);
        assert_eq!(narrow.get("int64").unwrap().dtype(), DType::I64);
    });
}

#[test]
fn a_file_that_is_none_is_a_typed_error() {
    with_devices(1, || {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bad.safetensors");
        let whole = std::fs::read(pytorch_file()).unwrap();
        for end in [0, 7, 8, 100, whole.len() - 1] {
            std::fs::write(&path, &whole[..end]).unwrap();
            let error = StateDict::load(&path, ()).unwrap_err();
            assert!(matches!(error, Error::FileFormat { .. }), "{end}: {error}");
        }
        for bytes in [
            b"\xff\xff\xff\xff\xff\xff\xff\xff{}".to_vec(),
            b"PK\x03\x04 a zip archive, as torch.save writes".to_vec(),
            file(
                r#"{"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}}"#,
                &[1, 2],
            ),
            file(
                r#"{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}"#,
                &[1, 2],
            ),
            file(
                r#"{"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,4]}}"#,
                &[0; 4],
            ),
        ] {
            std::fs::write(&path, &bytes).unwrap();
            let error = StateDict::load(&path, ()).unwrap_err();
            assert!(matches!(error, Error::FileFormat { .. }), "{error}");
        }
        let missing = folder.path().join("missing.safetensors");
        assert!(matches!(
            StateDict::load(&missing, ()),
            Err(Error::Io { .. })
        ));
        let nowhere = folder.path().join("no/folder.safetensors");
        let error = model().state_dict().unwrap().save(nowhere).unwrap_err();
        assert!(matches!(error, Error::Io { .. }), "{error}");
    });
}

fn file(header: &str, data: &[u8]) -> Vec<u8> {
    [
        &(header.len() as u64).to_le_bytes(),
        header.as_bytes(),
        data,
    ]
    .concat()
}
