//! The tensors of a safetensors file.

use std::path::Path;
use xla::nn::StateDict;
use xla::{Literal, Tensor};

/// The tensors of a file by name, of which each use gets its own.
#[derive(Debug)]
pub struct Tensors {
    file: String,
    state: StateDict,
}

impl Tensors {
    /// Reads a file.
    ///
    /// # Errors
    /// A file that cannot be read or has another form, or a tensor of a dtype unknown here.
    pub fn open(path: &Path) -> Result<Self, String> {
        let file = path.display().to_string();
        let state = StateDict::load(path, ()).map_err(|e| format!("{file}: {e}"))?;
        Ok(Tensors { file, state })
    }

    /// What follows a prefix in the names that have it.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let rest = |name: &str| name.strip_prefix(prefix).map(str::to_owned);
        self.state.keys().filter_map(rest).collect()
    }

    /// The elements of the tensor of this name.
    ///
    /// # Errors
    /// No tensor of this name, or whatever keeps it from being read.
    pub fn literal(&self, name: &str) -> Result<Literal, String> {
        let found = self.state.get(name);
        let tensor = found.ok_or_else(|| format!("{}: no tensor {name}", self.file))?;
        tensor
            .to_literal()
            .map_err(|e| format!("{}: {name}: {e}", self.file))
    }

    /// A tensor that came from the host with the elements of this name's.
    ///
    /// # Errors
    /// No tensor of this name, or whatever keeps it from being sent.
    pub fn get(&self, name: &str) -> Result<Tensor, String> {
        let literal = self.literal(name)?;
        Tensor::from_literal(literal, ()).map_err(|e| format!("{}: {name}: {e}", self.file))
    }
}
