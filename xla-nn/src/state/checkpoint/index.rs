//! The index of a checkpoint: which tensors there are, and in which file each of their blocks is.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use xla_core::blocks::{self, Block};
use xla_core::{DType, Error, Result};
use xla_runtime::literal_file::foreign;

/// The index's name in the checkpoint's folder. What has none is no checkpoint.
pub(crate) const FILE: &str = "index.json";

/// What the index says under `format`.
const FORMAT: &str = "xla-checkpoint-1";

/// What is expected of a folder.
pub(super) const EXPECTED: &str = "a checkpoint of this version";

/// What there is in a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Index {
    format: String,
    /// The number of steps that had been taken.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub(crate) step: Option<u64>,
    /// Its place among those that the same folder holds: the one with the largest was saved last.
    pub(crate) saved: u64,
    /// The state's words.
    pub(crate) metadata: BTreeMap<String, String>,
    /// In the state's order.
    pub(crate) tensors: Vec<Entry>,
}

/// One tensor of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) name: String,
    #[serde(with = "dtype_name")]
    pub(crate) dtype: DType,
    pub(crate) shape: Vec<usize>,
    pub(crate) blocks: Vec<Stored>,
}

/// A block of a tensor and where it is.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Stored {
    #[serde(rename = "index", with = "pairs")]
    pub(crate) block: Block,
    pub(crate) file: String,
    /// The name that the block has in the file.
    pub(crate) name: String,
}

impl Index {
    pub(crate) fn new(
        step: Option<u64>,
        saved: u64,
        metadata: BTreeMap<String, String>,
        tensors: Vec<Entry>,
    ) -> Self {
        Index {
            format: FORMAT.into(),
            step,
            saved,
            metadata,
            tensors,
        }
    }

    /// Writes it into the folder, and waits until it is on the disk.
    pub(crate) fn write(&self, folder: &Path) -> Result<()> {
        let path = folder.join(FILE);
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec(self)?;
            let mut file = File::create(&path)?;
            file.write_all(&text)?;
            file.sync_all()
        };
        write().map_err(|error| Error::io(&path, error))
    }

    /// Reads that of a folder and checks what can be without a look at the files.
    pub(crate) fn read(folder: &Path) -> Result<Index> {
        let path = folder.join(FILE);
        let index: Index = parse(&path)?;
        let refused = |got: String| foreign(&path, EXPECTED, got);
        if index.format != FORMAT {
            return Err(refused(format!("one of format {:?}", index.format)));
        }
        let mut names = HashSet::new();
        for entry in &index.tensors {
            if !names.insert(entry.name.as_str()) {
                return Err(refused(format!("two tensors with the name {}", entry.name)));
            }
            entry.check().map_err(refused)?;
        }
        Ok(index)
    }
}

impl Entry {
    /// Whether the blocks lie in the tensor and hold as many elements as it has. That no two have
    /// elements in common is seen when they are read.
    fn check(&self) -> Result<(), String> {
        let name = &self.name;
        let whole = blocks::whole(&self.shape);
        let mut held = Some(0_usize);
        for Stored { block, file, .. } in &self.blocks {
            if !blocks::contains(&whole, block) {
                let block = blocks::text(block);
                return Err(format!("{name} {:?} with a block {block}", self.shape));
            }
            // Nothing outside the folder is opened.
            if file.is_empty() || file.contains(['/', '\\']) || file == ".." {
                return Err(format!("{name} in a file {file:?}"));
            }
            held = blocks::volume(block).and_then(|volume| held?.checked_add(volume));
        }
        let expected = blocks::volume(&whole);
        let bytes = expected.and_then(|n| n.checked_mul(self.dtype.size()));
        match (held, expected, bytes) {
            (Some(held), Some(expected), Some(_)) if held == expected => Ok(()),
            _ => Err(format!(
                "{name} {:?} in blocks that are not all of it",
                self.shape
            )),
        }
    }
}

/// When a checkpoint was saved, of all that its index says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stamp {
    pub(crate) step: u64,
    pub(crate) saved: u64,
}

impl Stamp {
    /// That of a folder; `None` for one that is no checkpoint of a step.
    ///
    /// # Errors
    /// [`Error::Io`] where it cannot be told.
    pub(crate) fn of(folder: &Path) -> Result<Option<Stamp>> {
        #[derive(Deserialize)]
        struct Head {
            format: String,
            step: Option<u64>,
            saved: u64,
        }
        match parse::<Head>(&folder.join(FILE)) {
            Ok(head) if head.format == FORMAT => Ok(head.step.map(|step| Stamp {
                step,
                saved: head.saved,
            })),
            Ok(_) | Err(Error::FileFormat { .. }) => Ok(None),
            Err(Error::Io { source, .. })
                if matches!(
                    source.kind(),
                    io::ErrorKind::NotFound
                        | io::ErrorKind::NotADirectory
                        | io::ErrorKind::IsADirectory
                ) =>
            {
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}

/// Whether the folder's index is one of this format.
pub(super) fn is_checkpoint(folder: &Path) -> bool {
    #[derive(Deserialize)]
    struct Head {
        format: String,
    }
    parse::<Head>(&folder.join(FILE)).is_ok_and(|head| head.format == FORMAT)
}

fn parse<T: for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    let text = fs::read(path).map_err(|error| Error::io(path, error))?;
    serde_json::from_slice(&text).map_err(|error| foreign(path, EXPECTED, error))
}

/// A dtype by its name.
pub(super) mod dtype_name {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use xla_core::DType;

    pub(crate) fn serialize<S: Serializer>(dtype: &DType, to: S) -> Result<S::Ok, S::Error> {
        dtype.name().serialize(to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<DType, D::Error> {
        let name = String::deserialize(from)?;
        let found = DType::ALL.into_iter().find(|dtype| dtype.name() == name);
        found.ok_or_else(|| D::Error::custom(format!("no dtype is called {name:?}")))
    }
}

/// Ranges as pairs of start and end.
pub(super) mod pairs {
    use super::Block;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(block: &Block, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(block.iter().map(|range| [range.start, range.end]))
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Block, D::Error> {
        let pairs = Vec::<[usize; 2]>::deserialize(from)?;
        Ok(pairs.into_iter().map(|[start, end]| start..end).collect())
    }
}
