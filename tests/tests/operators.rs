//! Values of elementwise operators and casts against closed forms and references computed on the host
//! in `f64`.

use tests::check::{close, f32s, i64s, same, values};
use xla::{DType, Result, Tensor, bf16};

/// The error function by a series whose terms are all positive, so that nothing cancels.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= 2.0 * x * x / f64::from(2 * n + 1);
        sum += term;
    }
    std::f64::consts::FRAC_2_SQRT_PI * (-x * x).exp() * sum
}

fn yes(truth: bool) -> f64 {
    f64::from(u8::from(truth))
}

type Unary = (&'static str, fn(&Tensor) -> Result<Tensor>, fn(f64) -> f64);

const UNARY: [Unary; 23] = [
    ("neg", Tensor::neg, |x| -x),
    ("exp", Tensor::exp, f64::exp),
    ("log", Tensor::log, f64::ln),
    ("log1p", Tensor::log1p, f64::ln_1p),
    ("expm1", Tensor::expm1, f64::exp_m1),
    ("sqrt", Tensor::sqrt, f64::sqrt),
    ("rsqrt", Tensor::rsqrt, |x| 1.0 / x.sqrt()),
    ("tanh", Tensor::tanh, f64::tanh),
    ("sigmoid", Tensor::sigmoid, |x| 1.0 / (1.0 + (-x).exp())),
    ("sin", Tensor::sin, f64::sin),
    ("cos", Tensor::cos, f64::cos),
    ("erf", Tensor::erf, erf),
    ("relu", Tensor::relu, |x| if x > 0.0 { x } else { 0.0 }),
    ("abs", Tensor::abs, f64::abs),
    ("sign", Tensor::sign, |x| {
        if x == 0.0 { 0.0 } else { x.signum() }
    }),
    ("floor", Tensor::floor, f64::floor),
    ("ceil", Tensor::ceil, f64::ceil),
    ("round", Tensor::round, f64::round_ties_even),
    ("square", Tensor::square, |x| x * x),
    ("reciprocal", Tensor::reciprocal, |x| 1.0 / x),
    ("isnan", Tensor::isnan, |x| yes(x.is_nan())),
    ("logical_not", Tensor::logical_not, |x| yes(x == 0.0)),
    ("copy", Tensor::copy, |x| x),
];

#[test]
fn elementwise_of_one_tensor() -> Result<()> {
    // Exact in f32, so that both dtypes compute from the same numbers.
    let points: Vec<f64> = (-24..=24).map(|i| f64::from(i) / 8.0).collect();
    let tiny = [1e-3, -1e-3].map(|x: f64| f64::from(x as f32));
    let points = [points.as_slice(), &tiny].concat();
    for (dtype, tolerance) in [(DType::F32, 3e-6), (DType::F64, 1e-13)] {
        let x = Tensor::from_slice(&points, points.len(), dtype)?;
        for (name, op, reference) in UNARY {
            let expected: Vec<f64> = points.iter().map(|&x| reference(x)).collect();
            close(name, &values(&op(&x)?)?, &expected, tolerance);
        }
    }
    Ok(())
}

#[test]
fn elementwise_near_zero_keeps_relative_precision() -> Result<()> {
    let x = f32s(&[1e-6, -1e-6, 3e-5]);
    let exact = values(&x)?;
    for (name, got, reference) in [
        ("log1p", x.log1p()?, f64::ln_1p as fn(f64) -> f64),
        ("expm1", x.expm1()?, f64::exp_m1),
        ("tanh", x.tanh()?, f64::tanh),
        ("erf", x.erf()?, erf),
    ] {
        let ratio: Vec<f64> = (values(&got)?.iter().zip(&exact))
            .map(|(g, &x)| g / reference(x))
            .collect();
        close(name, &ratio, &[1.0; 3], 1e-6);
    }
    Ok(())
}

#[test]
fn nan_and_infinity() -> Result<()> {
    let (nan, inf) = (f64::NAN, f64::INFINITY);
    let x = Tensor::from_slice(&[nan, inf, -inf, 0.0, -1.0], 5, DType::F32)?;
    for (name, op, expected) in [
        (
            "relu",
            Tensor::relu as fn(&Tensor) -> Result<Tensor>,
            [nan, inf, 0.0, 0.0, 0.0],
        ),
        ("sign", Tensor::sign, [0.0, 1.0, -1.0, 0.0, -1.0]),
        ("abs", Tensor::abs, [nan, inf, inf, 0.0, 1.0]),
        ("log", Tensor::log, [nan, inf, nan, -inf, nan]),
        ("sqrt", Tensor::sqrt, [nan, inf, nan, 0.0, nan]),
        ("rsqrt", Tensor::rsqrt, [nan, 0.0, nan, inf, nan]),
        ("exp", Tensor::exp, [nan, inf, 0.0, 1.0, (-1f64).exp()]),
        (
            "sigmoid",
            Tensor::sigmoid,
            [nan, 1.0, 0.0, 0.5, 1.0 / (1.0 + 1f64.exp())],
        ),
        ("tanh", Tensor::tanh, [nan, 1.0, -1.0, 0.0, (-1f64).tanh()]),
        ("reciprocal", Tensor::reciprocal, [nan, 0.0, 0.0, inf, -1.0]),
        ("isnan", Tensor::isnan, [1.0, 0.0, 0.0, 0.0, 0.0]),
    ] {
        close(name, &values(&op(&x)?)?, &expected, 1e-6);
    }
    let one = f32s(&[1.0; 5]);
    for (a, b) in [(&x, &one), (&one, &x)] {
        close(
            "maximum",
            &values(&a.maximum(b)?)?,
            &[nan, inf, 1.0, 1.0, 1.0],
            0.0,
        );
        close(
            "minimum",
            &values(&a.minimum(b)?)?,
            &[nan, 1.0, -inf, 0.0, -1.0],
            0.0,
        );
    }
    close(
        "clamp",
        &values(&x.clamp(Some(-0.5), Some(2))?)?,
        &[nan, 2.0, -0.5, 0.0, -0.5],
        0.0,
    );
    same(x.eq(&x), &[5], DType::Bool, &[0.0, 1.0, 1.0, 1.0, 1.0]);
    same(x.ne(&x), &[5], DType::Bool, &[1.0, 0.0, 0.0, 0.0, 0.0]);
    same(x.le(0), &[5], DType::Bool, &[0.0, 0.0, 1.0, 1.0, 1.0]);
    for reduced in [
        x.amax((), false)?,
        x.amin((), false)?,
        x.sum((), false)?,
        x.mean((), false)?,
    ] {
        assert!(reduced.item::<f32>()?.is_nan());
    }
    same(
        f32s(&[3.0, f32::NAN, 9.0]).argmax(None, false),
        &[],
        DType::I64,
        &[1.0],
    );
    same(
        f32s(&[3.0, f32::NAN, -9.0]).argmin(None, false),
        &[],
        DType::I64,
        &[1.0],
    );
    let masked = x.isnan()?.select_from(0, &x)?;
    close(
        "where",
        &values(&masked)?,
        &[0.0, inf, -inf, 0.0, -1.0],
        0.0,
    );
    Ok(())
}

#[test]
fn nan_anywhere_is_an_extreme() -> Result<()> {
    for n in [2, 5, 64, 257] {
        for at in [0, 1, n / 2, n - 1] {
            let mut data: Vec<f32> = (0..2 * n).map(|i| (i % 7) as f32).collect();
            data[at] = f32::NAN;
            let rows = Tensor::from_slice(&data, [2, n], ())?;
            let columns = rows.t()?.copy()?;
            for reduced in [
                rows.amax(1, false)?,
                rows.amin(1, false)?,
                columns.amax(0, false)?,
                columns.amin(0, false)?,
            ] {
                let nan: Vec<bool> = reduced
                    .to_vec::<f32>()?
                    .iter()
                    .map(|v| v.is_nan())
                    .collect();
                assert_eq!(nan, [true, false], "{at} of {n}");
            }
            for found in [
                rows.argmax(Some(1), false)?,
                columns.argmin(Some(0), false)?,
            ] {
                assert_eq!(found.to_vec::<i64>()?[0], at as i64);
            }
        }
    }
    Ok(())
}

#[test]
fn elementwise_of_two_tensors_broadcasts() -> Result<()> {
    let a: Vec<f64> = vec![0.5, 2.0, 3.0, 1.0, 4.0, 0.25];
    let b: Vec<f64> = vec![2.0, 0.5, -1.5];
    type Binary = (
        &'static str,
        fn(&Tensor, &Tensor) -> Result<Tensor>,
        fn(f64, f64) -> f64,
    );
    let operators: [Binary; 16] = [
        ("add", |a, b| a.add(b), |a, b| a + b),
        ("sub", |a, b| a.sub(b), |a, b| a - b),
        ("mul", |a, b| a.mul(b), |a, b| a * b),
        ("div", |a, b| a.div(b), |a, b| a / b),
        ("pow", |a, b| a.pow(b), f64::powf),
        ("maximum", |a, b| a.maximum(b), f64::max),
        ("minimum", |a, b| a.minimum(b), f64::min),
        ("eq", |a, b| a.eq(b), |a, b| yes(a == b)),
        ("ne", |a, b| a.ne(b), |a, b| yes(a != b)),
        ("lt", |a, b| a.lt(b), |a, b| yes(a < b)),
        ("le", |a, b| a.le(b), |a, b| yes(a <= b)),
        ("gt", |a, b| a.gt(b), |a, b| yes(a > b)),
        ("ge", |a, b| a.ge(b), |a, b| yes(a >= b)),
        (
            "logical_and",
            |a, b| a.floor()?.logical_and(b),
            |a, _| yes(a >= 1.0),
        ),
        ("logical_or", |a, b| a.logical_or(&b.ge(3)?), |_, _| 1.0),
        (
            "logical_xor",
            |a, b| a.logical_xor(&b.gt(0)?),
            |_, b| yes(b <= 0.0),
        ),
    ];
    for (dtype, tolerance) in [(DType::F32, 1e-6), (DType::F64, 1e-14)] {
        let x = Tensor::from_slice(&a, [2, 1, 3], dtype)?;
        let y = Tensor::from_slice(&b, [3, 1], dtype)?;
        for (name, op, reference) in operators {
            let expected: Vec<f64> = (0..18)
                .map(|i| reference(a[i / 9 * 3 + i % 3], b[i / 3 % 3]))
                .collect();
            let got = op(&x, &y)?;
            assert_eq!(got.dims(), [2, 3, 3], "{name}");
            close(name, &values(&got)?, &expected, tolerance);
        }
    }
    Ok(())
}

#[test]
fn promotion_is_pytorchs() -> Result<()> {
    use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8};
    let shaped = |d| Tensor::ones(2, d).unwrap();
    let scalar = |d| Tensor::ones((), d).unwrap();
    for (a, b, sum, quotient) in [
        (shaped(F32), shaped(F64), F64, F64),
        (shaped(F16), shaped(BF16), F32, F32),
        (shaped(I64), shaped(BF16), BF16, BF16),
        (shaped(U8), shaped(I8), I16, F32),
        (shaped(I32), shaped(I64), I64, F32),
        (shaped(Bool), shaped(U8), U8, F32),
        (shaped(Bool), shaped(Bool), Bool, F32),
        (shaped(BF16), scalar(F64), BF16, BF16),
        (scalar(F64), shaped(F32), F32, F32),
        (shaped(I8), scalar(I64), I8, F32),
        (shaped(I32), scalar(F64), F64, F64),
        (scalar(F32), scalar(F64), F64, F64),
        (scalar(I32), scalar(I64), I64, F32),
    ] {
        let what = format!("{a:?} and {b:?}");
        assert_eq!(a.add(&b)?.dtype(), sum, "{what}");
        assert_eq!(b.add(&a)?.dtype(), sum, "{what}");
        assert_eq!(a.div(&b)?.dtype(), quotient, "{what}");
        let two = if sum == Bool { 1.0 } else { 2.0 };
        close(
            &what,
            &values(&a.add(&b)?)?,
            &vec![two; a.numel().max(b.numel())],
            0.0,
        );
    }
    for (tensor, whole, fraction) in [
        (shaped(Bool), I64, F32),
        (shaped(U8), U8, F32),
        (shaped(I16), I16, F32),
        (shaped(BF16), BF16, BF16),
        (scalar(F16), F16, F16),
        (shaped(F64), F64, F64),
    ] {
        assert_eq!((&tensor + 1)?.dtype(), whole, "{tensor:?}");
        assert_eq!((&tensor + 1.5)?.dtype(), fraction, "{tensor:?}");
        close(
            "+1",
            &values(&(&tensor + 1)?)?,
            &vec![2.0; tensor.numel()],
            0.0,
        );
        close(
            "+1.5",
            &values(&(1.5 + &tensor)?)?,
            &vec![2.5; tensor.numel()],
            0.0,
        );
        assert_eq!(
            tensor.exp()?.dtype(),
            if tensor.dtype().is_float() {
                tensor.dtype()
            } else {
                F32
            }
        );
    }
    assert_eq!(shaped(Bool).select_from(1, 0.5)?.dtype(), F32);
    same(
        shaped(Bool).select_from(&shaped(U8), 7),
        &[2],
        U8,
        &[1.0, 1.0],
    );
    same(
        Tensor::cat(&[&shaped(I32), &shaped(F16)], 0),
        &[4],
        F16,
        &[1.0; 4],
    );
    Ok(())
}

