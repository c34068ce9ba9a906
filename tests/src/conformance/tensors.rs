//! The tensors of a safetensors file.

use safetensors::{Dtype, SafeTensors};
use std::path::Path;
use xla::{DType, Literal, Shape, Tensor};

/// A safetensors file in memory.
#[derive(Debug)]
pub struct Tensors {
    name: String,
    bytes: Vec<u8>,
}

impl Tensors {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read or has another form.
    pub fn open(path: &Path) -> Result<Self, String> {
        let name = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|e| format!("{name}: {e}"))?;
        SafeTensors::deserialize(&bytes).map_err(|e| format!("{name}: {e}"))?;
        Ok(Tensors { name, bytes })
    }

    /// What follows a prefix in the names that have it.
    ///
    /// # Errors
    /// None for a file that could be opened.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>, String> {
        let file =
            SafeTensors::deserialize(&self.bytes).map_err(|e| format!("{}: {e}", self.name))?;
        let rest = |name: &str| name.strip_prefix(prefix).map(str::to_owned);
        Ok(file.names().into_iter().filter_map(rest).collect())
    }

    /// The tensor of this name, on the device.
    ///
    /// # Errors
    /// No tensor of this name, or one of a dtype unknown here.
    pub fn get(&self, name: &str) -> Result<Tensor, String> {
        let error = |e: &dyn std::fmt::Display| format!("{}: {name}: {e}", self.name);
        let file = SafeTensors::deserialize(&self.bytes).map_err(|e| error(&e))?;
        let view = file.tensor(name).map_err(|e| error(&e))?;
        let dtype = match view.dtype() {
            Dtype::BOOL => DType::Bool,
            Dtype::I8 => DType::I8,
            Dtype::I16 => DType::I16,
            Dtype::I32 => DType::I32,
            Dtype::I64 => DType::I64,
            Dtype::U8 => DType::U8,
            Dtype::U16 => DType::U16,
            Dtype::U32 => DType::U32,
            Dtype::U64 => DType::U64,
            Dtype::F16 => DType::F16,
            Dtype::BF16 => DType::BF16,
            Dtype::F32 => DType::F32,
            Dtype::F64 => DType::F64,
            other => return Err(error(&format!("no such dtype here: {other:?}"))),
        };
        let literal = Literal::from_fill(dtype, &Shape::new(view.shape()), |bytes| {
            bytes.copy_from_slice(view.data());
            Ok(())
        });
        let literal = literal.map_err(|e| error(&e))?;
        Tensor::from_literal(literal, ()).map_err(|e| error(&e))
    }
}
