//! Safetensors files: a header with names, dtypes and shapes, then the bytes. Python's `safetensors`
//! reads and writes the same.

use super::StateDict;
use safetensors::tensor::{SafeTensorError, SafeTensors};
use std::panic::Location;
use std::path::Path;
use xla_core::{Error, Literal, Result};
use xla_lazy::{Tensor, TensorOptions};
use xla_runtime::literal_file::{self, Stored};

impl StateDict {
    /// Writes a safetensors file, which Python's `safetensors.torch.load_file` reads. The file
    /// appears whole or not at all: one of the name is replaced at the end.
    ///
    /// The format orders tensors by their dtype's size and name, not as they are here.
    ///
    /// # Errors
    /// [`Error::Io`]; what computing the values returns.
    #[track_caller]
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let here = Location::caller();
        let path = path.as_ref();
        // All are computed by one program, at the first read.
        let literals = self
            .iter()
            .map(|(name, tensor)| Ok((name, tensor.to_literal()?)))
            .collect::<Result<Vec<(&str, Literal)>>>()
            .map_err(|error| error.relocated(here))?;
        let tensors = literals
            .iter()
            .map(|(name, literal)| Ok((*name, Stored::new("StateDict::save", literal)?)))
            .collect::<Result<Vec<_>>>()?;
        let metadata =
            (!self.metadata.is_empty()).then(|| self.metadata.clone().into_iter().collect());
        literal_file::replace(path, tensors, metadata)
    }

    /// Reads a safetensors file onto a device: `options` is a device, a float dtype for all float
    /// tensors, both, or `()`.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::FileFormat`] for a file that is cut short, is no safetensors file, or
    /// has a dtype that tensors do not have; what [`Tensor::from_literal`] returns.
    #[track_caller]
    pub fn load(path: impl AsRef<Path>, options: impl Into<TensorOptions>) -> Result<StateDict> {
        let path = path.as_ref();
        let options = options.into();
        let device = options.device_or_current("StateDict::load")?;
        let bytes = std::fs::read(path).map_err(|error| Error::io(path, error))?;
        let file = SafeTensors::deserialize(&bytes).map_err(|error| foreign(path, &error))?;
        let mut state = StateDict::new();
        // In the order of the bytes.
        for name in file.names() {
            let view = file.tensor(name).map_err(|error| foreign(path, &error))?;
            let literal = literal_file::to_literal(path, name, &view)?;
            let saved = literal.dtype();
            let dtype = options.dtype().filter(|_| saved.is_float());
            let dtype = dtype.unwrap_or(saved);
            state.insert(name, Tensor::from_literal(literal, (dtype, device))?);
        }
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| foreign(path, &e))?;
        if let Some(metadata) = header.metadata() {
            state.metadata.extend(metadata.clone());
        }
        Ok(state)
    }
}

fn foreign(path: &Path, error: &SafeTensorError) -> Error {
    literal_file::foreign(path, "a safetensors file", error)
}