#[test]
fn numbers_keep_their_precision() -> Result<()> {
    let third = 1.0 / 3.0;
    let x = Tensor::from_slice(&[3.0f64, 0.1], 2, ())?;
    assert_eq!(x.mul(third)?.to_vec::<f64>()?, [3.0 * third, 0.1 * third]);
    assert_eq!(
        Tensor::full(1, third, DType::F64)?.to_vec::<f64>()?,
        [third]
    );
    let big = (1i64 << 53) + 1;
    assert_eq!(i64s(&[0, big]).add(big)?.to_vec::<i64>()?, [big, 2 * big]);
    same(i64s(&[1, 2]).lt(1.5), &[2], DType::Bool, &[1.0, 0.0]);
    // What a number cannot be in the tensor's dtype is decided by wrapping, as in PyTorch.
    same(
        Tensor::from_slice(&[250u8], 1, ())?.add(10),
        &[1],
        DType::U8,
        &[4.0],
    );
    Ok(())
}

#[test]
fn whole_numbers_and_truth_values() -> Result<()> {
    let x = i64s(&[7, -7, 0, i64::MAX]);
    same(
        x.div(2),
        &[4],
        DType::F32,
        &[3.5, -3.5, 0.0, (i64::MAX as f32 / 2.0).into()],
    );
    assert_eq!(x.add(1)?.to_vec::<i64>()?, [8, -6, 1, i64::MIN]);
    assert_eq!(x.sub(&x)?.to_vec::<i64>()?, [0; 4]);
    assert_eq!(x.neg()?.to_vec::<i64>()?, [-7, 7, 0, -i64::MAX]);
    assert_eq!(x.abs()?.to_vec::<i64>()?, [7, 7, 0, i64::MAX]);
    assert_eq!(x.sign()?.to_vec::<i64>()?, [1, -1, 0, 1]);
    assert_eq!(x.relu()?.to_vec::<i64>()?, [7, 0, 0, i64::MAX]);
    assert_eq!(x.floor()?.to_vec::<i64>()?, [7, -7, 0, i64::MAX]);
    assert_eq!(i64s(&[3, -2]).pow(3)?.to_vec::<i64>()?, [27, -8]);
    assert_eq!(i64s(&[3, -2]).square()?.to_vec::<i64>()?, [9, 4]);
    assert_eq!(x.maximum(0)?.to_vec::<i64>()?, [7, 0, 0, i64::MAX]);
    assert_eq!(x.argmax(None, false)?.item::<i64>()?, 3);
    let u = Tensor::from_slice(&[0u8, 200], 2, ())?;
    same(u.sign(), &[2], DType::U8, &[0.0, 1.0]);
    same(u.sum((), false), &[], DType::I64, &[200.0]);
    same(u.add(&u), &[2], DType::U8, &[0.0, 144.0]);
    assert_eq!(u.amax((), false)?.item::<u8>()?, 200);
    let t = Tensor::from_slice(&[true, true, false], 3, ())?;
    let s = Tensor::from_slice(&[true, false, false], 3, ())?;
    same(t.add(&s), &[3], DType::Bool, &[1.0, 1.0, 0.0]);
    same(t.mul(&s), &[3], DType::Bool, &[1.0, 0.0, 0.0]);
    same(t.sum((), false), &[], DType::I64, &[2.0]);
    same(t.maximum(&s), &[3], DType::Bool, &[1.0, 1.0, 0.0]);
    same(t.amin((), false), &[], DType::Bool, &[0.0]);
    same(t.gt(&s), &[3], DType::Bool, &[0.0, 1.0, 0.0]);
    Ok(())
}

