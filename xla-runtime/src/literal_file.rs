//! Literals in safetensors files: what capsules and saved states have in common.
//!
//! Such a file has a header with names, dtypes and shapes, and then the bytes
//! ([format](https://huggingface.co/docs/safetensors/index#format)).

use safetensors::Dtype;
use safetensors::tensor::{SafeTensorError, TensorView, View, serialize_to_file};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use xla_core::{DType, Error, Literal, Result, Shape};

/// The dtypes of tensors beside the names that the format has for them.
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

/// The dtype of tensors that a file's is; `None` for one that tensors do not have.
pub fn dtype_of(stored: Dtype) -> Option<DType> {
    let found = DTYPES.iter().find(|(_, dtype)| *dtype == stored);
    found.map(|(dtype, _)| *dtype)
}

/// What is written under one name: a literal, or some of its rows.
#[derive(Debug, Clone)]
pub struct Stored<'a> {
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: &'a [u8],
}

impl<'a> Stored<'a> {
    /// A whole literal; `op` is the call that stores it.
    ///
    /// # Errors
    /// [`Error::DTypeMismatch`] for a dtype that the format lacks.
    pub fn new(op: &'static str, literal: &'a Literal) -> Result<Self> {
        let shape = literal.shape().dims().to_vec();
        Stored::part(op, literal.dtype(), shape, literal.bytes())
    }

    /// Row-major bytes of this dtype and shape.
    ///
    /// # Errors
    /// As [`Stored::new`].
    pub fn part(
        op: &'static str,
        dtype: DType,
        shape: Vec<usize>,
        bytes: &'a [u8],
    ) -> Result<Self> {
        match DTYPES.iter().find(|(d, _)| *d == dtype) {
            Some((_, dtype)) => Ok(Stored {
                dtype: *dtype,
                shape,
                bytes,
            }),
            None => Err(Error::dtype(op, "a dtype that safetensors has", dtype)),
        }
    }
}

impl View for Stored<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        self.bytes.into()
    }

    fn data_len(&self) -> usize {
        self.bytes.len()
    }
}

/// Copies a tensor out of a file that has been read to memory; `path` and `name` are for errors.
///
/// # Errors
/// [`Error::FileFormat`] for a dtype that tensors do not have, or bytes that are none of its values.
pub fn to_literal(path: &Path, name: &str, view: &TensorView<'_>) -> Result<Literal> {
    let refused = |expected, got| Error::FileFormat {
        path: path.to_owned(),
        expected,
        got,
    };
    let Some(dtype) = dtype_of(view.dtype()) else {
        let expected = format!("{name} of a dtype that tensors have");
        return Err(refused(expected, format!("{:?}", view.dtype())));
    };
    Literal::from_fill(dtype, &Shape::new(view.shape()), |bytes| {
        bytes.copy_from_slice(view.data());
        Ok(())
    })
    .map_err(|e| refused(format!("{name} to hold values of {dtype}"), e.to_string()))
}

/// The error of a file that is not what it should be.
pub fn foreign(path: &Path, expected: impl Into<String>, got: impl fmt::Display) -> Error {
    Error::FileFormat {
        path: path.to_owned(),
        expected: expected.into(),
        got: got.to_string(),
    }
}

/// Writes a file and waits until it is on the disk. What was there under the name is lost, also
/// where this fails: see [`replace`].
///
/// # Errors
/// [`Error::Io`].
pub fn write<'a, N: AsRef<str> + Ord + fmt::Display>(
    path: &Path,
    tensors: impl IntoIterator<Item = (N, Stored<'a>)>,
    metadata: Option<HashMap<String, String>>,
) -> Result<()> {
    let failed = |error| Error::io(path, error);
    serialize_to_file(tensors, metadata, path).map_err(|error| match error {
        SafeTensorError::IoError(error) => failed(error),
        other => foreign(path, "tensors that safetensors can hold", other),
    })?;
    File::open(path)
        .and_then(|file| file.sync_all())
        .map_err(failed)
}

/// Writes a file, which appears whole or not at all: one of the name is replaced at the end.
///
/// # Errors
/// [`Error::Io`].
pub fn replace<'a, N: AsRef<str> + Ord + fmt::Display>(
    path: &Path,
    tensors: impl IntoIterator<Item = (N, Stored<'a>)>,
    metadata: Option<HashMap<String, String>>,
) -> Result<()> {
    let failed = |error| Error::io(path, error);
    let temporary = beside(path).map_err(failed)?;
    write(temporary.path(), tensors, metadata).map_err(|error| match error {
        // The name that the user knows.
        Error::Io { source, .. } => Error::Io {
            path: path.to_owned(),
            source,
        },
        other => other,
    })?;
    temporary
        .persist(path)
        .map_err(|error| failed(error.error))?;
    Ok(())
}

/// The folder that a path is in.
pub fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// A file beside `path` that vanishes unless it is renamed, with the permissions of a file that any
/// program makes.
fn beside(path: &Path) -> io::Result<tempfile::NamedTempFile> {
    let mut builder = tempfile::Builder::new();
    #[cfg(unix)]
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o666);
    #[cfg(unix)]
    builder.permissions(permissions);
    builder.prefix(".literals-").tempfile_in(folder_of(path))
}
