//! Bad input: the right error, with operator, shapes and dtypes, at the caller's own line.

use tests::{with_devices, with_env};
use xla::{DType, Error, Generator, Launcher, Literal, Result, Tensor, nn};

/// The error of an expression that is written on this line, after a check that it says so.
macro_rules! fails {
    ($call:expr) => {
        at_line(($call).map(|_| ()), line!())
    };
}

#[track_caller]
fn at_line(result: Result<()>, line: u32) -> Error {
    let error = result.expect_err("bad input was taken");
    let location = error
        .location()
        .unwrap_or_else(|| panic!("no line: {error}"));
    assert_eq!(
        (location.file(), location.line()),
        (file!(), line),
        "{error}"
    );
    let text = error.to_string();
    assert!(text.contains(&format!("{}:{line}:", file!())), "{text}");
    error
}

macro_rules! assert_is {
    ($error:expr, $pattern:pat $(if $guard:expr)?) => {{
        let error = $error;
        assert!(matches!(&error, $pattern $(if $guard)?), "{error:?}");
    }};
}

fn f32s(dims: &[usize]) -> Tensor {
    Tensor::zeros(dims, ()).unwrap()
}

fn i64s(data: &[i64]) -> Tensor {
    Tensor::from_slice(data, data.len(), ()).unwrap()
}

#[test]
fn shapes_that_do_not_fit() {
    let (a, b) = (f32s(&[2, 3]), f32s(&[4]));
    for error in [
        fails!(a.add(&b)),
        fails!(&a + &b),
        fails!(Tensor::add(&a, &b)),
        fails!(a.maximum(&b)),
        fails!(a.lt(&b)),
        fails!(a.gt(0).unwrap().select_from(&a, &b)),
        fails!(a.add_(&b)),
        fails!(a.where_(&a.gt(0).unwrap(), &b)),
    ] {
        match &error {
            Error::Broadcast { left, right, .. } => {
                assert_eq!(
                    (left.as_slice(), right.as_slice()),
                    (&[2usize, 3][..], &[4usize][..])
                );
            }
            other => panic!("{other:?}"),
        }
    }
    assert_is!(fails!(a.add(&b)), Error::Broadcast { op: "add", .. });
    let row = f32s(&[3]);
    assert_is!(fails!(row.add_(&a)), Error::ShapeMismatch { op: "add_", got, .. } if got == "[2, 3]");
    assert_is!(fails!(a.matmul(&a)), Error::ShapeMismatch { op: "matmul", got, .. } if got == "[2, 3] x [2, 3]");
    assert_is!(
        fails!(a.matmul(&f32s(&[]))),
        Error::ShapeMismatch { op: "matmul", .. }
    );
    assert_is!(
        fails!(f32s(&[2, 1, 3]).matmul(&f32s(&[4, 3, 1]))),
        Error::Broadcast { op: "matmul", .. }
    );
    assert_is!(
        fails!(row.matmul(&b)),
        Error::ShapeMismatch { op: "matmul", .. }
    );
    assert_is!(
        fails!(a.reshape([4])),
        Error::ShapeMismatch { op: "reshape", .. }
    );
    assert_is!(
        fails!(a.reshape([-1, 4])),
        Error::ShapeMismatch { op: "reshape", .. }
    );
    assert_is!(
        fails!(a.reshape([-1, -1])),
        Error::ShapeMismatch { op: "reshape", .. }
    );
    assert_is!(
        fails!(a.t().unwrap().view(6)),
        Error::ShapeMismatch { op: "view", .. }
    );
    assert_is!(
        fails!(a.expand([2, 4])),
        Error::ShapeMismatch { op: "expand", .. }
    );
    assert_is!(
        fails!(a.expand([3])),
        Error::ShapeMismatch { op: "expand", .. }
    );
    assert_is!(
        fails!(a.sum_to_size(b.shape())),
        Error::ShapeMismatch {
            op: "sum_to_size",
            ..
        }
    );
    assert_is!(
        fails!(Tensor::cat(&[&a, &row], 0)),
        Error::ShapeMismatch { op: "cat", .. }
    );
    assert_is!(
        fails!(Tensor::stack(&[&row, &b], 0)),
        Error::ShapeMismatch { op: "stack", .. }
    );
    assert_is!(
        fails!(f32s(&[0]).amax((), false)),
        Error::ShapeMismatch { op: "amax", .. }
    );
    assert_is!(
        fails!(f32s(&[0]).argmin(None, false)),
        Error::ShapeMismatch { op: "argmin", .. }
    );
    assert_is!(
        fails!(a.item::<f32>()),
        Error::ShapeMismatch { op: "item", .. }
    );
    assert_is!(fails!(a.copy_(&b)), Error::ShapeMismatch { .. });
    assert_is!(
        fails!(a.set_data(&b)),
        Error::ShapeMismatch { op: "set_data", .. }
    );
    assert_is!(
        fails!(f32s(&[1, 1, 1]).t()),
        Error::ShapeMismatch { op: "t", .. }
    );
    assert_is!(
        fails!(Tensor::from_slice(&[1.0f32], [2], ())),
        Error::ShapeMismatch { .. }
    );
    assert_is!(
        fails!(Tensor::from_vec(vec![1i64; 3], [2, 2], ())),
        Error::ShapeMismatch { .. }
    );
    let w = f32s(&[2]).requires_grad_(true).unwrap();
    assert_is!(
        fails!(w.exp().unwrap().backward()),
        Error::ShapeMismatch { op: "backward", .. }
    );
}

