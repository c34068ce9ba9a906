//! Reductions, scans, sorting and search: bad input is an error at the call, and rules that a table of
//! values does not show.

use tests::check::{close, f32s, i64s, same, values};
use tests::with_devices;
use xla::{DType, Error, GradOptions, Result, Tensor};

/// The error, which must name this file's line.
#[track_caller]
fn refused<T>(result: Result<T>) -> Error {
    let caller = std::panic::Location::caller();
    let error = result.err().expect("bad input was taken");
    let found = error.location().map(|l| (l.file(), l.line()));
    assert_eq!(found, Some((caller.file(), caller.line())), "{error}");
    error
}

#[test]
fn axes_that_are_not_there() {
    with_devices(1, || {
        let x = Tensor::zeros([2, 3], ()).unwrap();
        let errors = [
            refused(x.norm(2, 2, false)),
            refused(x.prod(-3, false)),
            refused(x.logsumexp([0, 2], true)),
            refused(x.var(i64::MAX, 1, false)),
            refused(x.std_mean(2, 1, false)),
            refused(x.count_nonzero(2)),
            refused(x.max(2, false)),
            refused(x.aminmax(Some(5), false)),
            refused(x.cumsum(2)),
            refused(x.cumprod(i64::MIN)),
            refused(x.logcumsumexp(-3)),
            refused(x.cummax(2)),
            refused(x.sort(2, false)),
            refused(x.argsort(2, true)),
            refused(x.topk(1, 2, true)),
            refused(x.kthvalue(1, 2, false)),
            refused(x.median(2, false)),
            refused(x.softmax(2)),
            refused(Tensor::scalar(1.0, ()).unwrap().sort(1, false)),
        ];
        for error in errors {
            assert!(matches!(error, Error::Axis { .. }), "{error}");
        }
        let twice = refused(x.prod([0, -2], false));
        assert!(matches!(twice, Error::Argument { .. }), "{twice}");
    });
}

#[test]
fn nothing_to_choose_from() {
    with_devices(1, || {
        let x = Tensor::zeros([0, 3], ()).unwrap();
        let errors = [
            refused(x.max(0, false)),
            refused(x.min(0, true)),
            refused(x.norm(f64::INFINITY, (), false)),
            refused(x.norm(-1, 0, false)),
            refused(x.median(0, false)),
        ];
        for error in errors {
            assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
        }
        same(x.norm(2, 0, false), &[3], DType::F32, &[0.0; 3]);
        same(x.norm(f64::INFINITY, 1, false), &[0], DType::F32, &[]);
        same(x.prod(0, false), &[3], DType::F32, &[1.0; 3]);
        let minus = f64::NEG_INFINITY;
        same(x.logsumexp(0, false), &[3], DType::F32, &[minus; 3]);
        same(x.cumsum(0), &[0, 3], DType::F32, &[]);
        same(x.sort(0, true).map(|s| s.1), &[0, 3], DType::I64, &[]);
        same(x.topk(0, 1, true).map(|t| t.0), &[0, 0], DType::F32, &[]);
    });
}

#[test]
fn numbers_out_of_range() {
    with_devices(1, || {
        let x = Tensor::zeros([2, 3], ()).unwrap();
        for error in [
            refused(x.topk(4, 1, true)),
            refused(x.topk(usize::MAX, 0, true)),
            refused(x.kthvalue(0, 1, false)),
            refused(x.kthvalue(4, 1, false)),
            refused(Tensor::scalar(1.0, ()).unwrap().topk(2, 0, true)),
            refused(x.norm(f64::NAN, 1, false)),
        ] {
            assert!(matches!(error, Error::Argument { .. }), "{error}");
        }
    });
}

#[test]
fn dtypes_and_shapes_without_meaning() {
    with_devices(1, || {
        let whole = i64s(&[1, 2]);
        let truth = whole.gt(1).unwrap();
        for error in [
            refused(whole.var(0, 1, false)),
            refused(whole.std(0, 1, false)),
            refused(whole.norm(2, 0, false)),
            refused(whole.nanmean((), false)),
            refused(whole.logcumsumexp(0)),
            refused(truth.median(0, false)),
            refused(truth.searchsorted(&truth, false)),
        ] {
            assert!(matches!(error, Error::DTypeMismatch { .. }), "{error}");
        }
        let rows = Tensor::zeros([2, 3], ()).unwrap();
        let row = f32s(&[1.0]);
        for error in [
            refused(rows.searchsorted(&row, false)),
            refused(rows.searchsorted(1.0, false)),
            refused(Tensor::scalar(1.0, ()).unwrap().searchsorted(&row, true)),
            refused(row.bucketize(&rows, false)),
        ] {
            assert!(matches!(error, Error::ShapeMismatch { .. }), "{error}");
        }
    });
}

/// `d/dx` of the sum of the squares of `dy/dx`, against the closed form for a product of three:
/// with `u = (bc, ac, ab)`, the derivative by `a` is `2ac * c + 2ab * b`.
#[test]
fn products_have_second_derivatives_at_zeros() -> Result<()> {
    let numbers = [[2.0f32, 0.0, 3.0], [0.0, 0.0, 5.0]];
    for [a, b, c] in numbers {
        for running in [false, true] {
            let x = f32s(&[a, b, c]).requires_grad_(true)?;
            let y = match running {
                true => x.cumprod(0)?.select(0, 2)?,
                false => x.prod((), false)?,
            };
            let options = GradOptions {
                create_graph: true,
                ..Default::default()
            };
            let slope = xla::grad(&[&y], &[&x], options)?;
            let slope = slope.into_iter().flatten().next().expect("a gradient");
            let first = [b * c, a * c, a * b].map(f64::from);
            close("first", &values(&slope)?, &first, 1e-6);
            slope.square()?.sum((), false)?.backward()?;
            let second = [
                a * (b * b + c * c),
                b * (a * a + c * c),
                c * (a * a + b * b),
            ];
            let second = second.map(|s| 2.0 * f64::from(s));
            close(
                "second",
                &values(&x.grad().expect("a gradient"))?,
                &second,
                1e-5,
            );
        }
    }
    Ok(())
}

/// Lengths around the powers of two that a scan steps by, from both ends (the gradient's).
#[test]
fn scans_of_any_length() -> Result<()> {
    for n in [1usize, 2, 3, 7, 8, 9, 100] {
        let data: Vec<i64> = (0..n as i64).map(|i| i * i % 7 - 3).collect();
        let mut sum = 0;
        let sums: Vec<f64> = data
            .iter()
            .map(|v| {
                sum += v;
                sum as f64
            })
            .collect();
        same(i64s(&data).cumsum(0), &[n], DType::I64, &sums);
        let x = Tensor::zeros([n], DType::F64)?.requires_grad_(true)?;
        x.cumsum(-1)?.sum((), false)?.backward()?;
        let counts: Vec<f64> = (0..n).map(|i| (n - i) as f64).collect();
        close(
            "gradient",
            &values(&x.grad().expect("a gradient"))?,
            &counts,
            0.0,
        );
    }
    Ok(())
}
