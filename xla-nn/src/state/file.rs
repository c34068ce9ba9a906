//! Safetensors files: a header with names, dtypes and shapes, then the bytes. Python's `safetensors`
//! reads and writes the same.

use super::StateDict;
use safetensors::Dtype;
use safetensors::tensor::{SafeTensorError, SafeTensors, View, serialize_to_file};
use std::borrow::Cow;
use std::io;
use std::panic::Location;
use std::path::Path;
use xla_core::{DType, Error, Literal, Result, Shape};
use xla_lazy::{Tensor, TensorOptions};

const DTYPES: [(DType, Dtype); 13] = [
    (DType::Bool, Dtype::BOOL),
    (DType::I8, Dtype::I8),
    (DType::I16, Dtype::I16),
    (DType::I32, Dtype::I32),
    (DType::I64, Dtype::I64),
    (DType::U8, Dtype::U8),
    (DType::U16, Dtype::U16),
    (DType::U32, Dtype::U32),
    (DType::U64, Dtype::U64),
    (DType::F16, Dtype::F16),
    (DType::BF16, Dtype::BF16),
    (DType::F32, Dtype::F32),
    (DType::F64, Dtype::F64),
];

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
        let tensors = self
            .iter()
            .map(|(name, tensor)| Ok((name, OnHost::of(tensor)?)))
            .collect::<Result<Vec<_>>>()
            .map_err(|error| error.relocated(here))?;
        let metadata =
            (!self.metadata.is_empty()).then(|| self.metadata.clone().into_iter().collect());
        let failed = |error: io::Error| Error::io(path, error);
        let file = temporary(path).map_err(failed)?;
        serialize_to_file(tensors, metadata, file.path()).map_err(|error| match error {
            SafeTensorError::IoError(error) => failed(error),
            other => foreign(path, &other),
        })?;
        file.as_file().sync_all().map_err(failed)?;
        file.persist(path).map_err(|error| failed(error.error))?;
        Ok(())
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
            let Some((dtype, _)) = DTYPES.iter().find(|(_, d)| *d == view.dtype()) else {
                return Err(Error::FileFormat {
                    path: path.to_owned(),
                    expected: format!("{name} of a dtype that tensors have"),
                    got: format!("{:?}", view.dtype()),
                });
            };
            let literal = Literal::from_fill(*dtype, &Shape::new(view.shape()), |bytes| {
                bytes.copy_from_slice(view.data());
                Ok(())
            })
            .map_err(|error| Error::FileFormat {
                path: path.to_owned(),
                expected: format!("{name} to hold values of {dtype}"),
                got: error.to_string(),
            })?;
            let dtype = options
                .dtype()
                .filter(|_| dtype.is_float())
                .unwrap_or(*dtype);
            state.insert(name, Tensor::from_literal(literal, (dtype, device))?);
        }
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| foreign(path, &e))?;
        if let Some(metadata) = header.metadata() {
            state.metadata.extend(metadata.clone());
        }
        Ok(state)
    }
}

/// A file beside `path` that vanishes unless it is renamed, with the permissions of a file that any
/// program makes.
fn temporary(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    #[cfg(unix)]
    builder.permissions(permissions);
    builder.prefix(".state-").tempfile_in(folder)
}

fn foreign(path: &Path, error: &SafeTensorError) -> Error {
    Error::FileFormat {
        path: path.to_owned(),
        expected: "a safetensors file".into(),
        got: error.to_string(),
    }
}

struct OnHost {
    literal: Literal,
    dtype: Dtype,
}

impl OnHost {
    fn of(tensor: &Tensor) -> Result<Self> {
        let named = DTYPES.iter().find(|(dtype, _)| *dtype == tensor.dtype());
        let Some((_, dtype)) = named else {
            let expected = "a dtype that safetensors has";
            return Err(Error::dtype("StateDict::save", expected, tensor.dtype()));
        };
        Ok(OnHost {
            literal: tensor.to_literal()?,
            dtype: *dtype,
        })
    }
}

impl View for OnHost {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        self.literal.shape().dims()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.literal.bytes().into()
    }

    fn data_len(&self) -> usize {
        self.literal.bytes().len()
    }
}