#[test]
fn axes_that_do_not_exist() {
    let x = f32s(&[2, 3]);
    for (error, name) in [
        (fails!(x.sum(2, false)), "sum"),
        (fails!(x.mean([0, -3], true)), "mean"),
        (fails!(x.amax(7, false)), "amax"),
        (fails!(x.argmax(Some(2), false)), "argmax"),
        (fails!(x.all(2, false)), "all"),
        (fails!(x.softmax(2)), "softmax"),
        (fails!(x.log_softmax(-3)), "log_softmax"),
        (fails!(x.transpose(0, 2)), "transpose"),
        (fails!(x.permute([0, 2])), "permute"),
        (fails!(x.narrow(2, 0, 1)), "narrow"),
        (fails!(x.slice(-3, 0, 1, 1)), "slice"),
        (fails!(x.select(2, 0)), "select"),
        (fails!(x.squeeze(2)), "squeeze"),
        (fails!(x.flatten(0, 2)), "flatten"),
        (fails!(x.size(2)), "size"),
        (fails!(x.index_select(2, &i64s(&[0]))), "index_select"),
        (fails!(x.gather(2, &i64s(&[0]))), "gather"),
        (fails!(Tensor::cat(&[&x], 2)), "cat"),
    ] {
        assert_is!(&error, Error::Axis { op, rank: 2, .. } if *op == name);
    }
    assert_is!(
        fails!(x.unsqueeze(3)),
        Error::Axis {
            op: "unsqueeze",
            axis: 3,
            ..
        }
    );
    assert_is!(
        fails!(x.sum([0, 0], false)),
        Error::Argument { op: "sum", .. }
    );
    assert_is!(
        fails!(x.permute([0, 0])),
        Error::Argument { op: "permute", .. }
    );
    assert_is!(
        fails!(x.permute([0])),
        Error::Argument { op: "permute", .. }
    );
    assert_is!(
        fails!(f32s(&[]).softmax(3)),
        Error::Axis { op: "softmax", .. }
    );
    assert_is!(
        fails!(f32s(&[]).argmax(Some(3), false)),
        Error::Axis { op: "argmax", .. }
    );
    assert_is!(
        fails!(f32s(&[]).flatten(0, 3)),
        Error::Axis { op: "flatten", .. }
    );
}

#[test]
fn dtypes_without_meaning() {
    let (x, n, t) = (
        f32s(&[2]),
        i64s(&[0, 1]),
        Tensor::ones(2, DType::Bool).unwrap(),
    );
    for (error, name, dtype) in [
        (fails!(n.mean((), false)), "mean", DType::I64),
        (fails!(t.sub(&t)), "sub", DType::Bool),
        (fails!(&t - &t), "sub", DType::Bool),
        (fails!(t.neg()), "neg", DType::Bool),
        (fails!(t.relu()), "relu", DType::Bool),
        (fails!(t.argmax(None, false)), "argmax", DType::Bool),
        (fails!(t.matmul(&t)), "matmul", DType::Bool),
        (fails!(x.matmul(&n)), "matmul", DType::I64),
        (fails!(x.select_from(&x, &x)), "where", DType::F32),
        (fails!(x.index_select(0, &x)), "index_select", DType::F32),
        (fails!(x.gather(0, &t)), "gather", DType::Bool),
        (fails!(x.one_hot(None)), "one_hot", DType::F32),
        (fails!(n.add_(0.5)), "add_", DType::F32),
        (fails!(t.mul_(&n)), "mul_", DType::I64),
        (fails!(x.set_data(&n)), "set_data", DType::I64),
        (fails!(x.to_vec::<f64>()), "to_vec", DType::F32),
        (fails!(x.to_array::<i64>()), "to_array", DType::F32),
        (fails!(n.requires_grad_(true)), "requires_grad_", DType::I64),
        (fails!(Tensor::rand(2, DType::I64)), "rand", DType::I64),
        (fails!(Tensor::randn(2, DType::Bool)), "randn", DType::Bool),
    ] {
        assert_is!(&error, Error::DTypeMismatch { op, got, .. } if *op == name && *got == dtype);
    }
}

