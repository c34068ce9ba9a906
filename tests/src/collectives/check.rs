//! What tensors should hold, compared all at once, so that many collectives share a program.

use xla::{DType, Tensor};

/// Tensors with their expected values.
#[derive(Default)]
pub struct Checks(Vec<(String, Tensor, Vec<f64>)>);

impl Checks {
    /// Expects a tensor to hold these values, row-major.
    pub fn expect(
        &mut self,
        what: impl Into<String>,
        tensor: &Tensor,
        values: impl IntoIterator<Item = f64>,
    ) {
        let values = values.into_iter().collect();
        self.0.push((what.into(), tensor.clone(), values));
    }

    /// Expects each of a list of tensors to hold one value in all its elements.
    pub fn expect_each(
        &mut self,
        what: &str,
        tensors: &[Tensor],
        values: impl IntoIterator<Item = f64>,
    ) {
        let values: Vec<f64> = values.into_iter().collect();
        assert_eq!(tensors.len(), values.len(), "{what}");
        for (i, (tensor, value)) in tensors.iter().zip(values).enumerate() {
            self.expect(format!("{what}, {i}"), tensor, vec![value; tensor.numel()]);
        }
    }

    /// Executes what was recorded and compares.
    ///
    /// # Errors
    /// Those of executing.
    ///
    /// # Panics
    /// Where a value differs.
    pub fn verify(self) -> xla::Result<()> {
        xla::sync()?;
        for (what, tensor, expected) in self.0 {
            let dtype = tensor.dtype();
            let values = tensor.detach()?.to_dtype(DType::F64)?.to_vec::<f64>()?;
            // Exact but for rounding in half precision.
            let tolerance = match dtype {
                DType::F16 | DType::BF16 => 1.0 / 128.0,
                DType::F32 => 1e-5,
                _ => 0.0,
            };
            let close = values.len() == expected.len()
                && values
                    .iter()
                    .zip(&expected)
                    .all(|(v, e)| (v - e).abs() <= tolerance * e.abs());
            assert!(close, "{what} ({dtype}): {values:?}, expected {expected:?}");
        }
        Ok(())
    }
}