#[test]
fn casts() -> Result<()> {
    let x = f32s(&[1.9, -1.9, 0.0, 200.5]);
    same(
        x.to_dtype(DType::I32),
        &[4],
        DType::I32,
        &[1.0, -1.0, 0.0, 200.0],
    );
    same(
        x.to_dtype(DType::Bool),
        &[4],
        DType::Bool,
        &[1.0, 1.0, 0.0, 1.0],
    );
    same(
        f32s(&[0.25, f32::NAN]).to_dtype(DType::Bool),
        &[2],
        DType::Bool,
        &[1.0, 1.0],
    );
    same(
        i64s(&[300, -1]).to_dtype(DType::U8),
        &[2],
        DType::U8,
        &[44.0, 255.0],
    );
    same(
        i64s(&[2, 0]).to_dtype(DType::Bool),
        &[2],
        DType::Bool,
        &[1.0, 0.0],
    );
    let exact = f32s(&[1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 3.4e38]);
    let inf = f64::INFINITY;
    // Halves to even; f32's greatest numbers round to infinity in bf16 only beyond its range.
    same(
        exact.narrow(0, 0, 2)?.to_dtype(DType::BF16),
        &[2],
        DType::BF16,
        &[1.0, 1.0 + 1.0 / 64.0],
    );
    same(
        exact.narrow(0, 2, 1)?.to_dtype(DType::F16),
        &[1],
        DType::F16,
        &[inf],
    );
    for dtype in DType::ALL {
        same(i64s(&[0, 1]).to_dtype(dtype), &[2], dtype, &[0.0, 1.0]);
        same(
            Tensor::ones(2, dtype)?.add(&Tensor::zeros(2, dtype)?),
            &[2],
            dtype,
            &[1.0; 2],
        );
    }
    Ok(())
}

