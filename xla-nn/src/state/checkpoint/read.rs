//! Blocks from files: only the bytes that are asked for.

use super::index::{EXPECTED, Entry, Index, Stored};
use rayon::prelude::*;
use safetensors::tensor::Metadata;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use xla_core::blocks::{self, Block, Run};
use xla_core::{Error, Literal, Result, Shape};
use xla_runtime::literal_file::{dtype_of, foreign};

/// Runs that are closer to each other than this are read together with what lies between.
const GAP: usize = 32 << 10;

/// The most that is read at a time on behalf of several runs.
const WINDOW: usize = 1 << 20;

/// The largest header of a safetensors file, as the format says.
const HEADER: u64 = 100_000_000;

/// The files of a checkpoint, whose headers have been read: each block that the index speaks of is
/// there, and as long as it should be.
#[derive(Debug)]
pub(super) struct Files(HashMap<String, Header>);

#[derive(Debug)]
struct Header {
    path: PathBuf,
    /// Where the tensors' bytes begin.
    start: u64,
    tensors: Metadata,
}

impl Files {
    pub(super) fn open(folder: &Path, index: &Index) -> Result<Files> {
        let names: HashSet<&str> = index
            .tensors
            .iter()
            .flat_map(|entry| &entry.blocks)
            .map(|stored| stored.file.as_str())
            .collect();
        let headers: Vec<(String, Header)> = names
            .into_par_iter()
            .map(|name| Ok((name.to_owned(), Header::read(folder.join(name))?)))
            .collect::<Result<_>>()?;
        let files = Files(headers.into_iter().collect());
        for entry in &index.tensors {
            for stored in &entry.blocks {
                files.place(entry, stored)?;
            }
        }
        Ok(files)
    }

    /// Reads a block of a tensor, whatever the blocks are that it was saved in.
    pub(super) fn read(&self, entry: &Entry, wanted: &[Range<usize>]) -> Result<Literal> {
        let sources: Vec<(&Stored, Block)> = entry
            .blocks
            .iter()
            .filter_map(|stored| Some((stored, blocks::overlap(&stored.block, wanted)?)))
            .collect();
        self.check_cover(entry, wanted, &sources)?;
        let shape = Shape::new(&blocks::dims(wanted));
        let size = entry.dtype.size();
        let fill = |to: &mut [u8]| {
            for (stored, common) in &sources {
                let (header, bytes) = self.place(entry, stored)?;
                let runs = blocks::runs(common, &stored.block, wanted);
                header
                    .copy(bytes, runs, size, to)
                    .map_err(|error| Error::io(&header.path, error))?;
            }
            Ok(())
        };
        Literal::from_fill(entry.dtype, &shape, fill).map_err(|error| {
            match (error, sources.first()) {
                // Bytes that are none of the dtype's values.
                (Error::Argument { got, .. }, Some((stored, _))) => {
                    let path = self.0.get(&stored.file).map(|header| header.path.clone());
                    let expected = format!("{} to hold values of {}", entry.name, entry.dtype);
                    foreign(&path.unwrap_or_default(), expected, got)
                }
                (error, _) => error,
            }
        })
    }

    /// Every element that is wanted is in one block, and in one only.
    fn check_cover(
        &self,
        entry: &Entry,
        wanted: &[Range<usize>],
        sources: &[(&Stored, Block)],
    ) -> Result<()> {
        let volume = |block: &[Range<usize>]| blocks::volume(block).unwrap_or(0);
        let held: usize = sources.iter().map(|(_, common)| volume(common)).sum();
        let twice = sources.iter().enumerate().find_map(|(i, (stored, one))| {
            let mut later = sources[i + 1..].iter();
            later.find(|(_, other)| blocks::overlap(one, other).is_some())?;
            Some(stored)
        });
        match twice {
            None if held == volume(wanted) => Ok(()),
            _ => {
                let folder = self
                    .0
                    .values()
                    .next()
                    .and_then(|header| header.path.parent());
                let got = format!("{} in blocks that are not all of it once", entry.name);
                Err(foreign(folder.unwrap_or(Path::new("")), EXPECTED, got))
            }
        }
    }

