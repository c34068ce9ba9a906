//! Capsules as safetensors files.

use super::{Capsule, Versions};
use crate::literal_file::{self, Stored};
use crate::options::CompileOptions;
use safetensors::tensor::SafeTensors;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use xla_core::{DType, Error, Literal, Result, Shape};

/// What the metadata says under `format`.
const FORMAT: &str = "xla-capsule-1";

/// Dtype and dimensions of a result.
#[derive(Serialize, Deserialize)]
struct Type(String, Vec<usize>);

/// What the metadata holds besides the program's text.
#[derive(Serialize, Deserialize)]
struct Header {
    options: CompileOptions,
    inputs: usize,
    #[serde(default)]
    replica: usize,
    #[serde(default)]
    peers: usize,
    output_types: Vec<Type>,
    has_outputs: bool,
    cause: String,
    error: Option<String>,
    versions: Versions,
}

impl Capsule {
    /// Writes the capsule. The file appears whole or not at all.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::DTypeMismatch`] for a dtype that the format lacks.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let header = Header {
            options: self.options.clone(),
            inputs: self.inputs.len(),
            replica: self.replica,
            peers: self.peers.len(),
            output_types: self
                .output_types
                .iter()
                .map(|(dtype, shape)| Type(dtype.to_string(), shape.dims().to_vec()))
                .collect(),
            has_outputs: self.outputs.is_some(),
            cause: self.cause.clone(),
            error: self.error.clone(),
            versions: self.versions.clone(),
        };
        let header = serde_json::to_string(&header).map_err(|e| broken(path, e))?;
        let metadata = HashMap::from([
            ("format".to_owned(), FORMAT.to_owned()),
            ("program".to_owned(), self.program.clone()),
            ("capsule".to_owned(), header),
        ]);
        let inputs = self.inputs.iter().enumerate();
        let outputs = self.outputs.iter().flatten().enumerate();
        let peers = self.peers.iter().enumerate();
        let peers = peers.flat_map(|(p, all)| {
            let all = all.iter().enumerate();
            all.map(move |(i, literal)| (peer(p, i), literal))
        });
        let tensors = inputs
            .map(|(i, literal)| (input(i), literal))
            .chain(peers)
            .chain(outputs.map(|(i, literal)| (output(i), literal)))
            .map(|(name, literal)| Ok((name, Stored::new("Capsule::save", literal)?)))
            .collect::<Result<Vec<_>>>()?;
        literal_file::replace(path, tensors, Some(metadata))
    }

    /// Writes the capsule to a file of its own, `xla-capsule-PROCESS-NUMBER.safetensors`, in this
    /// folder, and returns where that is.
    ///
    /// # Errors
    /// Those of [`Capsule::save`].
    pub fn save_in(&self, folder: &Path) -> Result<PathBuf> {
        static WRITTEN: AtomicU64 = AtomicU64::new(0);
        let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
        let name = format!("xla-capsule-{}-{number}.safetensors", std::process::id());
        let path = folder.join(name);
        let path = std::path::absolute(&path).unwrap_or(path);
        self.save(&path)?;
        Ok(path)
    }

    /// Reads a capsule.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::FileFormat`] for a file that is cut short, no capsule, or of another
    /// version.
    pub fn load(path: impl AsRef<Path>) -> Result<Capsule> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| Error::io(path, e))?;
        let tensors = SafeTensors::deserialize(&bytes).map_err(|e| broken(path, e))?;
        let (_, metadata) = SafeTensors::read_metadata(&bytes).map_err(|e| broken(path, e))?;
        let entry = |name: &str| {
            let entries = metadata.metadata().as_ref();
            entries.and_then(|all| all.get(name)).cloned()
        };
        if entry("format").as_deref() != Some(FORMAT) {
            return Err(broken(path, format_args!("no {FORMAT}")));
        }
        let (Some(program), Some(header)) = (entry("program"), entry("capsule")) else {
            return Err(broken(path, "one without a program"));
        };
        let header: Header = parse(path, &header)?;
        let literal = |name: String| -> Result<Literal> {
            let view = tensors.tensor(&name).map_err(|e| broken(path, e))?;
            literal_file::to_literal(path, &name, &view)
        };
        let literals = |count: usize, name: &dyn Fn(usize) -> String| -> Result<Vec<Literal>> {
            (0..count).map(|i| literal(name(i))).collect()
        };
        let peers = (0..header.peers)
            .map(|p| literals(header.inputs, &|i| peer(p, i)))
            .collect::<Result<Vec<_>>>()?;
        let output_types = header
            .output_types
            .iter()
            .map(|Type(name, dims)| {
                let dtype = DType::ALL.into_iter().find(|d| d.to_string() == *name);
                let dtype = dtype.ok_or_else(|| broken(path, format_args!("dtype {name}")))?;
                Ok((dtype, Shape::new(dims)))
            })
            .collect::<Result<Vec<_>>>()?;
        let outputs = header
            .has_outputs
            .then(|| literals(output_types.len(), &output))
            .transpose()?;
        Ok(Capsule {
            program,
            options: header.options,
            inputs: literals(header.inputs, &input)?,
            replica: header.replica,
            peers,
            output_types,
            outputs,
            cause: header.cause,
            error: header.error,
            versions: header.versions,
        })
    }
}

fn input(i: usize) -> String {
    format!("input.{i}")
}

fn peer(peer: usize, i: usize) -> String {
    format!("peer.{peer}.input.{i}")
}

fn output(i: usize) -> String {
    format!("output.{i}")
}

fn parse<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|e| broken(path, e))
}

fn broken(path: &Path, got: impl std::fmt::Display) -> Error {
    literal_file::foreign(path, "a capsule of this version", got)
}