#[test]
fn half_precision_is_rounded_once_an_operator() -> Result<()> {
    let inputs: Vec<bf16> = (0..128)
        .map(|i| bf16::from_f32(1.0 + i as f32 / 128.0))
        .collect();
    let x = Tensor::from_slice(&inputs, 128, ())?;
    let number = 0.1f32;
    let once: Vec<bf16> = inputs
        .iter()
        .map(|v| bf16::from_f32(v.to_f32() * number))
        .collect();
    let twice: Vec<bf16> = (inputs.iter())
        .map(|v| bf16::from_f32(v.to_f32() * bf16::from_f32(number).to_f32()))
        .collect();
    assert_ne!(once, twice, "the inputs cannot tell the two apart");
    assert_eq!(x.mul(number)?.to_vec::<bf16>()?, once);
    // Each operator's result is a bf16 number, also within one program.
    let chain: Vec<bf16> = (once.iter())
        .map(|v| bf16::from_f32(v.to_f32() + 1.0))
        .collect();
    assert_eq!(x.mul(number)?.add(1.0)?.to_vec::<bf16>()?, chain);
    let ones = Tensor::ones(1000, DType::BF16)?;
    same(ones.sum((), false), &[], DType::BF16, &[1000.0]);
    same(ones.mean((), false), &[], DType::BF16, &[1.0]);
    same(
        Tensor::full(4096, 100, DType::F16)?.mean((), false),
        &[],
        DType::F16,
        &[100.0],
    );
    Ok(())
}