#[test]
fn arguments_without_meaning() {
    let x = f32s(&[2, 2]);
    for (error, name) in [
        (fails!(Tensor::arange(0, 5, 0, ())), "arange"),
        (fails!(Tensor::arange(0, 5, -1, ())), "arange"),
        (fails!(Tensor::arange(0, f64::NAN, 1, ())), "arange"),
        (fails!(Tensor::zeros([-1], ())), "zeros"),
        (fails!(Tensor::full([2, -1], 0.5, ())), "full"),
        (fails!(Tensor::rand([-1], ())), "rand"),
        (fails!(x.reshape([2, -2])), "reshape"),
        (fails!(x.expand([-1, -1, -1])), "expand"),
        (fails!(x.slice(0, 0, 2, 0)), "slice"),
        (fails!(x.flatten(1, 0)), "flatten"),
        (fails!(x.clamp(None::<f64>, None::<f64>)), "clamp"),
        (fails!(Tensor::cat(&[], 0)), "cat"),
        (
            fails!(x.narrow(0, 0, 1).unwrap().expand([2, 2]).unwrap().zero_()),
            "expand",
        ),
    ] {
        assert_is!(&error, Error::Argument { op, .. } if *op == name);
    }
    let state = Generator::from_state(&[1, 2, 3], x.device()).map(|_| ());
    assert_is!(
        state.unwrap_err(),
        Error::Argument {
            op: "Generator",
            ..
        }
    );
}

#[test]
fn indices_out_of_range() {
    let x = f32s(&[3, 2]);
    for (error, name, wrong, length) in [
        (
            fails!(x.index_select(0, &i64s(&[0, 3]))),
            "index_select",
            3,
            3,
        ),
        (
            fails!(x.index_select(1, &i64s(&[0, -1]))),
            "index_select",
            -1,
            2,
        ),
        (
            fails!(x.gather(0, &i64s(&[5, 1]).unsqueeze(1).unwrap())),
            "gather",
            5,
            3,
        ),
        (fails!(i64s(&[4]).one_hot(Some(4))), "one_hot", 4, 4),
        (fails!(i64s(&[-2, 1]).one_hot(None)), "one_hot", -2, 2),
        (fails!(x.narrow(0, 2, 2)), "narrow", 3, 3),
        (fails!(x.narrow(0, -4, 1)), "narrow", -4, 3),
        (fails!(x.select(0, 3)), "select", 3, 3),
        (fails!(x.select(1, -3)), "select", -3, 2),
        // The range is kept by views and casts.
        (
            fails!(x.index_select(0, &i64s(&[0, 7]).to_dtype(DType::I32).unwrap())),
            "index_select",
            7,
            3,
        ),
        (
            fails!(x.index_select(0, &i64s(&[0, 7]).reshape([2]).unwrap())),
            "index_select",
            7,
            3,
        ),
        (
            fails!(x.index_select(0, &Tensor::arange(0, 4, 1, ()).unwrap())),
            "index_select",
            3,
            3,
        ),
    ] {
        assert_is!(&error, Error::IndexOutOfRange { op, index, size, .. } if *op == name && *index == wrong && *size == length);
    }
    assert_is!(
        fails!(x.index_select(0, &i64s(&[0]).reshape([1, 1]).unwrap())),
        Error::ShapeMismatch {
            op: "index_select",
            ..
        }
    );
    assert_is!(
        fails!(x.gather(0, &i64s(&[0]))),
        Error::ShapeMismatch { op: "gather", .. }
    );
    // An in-place change ends what is known of the range.
    let rows = i64s(&[0, 7]);
    rows.sub_(5).unwrap();
    rows.add_(&i64s(&[5, 0])).unwrap();
    assert_eq!(
        x.index_select(0, &rows).unwrap().to_vec::<f32>().unwrap(),
        [0.0; 4]
    );
    let good = i64s(&[0, 1]);
    good.add_(10).unwrap();
    assert!(
        x.index_select(0, &good)
            .unwrap()
            .to_vec::<f32>()
            .unwrap()
            .iter()
            .all(|v| v.is_nan())
    );
}

#[test]
fn labels_that_are_no_classes() {
    let logits = f32s(&[2, 3]);
    let error = fails!(nn::cross_entropy(&logits, &i64s(&[0, 3])));
    assert_is!(
        error,
        Error::IndexOutOfRange {
            op: "cross_entropy",
            index: 3,
            size: 3,
            ..
        }
    );
    let error = fails!(nn::cross_entropy(&logits, &i64s(&[-1, 0])));
    assert_is!(
        error,
        Error::IndexOutOfRange {
            op: "cross_entropy",
            index: -1,
            ..
        }
    );
    let error = fails!(nn::cross_entropy(&logits, &i64s(&[0])));
    assert_is!(
        error,
        Error::ShapeMismatch {
            op: "cross_entropy",
            ..
        }
    );
    let error = fails!(nn::cross_entropy(&logits, &f32s(&[2])));
    assert_is!(
        error,
        Error::DTypeMismatch {
            op: "cross_entropy",
            got: DType::F32,
            ..
        }
    );
    let computed = i64s(&[0, 2]).add(1).unwrap();
    let loss = nn::cross_entropy(&logits, &computed).unwrap();
    assert!(loss.item::<f32>().unwrap().is_nan());
}

