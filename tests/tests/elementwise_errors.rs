//! Elementwise operators on what they have no meaning for, and the edges that no case has.

use tests::check::{f32s, i64s, same, values};
use tests::with_devices;
use xla::{DType, Error, Number, Result, RoundingMode, Tensor};

fn bools(data: &[bool]) -> Tensor {
    Tensor::from_slice(data, data.len(), ()).unwrap()
}

/// Asserts that a call fails with an error that begins so, at the line of the call.
#[track_caller]
fn refused<T>(result: Result<T>, text: &str) {
    let here = std::panic::Location::caller();
    let Err(error) = result else {
        panic!("taken: {text}");
    };
    assert!(error.to_string().starts_with(text), "{error}");
    let at = error.location().expect("a line");
    assert_eq!(at.file(), here.file(), "{error}");
    // The call may be on a line of its own, below the assertion's.
    assert!(
        (here.line()..here.line() + 3).contains(&at.line()),
        "{error}"
    );
}

#[test]
fn dtypes_without_meaning() {
    with_devices(1, || {
        let (floats, ints, truths) = (f32s(&[1.0, 2.0]), i64s(&[1, 2]), bools(&[true, false]));
        refused(truths.sub(&truths), "sub: expected an integer");
        refused(ints.sub(&truths), "sub: expected an integer");
        refused(truths.sub(1), "sub: expected an integer");
        refused(truths.pow(&truths), "pow: expected an integer");
        refused(floats.bitwise_and(&ints), "bitwise_and: expected integer");
        refused(floats.bitwise_not(), "bitwise_not: expected an integer");
        refused(truths.bitwise_left_shift(1.5), "bitwise_left_shift: exp");
        refused(
            ints.silu(),
            "silu: expected a floating-point dtype, got i64",
        );
        refused(
            ints.frac(),
            "frac: expected a floating-point dtype, got i64",
        );
        refused(ints.hypot(&ints), "hypot: expected a floating-point dtype");
        refused(ints.lerp(&ints, 0.5), "lerp: expected a floating-point");
        refused(ints.round_to(1), "round: expected a floating-point dtype");
        refused(ints.addcdiv(&ints, &ints, 1), "addcdiv: expected");
        refused(ints.addcmul(&ints, &ints, 0.5), "addcmul: expected");
        refused(ints.add_scaled(&ints, 0.5), "add: expected");
        refused(truths.floor_divide(&truths), "div: expected an integer");
    });
}

#[test]
fn arguments_without_meaning() {
    with_devices(1, || {
        let (x, row) = (f32s(&[1.0, 2.0]), f32s(&[1.0, 2.0, 3.0]));
        refused(i64s(&[2]).pow(-1), "pow: exponent: expected at least 0");
        refused(x.celu(0.0), "celu: alpha: expected a number other than 0");
        refused(x.softshrink(-1), "softshrink: lambd: expected at least 0");
        let none = None::<Number>;
        refused(x.clamp(none, none), "clamp: min, max: expected at least");
        refused(x.clamp(Some(&row), none), "clamp: shapes [2] and [3]");
        refused(x.atan2(&row), "atan2: shapes [2] and [3] do not broadcast");
        refused(
            x.lerp(&x, &row),
            "lerp: shapes [2] and [3] do not broadcast",
        );
        refused(x.addcmul(&x, &row, 1), "addcmul: shapes [2] and [3]");
    });
}

#[test]
fn in_place_forms_speak_for_themselves() {
    with_devices(1, || {
        let (x, row, ints) = (f32s(&[1.0, 2.0]), f32s(&[1.0, 2.0, 3.0]), i64s(&[3, 4]));
        refused(x.add_(&row), "add_: shapes [2] and [3] do not broadcast");
        refused(
            f32s(&[1.0]).mul_(&x),
            "mul_: expected a result of shape [1]",
        );
        let text = "add_: expected a result type that can be cast to i64, got f32";
        refused(ints.add_(0.5), text);
        refused(
            ints.div_(2),
            "div_: expected a result type that can be cast",
        );
        refused(ints.exp_(), "exp_: expected a result type that can be cast");
        refused(
            bools(&[true]).add_(1),
            "add_: expected a result type that can",
        );
        refused(
            x.bitwise_and_(&ints),
            "bitwise_and_: expected integer dtypes",
        );
        refused(x.clamp_(None::<f64>, None::<f64>), "clamp_: min, max:");
        x.requires_grad_(true).unwrap();
        assert!(matches!(x.exp_(), Err(Error::Autograd { op: "exp_", .. })));
    });
}

#[test]
fn in_place_forms_change_the_tensor() {
    with_devices(1, || {
        let ints = i64s(&[7, -7]);
        ints.div_rounded_(2, RoundingMode::Floor).unwrap();
        same(Ok(ints.clone()), &[2], DType::I64, &[3.0, -4.0]);
        ints.pow_(2).unwrap();
        same(Ok(ints.clone()), &[2], DType::I64, &[9.0, 16.0]);
        let half = f32s(&[0.0, 1.0]).to_dtype(DType::F16).unwrap();
        half.add_(&f32s(&[0.5, 0.5])).unwrap();
        same(Ok(half), &[2], DType::F16, &[0.5, 1.5]);
        let x = f32s(&[-2.0, 4.0]);
        x.clamp_min_(0)
            .and_then(|x| x.sqrt_())
            .and_then(|x| x.addcmul_(&x, &x, 0.5))
            .unwrap();
        same(Ok(x), &[2], DType::F32, &[0.0, 4.0]);
    });
}

#[test]
fn a_division_by_zero_ends_nothing() {
    with_devices(1, || {
        let (x, zero) = (i64s(&[5, -5, 0]), i64s(&[0, 0, 0]));
        for mode in [RoundingMode::Floor, RoundingMode::Trunc] {
            same(x.div_rounded(&zero, mode), &[3], DType::I64, &[-1.0; 3]);
        }
        for rest in [x.fmod(&zero), x.remainder(&zero)] {
            same(rest, &[3], DType::I64, &[5.0, -5.0, 0.0]);
        }
        let least = i64s(&[i64::MIN]);
        let quotient = least.div_rounded(-1, RoundingMode::Trunc).unwrap();
        assert_eq!(quotient.to_vec::<i64>().unwrap(), [i64::MIN]);
    });
}

#[test]
fn an_integer_exponent_is_exact_and_a_number_is_data() {
    with_devices(1, || {
        let x = f32s(&[-3.0, 0.5]);
        same(x.pow(3), &[2], DType::F32, &[-27.0, 0.125]);
        same(x.pow(-2), &[2], DType::F32, &[f64::from(1.0f32 / 9.0), 4.0]);
        let power = i64s(&[3]).pow(39).unwrap();
        assert_eq!(power.to_vec::<i64>().unwrap(), [3i64.pow(39)]);
        same(bools(&[true, false]).pow(2), &[2], DType::I64, &[1.0, 0.0]);
        x.requires_grad_(true).unwrap();
        x.pow(0)
            .unwrap()
            .sum((), false)
            .unwrap()
            .backward()
            .unwrap();
        assert_eq!(values(&x.grad().unwrap()).unwrap(), [0.0, 0.0]);
    });
}
