//! The tensors of a safetensors file.

use safetensors::{Dtype, SafeTensors};
use std::collections::HashMap;
use std::path::Path;
use xla::{DType, Literal, Shape, Tensor};

/// A safetensors file in memory.
#[derive(Debug)]
pub struct Tensors {
    file: String,
    literals: HashMap<String, Literal>,
}

impl Tensors {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read or has another form, or a tensor of a dtype unknown here.
    pub fn open(path: &Path) -> Result<Self, String> {
        let file = path.display().to_string();
        let error = |e: &dyn std::fmt::Display| format!("{file}: {e}");
        let bytes = std::fs::read(path).map_err(|e| error(&e))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| error(&e))?;
        let mut literals = HashMap::new();
        for (name, view) in tensors.tensors() {
            let dtype = dtype(view.dtype()).ok_or_else(|| error(&format!("dtype of {name}")))?;
            let literal = Literal::from_fill(dtype, &Shape::new(view.shape()), |bytes| {
                bytes.copy_from_slice(view.data());
                Ok(())
            });
            literals.insert(name, literal.map_err(|e| error(&e))?);
        }
        Ok(Tensors { file, literals })
    }

    /// What follows a prefix in the names that have it.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let rest = |name: &String| name.strip_prefix(prefix).map(str::to_owned);
        self.literals.keys().filter_map(rest).collect()
    }

    /// The elements of the tensor of this name.
    ///
    /// # Errors
    /// No tensor of this name.
    pub fn literal(&self, name: &str) -> Result<&Literal, String> {
        let found = self.literals.get(name);
        found.ok_or_else(|| format!("{}: no tensor {name}", self.file))
    }

    /// The tensor of this name, on the device.
    ///
    /// # Errors
    /// No tensor of this name, or whatever keeps it from being sent.
    pub fn get(&self, name: &str) -> Result<Tensor, String> {
        let literal = self.literal(name)?.clone();
        Tensor::from_literal(literal, ()).map_err(|e| format!("{}: {name}: {e}", self.file))
    }
}

fn dtype(dtype: Dtype) -> Option<DType> {
    Some(match dtype {
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
        _ => return None,
    })
}