#[test]
fn tensors_of_two_devices() {
    with_devices(2, || {
        let [first, second] = [0, 1].map(|i| xla::device_at(i).unwrap());
        let (a, b) = (
            Tensor::ones(2, first).unwrap(),
            Tensor::ones(2, second).unwrap(),
        );
        for (error, name) in [
            (fails!(a.add(&b)), "add"),
            (fails!(&a * &b), "mul"),
            (fails!(a.matmul(&b)), "matmul"),
            (fails!(Tensor::cat(&[&a, &b], 0)), "cat"),
            (fails!(a.add_(&b)), "add_"),
            (fails!(a.gt(0).unwrap().select_from(&a, &b)), "where"),
        ] {
            assert_is!(&error, Error::DeviceMismatch { op, left, right, .. } if *op == name && *left == first && *right == second);
        }
        let moved = a.to(second).unwrap();
        assert_eq!(moved.add(&b).unwrap().to_vec::<f32>().unwrap(), [2.0; 2]);
    });
}

#[test]
fn devices_that_do_not_exist() {
    with_devices(2, || {
        assert_is!(
            xla::device_at(10).unwrap_err(),
            Error::NoSuchDevice {
                asked: 10,
                count: 2
            }
        );
        let missing = xla::Device::new(10);
        let made = Tensor::zeros(2, missing).and_then(|x| x.to_vec::<f32>());
        assert_is!(
            made.unwrap_err(),
            Error::NoSuchDevice {
                asked: 10,
                count: 2
            }
        );
        let sent = Tensor::from_slice(&[1.0f32], 1, missing).map(|_| ());
        assert_is!(
            sent.unwrap_err(),
            Error::NoSuchDevice {
                asked: 10,
                count: 2
            }
        );
        let moved = Tensor::zeros(2, ()).unwrap().to(missing).map(|_| ());
        assert_is!(
            moved.unwrap_err(),
            Error::NoSuchDevice {
                asked: 10,
                count: 2
            }
        );
        // None of this harms what comes after.
        assert_eq!(Tensor::ones(1, ()).unwrap().item::<f32>().unwrap(), 1.0);
    });
}

#[test]
fn an_unknown_kind_of_device() {
    with_env(&[("PJRT_DEVICE", "ABACUS")], || {
        for result in [
            xla::device_at(0).map(|_| ()),
            Tensor::zeros(1, ())
                .and_then(|x| x.to_vec::<f32>())
                .map(|_| ()),
            xla::real_devices().map(|_| ()),
        ] {
            assert_is!(result.unwrap_err(), Error::Config { name: "PJRT_DEVICE", got, .. } if got == "ABACUS");
        }
    });
}

#[test]
fn files_that_are_no_plugins() {
    let text = concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml");
    with_env(&[("PJRT_LIBRARY_PATH", text)], || {
        let error = xla::devices().unwrap_err();
        assert_is!(&error, Error::PluginInvalid { path, .. } if path.to_str() == Some(text));
        let again = Launcher::new().run(|_| xla::device_count()).map(|_| ());
        assert_is!(again.unwrap_err(), Error::PluginInvalid { .. });
    });
}

#[test]
fn a_plugin_that_is_not_there() {
    with_env(&[("PJRT_LIBRARY_PATH", "/no/such/plugin.so")], || {
        let error = xla::devices().unwrap_err();
        assert!(error.to_string().contains("/no/such/plugin.so"), "{error}");
    });
}

#[test]
fn a_number_that_is_no_count_of_devices() {
    with_env(&[("CPU_NUM_DEVICES", "many")], || {
        let error = xla::devices().unwrap_err();
        assert_is!(error, Error::Config { name: "CPU_NUM_DEVICES", got, .. } if got == "many");
    });
}

#[test]
fn a_failed_operator_leaves_no_trace() -> Result<()> {
    let x = Tensor::from_literal(Literal::from_vec(vec![1.0f32, 2.0], [2])?, ())?;
    let y = x.add(1)?;
    for _ in 0..3 {
        assert!(
            y.add(&f32s(&[3])).is_err()
                && y.sum(4, false).is_err()
                && y.mul_(&f32s(&[2, 2])).is_err()
        );
    }
    assert_eq!(y.to_vec::<f32>()?, [2.0, 3.0]);
    assert_eq!(y.version(), 0);
    Ok(())
}