    /// In which file a block is, and at which bytes of it.
    fn place(&self, entry: &Entry, stored: &Stored) -> Result<(&Header, Range<u64>)> {
        let Some(header) = self.0.get(&stored.file) else {
            return Err(Error::Internal {
                what: "Checkpoint::read",
                expected: format!("the header of {}", stored.file),
            });
        };
        let dims = blocks::dims(&stored.block);
        let found = header.tensors.info(&stored.name);
        let same =
            found.filter(|info| (dtype_of(info.dtype), &info.shape) == (Some(entry.dtype), &dims));
        let Some(info) = same else {
            let expected = format!("{} of {} {dims:?}", stored.name, entry.dtype);
            let got = match found {
                Some(info) => format!("{:?} {:?}", info.dtype, info.shape),
                None => "no such tensor".into(),
            };
            return Err(foreign(&header.path, expected, got));
        };
        let (start, end) = info.data_offsets;
        Ok((
            header,
            header.start + start as u64..header.start + end as u64,
        ))
    }
}

impl Header {
    fn read(path: PathBuf) -> Result<Header> {
        let refused = |got: String| foreign(&path, "a safetensors file", got);
        let failed = |error: io::Error| match error.kind() {
            io::ErrorKind::UnexpectedEof => refused("one that is cut short".into()),
            _ => Error::io(&path, error),
        };
        let mut file = File::open(&path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        let mut prefix = [0; 8];
        file.read_exact(&mut prefix).map_err(failed)?;
        let size = u64::from_le_bytes(prefix);
        if size > HEADER || size + 8 > length {
            return Err(refused(format!("a header of {size} bytes in {length}")));
        }
        let mut text = vec![0; size as usize];
        file.read_exact(&mut text).map_err(failed)?;
        let tensors: Metadata =
            serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
        let start = size + 8;
        let expected = start + tensors.data_len() as u64;
        if expected != length {
            return Err(refused(format!("{length} bytes in place of {expected}")));
        }
        Ok(Header {
            path,
            start,
            tensors,
        })
    }

    /// Copies runs of the tensor that lies at `bytes`; `size` is that of an element.
    fn copy(
        &self,
        bytes: Range<u64>,
        runs: impl Iterator<Item = Run>,
        size: usize,
        to: &mut [u8],
    ) -> io::Result<()> {
        let mut file = Window {
            file: File::open(&self.path)?,
            end: bytes.end,
            start: 0,
            held: Vec::new(),
        };
        let mut runs = runs.peekable();
        while let Some(run) = runs.next() {
            let from = bytes.start + (run.from * size) as u64;
            let to = &mut to[run.to * size..(run.to + run.len) * size];
            let gap = runs
                .peek()
                .map_or(usize::MAX, |next| (next.from - run.from - run.len) * size);
            file.read(from, to, gap < GAP)?;
        }
        Ok(())
    }
}

/// A file that is read in ascending order.
struct Window {
    file: File,
    /// Nothing beyond is read.
    end: u64,
    /// Where in the file `held` begins.
    start: u64,
    held: Vec<u8>,
}

impl Window {
    /// Fills `to`; with `more` to come from close behind.
    fn read(&mut self, from: u64, to: &mut [u8], more: bool) -> io::Result<()> {
        if let Some(held) = self.holding(from, to.len()) {
            to.copy_from_slice(held);
            return Ok(());
        }
        self.file.seek(SeekFrom::Start(from))?;
        if !more || to.len() >= WINDOW {
            return self.file.read_exact(to);
        }
        let length = (self.end - from).min(WINDOW as u64) as usize;
        self.held.resize(length, 0);
        self.file.read_exact(&mut self.held)?;
        self.start = from;
        to.copy_from_slice(&self.held[..to.len()]);
        Ok(())
    }

    fn holding(&self, from: u64, length: usize) -> Option<&[u8]> {
        let start = usize::try_from(from.checked_sub(self.start)?).ok()?;
        self.held.get(start..start.checked_add(length)?)
    }
}
