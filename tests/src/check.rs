//! Comparing tensors with values from outside.

use xla::{DType, Result, Tensor};

/// The elements as `f64`, converted on the host.
///
/// # Errors
/// The error of computing them.
pub fn values(x: &Tensor) -> Result<Vec<f64>> {
    x.to_literal()?.cast(DType::F64).to_vec()
}

/// Asserts: equal up to a relative error (absolute below 1); NaN and infinities only equal themselves.
///
/// # Panics
/// When they are not.
#[track_caller]
pub fn close(what: &str, got: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len(), "{what}: {got:?} {expected:?}");
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let equal =
            g == e || g.is_nan() && e.is_nan() || (g - e).abs() <= tolerance * e.abs().max(1.0);
        assert!(equal, "{what}[{i}]: got {g:e}, expected {e:e}");
    }
}

/// Asserts equal elements, shape and dtype.
///
/// # Panics
/// When they are not, or on an error.
#[track_caller]
pub fn same(x: Result<Tensor>, dims: &[usize], dtype: DType, expected: &[f64]) {
    let x = x.unwrap();
    assert_eq!((x.dims(), x.dtype()), (dims, dtype));
    close("", &values(&x).unwrap(), expected, 0.0);
}

/// A vector of `f32`.
///
/// # Panics
/// When it cannot be sent to the device.
pub fn f32s(data: &[f32]) -> Tensor {
    Tensor::from_slice(data, data.len(), ()).unwrap()
}

/// A vector of `i64`.
///
/// # Panics
/// As [`f32s`].
pub fn i64s(data: &[i64]) -> Tensor {
    Tensor::from_slice(data, data.len(), ()).unwrap()
}

/// Whole numbers from 0 in this shape, as `f32`.
///
/// # Panics
/// As [`f32s`].
pub fn counted(dims: &[usize]) -> Tensor {
    let n: usize = dims.iter().product();
    let data: Vec<f32> = (0..n).map(|i| i as f32).collect();
    Tensor::from_vec(data, dims, ()).unwrap()
}
