//! Checkpoints: states in folders, written by several threads and processes, read in any layout.

mod draft;
mod fit;
mod index;
mod placed;
mod plan;
mod read;
mod save;
mod write;

pub(super) use draft::{UNFINISHED, remove};
pub(super) use index::Stamp;
pub(super) use placed::Placement;
pub(super) use save::{Order, Save};

use super::StateDict;
use crate::IncompatibleKeys;
use fit::{Misfits, Wanted};
use index::{Entry, Index};
use rayon::prelude::*;
use read::Files;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::panic::Location;
use std::path::{Path, PathBuf};
use xla_core::blocks::{self, Block};
use xla_core::{DType, Error, Literal, Result};
use xla_dist as dist;
use xla_lazy::{TensorOptions, no_grad};

/// A state in a folder, opened to be read.
///
/// The folder holds safetensors files, several for each process that took part in saving, and
/// `index.json`, which says for each tensor its dtype, its shape, and in which file each of its blocks
/// is. A tensor that is spread over a mesh is saved block by block; of replicas, on devices or ranks,
/// one is written, and the ranks share that work. How a tensor was spread when it was saved does not
/// matter when it is read: any block can be put together from those that are there, and no other bytes
/// are read.
///
/// A checkpoint appears whole or not at all: files are written to a folder beside it, which gets its
/// name when all of them are on the disk.
///
/// ```
/// use xla_lazy::Tensor;
/// use xla_nn::StateDict;
/// use xla_nn::state::Checkpoint;
/// # let folder = tempfile::tempdir().map_err(|e| xla_core::Error::io("temporary", e))?;
/// # let path = folder.path().join("trained");
/// let x = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2], ())?;
/// Checkpoint::save(&path, &StateDict::from_iter([("x", x)]))?;
///
/// let checkpoint = Checkpoint::open(&path)?;
/// let column = checkpoint.read_block("x", &[0..2, 1..2])?;
/// assert_eq!(column.to_vec::<f32>()?, [2.0, 4.0]);
/// let state = checkpoint.load(())?;
/// assert_eq!(state.get("x").map(Tensor::dims), Some(&[2, 2][..]));
/// # Ok::<(), xla_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    index: Index,
    by_name: HashMap<String, usize>,
    files: Files,
}

/// What a checkpoint has under one name.
#[derive(Debug, Clone, Copy)]
pub struct SavedTensor<'a>(&'a Entry);

impl<'a> SavedTensor<'a> {
    /// The name.
    pub fn name(self) -> &'a str {
        &self.0.name
    }

    /// The element type.
    pub fn dtype(self) -> DType {
        self.0.dtype
    }

    /// The dimensions of the whole tensor.
    pub fn dims(self) -> &'a [usize] {
        &self.0.shape
    }

    /// The blocks that it is kept in: a range of indices for each axis.
    pub fn blocks(self) -> impl Iterator<Item = &'a [Range<usize>]> {
        self.0.blocks.iter().map(|stored| stored.block.as_slice())
    }
}

impl Checkpoint {
    /// Saves a state as the folder `path`, in place of a checkpoint that is there.
    ///
    /// Where the calling replica has a default process group, its members save together, and all must
    /// call it: a name that several have is one tensor, of which one writes each block. All must see
    /// the same folder. [`CheckpointManager`](super::CheckpointManager) keeps the checkpoints of a run
    /// in order, and saves beside the training.
    ///
    /// # Errors
    /// [`Error::Io`] for a folder that cannot be written to, or a full disk; [`Error::FileFormat`]
    /// when something else than a checkpoint is there; [`Error::Argument`] where ranks have different
    /// tensors under one name, [`Error::ReplicaFailed`] when another one could not save; what computing
    /// the values returns. What was there before is then still there.
    #[track_caller]
    pub fn save(path: impl AsRef<Path>, state: &StateDict) -> Result<()> {
        let here = Location::caller();
        let save = || {
            let group = dist::is_initialized()
                .then(dist::default_group)
                .transpose()?;
            let order = Order {
                op: "Checkpoint::save",
                target: path.as_ref(),
                step: None,
                saved: Ok(0),
                group: group.as_ref(),
            };
            Save::prepare(order, Ok(state.clone()))?.finish()
        };
        save().map_err(|error: Error| error.at(here))
    }

    /// Opens a checkpoint: reads its index, and the headers of its files.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::FileFormat`] for a folder that is no checkpoint, or one whose files are
    /// not what its index says.
    pub fn open(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref();
        let index = Index::read(path)?;
        let files = Files::open(path, &index)?;
        let names = index.tensors.iter().map(|entry| entry.name.clone());
        Ok(Checkpoint {
            path: path.to_owned(),
            by_name: names.zip(0..).collect(),
            index,
            files,
        })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of steps that had been taken, where a manager saved it.
    pub fn step(&self) -> Option<u64> {
        self.index.step
    }

    /// The words that were saved beside the tensors.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.index.metadata
    }

    /// What is there, in the order in which it was saved.
    pub fn tensors(&self) -> impl Iterator<Item = SavedTensor<'_>> {
        self.index.tensors.iter().map(SavedTensor)
    }

    /// What there is under a name.
    pub fn get(&self, name: &str) -> Option<SavedTensor<'_>> {
        self.entry(name).map(SavedTensor)
    }

    /// Reads a whole tensor to the host.
    ///
    /// # Errors
    /// [`Error::StateDict`] when there is none of the name; [`Error::Io`]; [`Error::FileFormat`] for
    /// files that have changed since the checkpoint was opened.
    #[track_caller]
    pub fn read(&self, name: &str) -> Result<Literal> {
        let entry = self.known(name, Location::caller())?;
        self.files.read(entry, &blocks::whole(&entry.shape))
    }

    /// Reads a block of a tensor to the host: a range of indices for each axis.
    ///
    /// # Errors
    /// As [`read`](Self::read); [`Error::Argument`] for ranges that do not lie in the tensor.
    #[track_caller]
    pub fn read_block(&self, name: &str, block: &[Range<usize>]) -> Result<Literal> {
        let here = Location::caller();
        let entry = self.known(name, here)?;
        if !blocks::contains(&blocks::whole(&entry.shape), block) {
            let expected = format!("ranges in the shape {:?} of {name}", entry.shape);
            let got = blocks::text(block);
            let error = Error::argument("Checkpoint::read_block", "block", expected, got);
            return Err(error.at(here));
        }
        self.files.read(entry, block)
    }

    /// Loads everything onto one device: `options` is a device, a float dtype for all float tensors,
    /// both, or `()`. With a sharding each tensor is spread like that.
    ///
    /// # Errors
    /// As [`read`](Self::read); what [`xla_lazy::Tensor::from_literal`] returns.
    #[track_caller]
    pub fn load(&self, options: impl Into<TensorOptions>) -> Result<StateDict> {
        let options = options.into();
        let device = options.device_or_current("Checkpoint::load")?;
        let wanted = self.tensors().map(|saved| Wanted {
            entry: saved.0,
            placement: match options.sharding() {
                Some(sharding) => Placement::Spread(sharding.clone()),
                None => Placement::On(device),
            },
            dtype: options.dtype().filter(|_| saved.dtype().is_float()),
        });
        let mut state = self.load_all(&wanted.collect::<Vec<_>>())?;
        state.metadata = self.metadata().clone();
        Ok(state)
    }

    /// Gives tensors the values that are saved under their names, in place: a module's by
    /// [`state_dict`](crate::Module::state_dict), for instance. Each stays where it is, spread over its
    /// mesh as it is, and each process reads its own blocks only.
    ///
    /// With `strict`, there must be exactly these names. Without, what is missing stays as it is and
    /// what is unexpected is ignored; both are returned.
    ///
    /// # Errors
    /// [`Error::StateDict`] with every missing name, every unexpected one, and every shape and dtype
    /// that differs (the last two also without `strict`); nothing has been changed then. As
    /// [`read`](Self::read).
    #[track_caller]
    pub fn load_into(&self, state: &StateDict, strict: bool) -> Result<IncompatibleKeys> {
        let here = Location::caller();
        let load = || -> Result<IncompatibleKeys> {
            let mut misfits = Misfits::default();
            let mut wanted = Vec::new();
            for (name, tensor) in state.iter() {
                match self.entry(name) {
                    None => misfits.missing.push(name.to_owned()),
                    Some(entry) if misfits.fits(name, entry, tensor) => {
                        wanted.push(Wanted::like(entry, tensor)?)
                    }
                    Some(_) => {}
                }
            }
            let unknown = self.tensors().map(SavedTensor::name);
            let unknown = unknown.filter(|name| !state.contains_key(name));
            misfits.unexpected = unknown.map(str::to_owned).collect();
            let keys = misfits.check("load_into", strict)?;
            let values = self.load_all(&wanted)?;
            no_grad(|| {
                let mut pairs = values.iter();
                pairs.try_for_each(|(name, value)| match state.get(name) {
                    Some(tensor) => tensor.set_data(value),
                    None => Ok(()),
                })
            })?;
            Ok(keys)
        };
        load().map_err(|error| error.relocated(here))
    }

    /// The tensors whose names begin with `prefix`, and the words whose names do, without it. Each
    /// becomes like the template's of its name; those of which it has none go to the current device.
    pub(super) fn load_part(
        &self,
        op: &'static str,
        prefix: &str,
        template: &StateDict,
    ) -> Result<StateDict> {
        let current = TensorOptions::default().device_or_current(op)?;
        let mut misfits = Misfits::default();
        let mut wanted = Vec::new();
        for entry in &self.index.tensors {
            let Some(name) = entry.name.strip_prefix(prefix) else {
                continue;
            };
            wanted.push(match template.get(name) {
                None => Wanted {
                    entry,
                    placement: Placement::On(current),
                    dtype: None,
                },
                Some(tensor) if misfits.fits(&entry.name, entry, tensor) => {
                    Wanted::like(entry, tensor)?
                }
                Some(_) => continue,
            });
        }
        misfits.check(op, true)?;
        let loaded = self.load_all(&wanted)?;
        let named =
            |(name, value): (String, _)| Some((name.strip_prefix(prefix)?.to_owned(), value));
        let mut state: StateDict = loaded.into_iter().filter_map(named).collect();
        let words = self.metadata().clone().into_iter();
        state.metadata = words
            .filter_map(|(name, word)| Some((name.strip_prefix(prefix)?.to_owned(), word)))
            .collect();
        Ok(state)
    }

    /// Reads all blocks that are wanted, several at a time, and makes tensors of them.
    fn load_all(&self, wanted: &[Wanted<'_>]) -> Result<StateDict> {
        let blocks: Vec<(usize, Block)> = wanted
            .iter()
            .enumerate()
            .flat_map(|(i, tensor)| {
                let blocks = tensor.placement.blocks(&tensor.entry.shape);
                blocks.into_iter().map(move |block| (i, block))
            })
            .collect();
        let read = |(i, block): (usize, Block)| {
            let literal = self.files.read(wanted[i].entry, &block)?;
            Ok((i, (block, literal)))
        };
        let literals: Vec<(usize, (Block, Literal))> =
            blocks.into_par_iter().map(read).collect::<Result<_>>()?;
        let mut literals = literals.into_iter().peekable();
        let mut state = StateDict::new();
        for (i, tensor) in wanted.iter().enumerate() {
            let mut own = Vec::new();
            while let Some((_, block)) = literals.next_if(|(of, _)| *of == i) {
                own.push(block);
            }
            let dtype = tensor.dtype.unwrap_or(tensor.entry.dtype);
            let made = tensor.placement.assemble(&tensor.entry.shape, dtype, own)?;
            state.insert(tensor.entry.name.clone(), made);
        }
        Ok(state)
    }

    fn entry(&self, name: &str) -> Option<&Entry> {
        self.index.tensors.get(*self.by_name.get(name)?)
    }

    fn known(&self, name: &str, here: &'static Location<'static>) -> Result<&Entry> {
        self.entry(name).ok_or_else(|| Error::StateDict {
            op: "Checkpoint::read",
            missing: vec![name.to_owned()],
            unexpected: Vec::new(),
            mismatched: Vec::new(),
            mistyped: Vec::new(),
            at: here.into(),
        })
    }
}
