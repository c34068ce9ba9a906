//! Blocks to files, several at a time.

use super::index;
use std::collections::HashSet;
use std::path::Path;
use std::thread;
use xla_core::blocks::{self, Block};
use xla_core::{Error, Literal, Result};
use xla_runtime::literal_file::{self, Stored};

/// A larger block is written in pieces of about this many bytes, so that several threads share it.
const PIECE: usize = 128 << 20;

/// A file with less than this is not worth a thread.
const FILE: usize = 8 << 20;

/// The most files that one writer writes at a time.
const FILES: usize = 8;

/// A block of a tensor, on the host.
#[derive(Debug)]
pub(super) struct Part {
    /// The tensor's place in the index.
    pub(super) tensor: usize,
    pub(super) name: String,
    pub(super) whole: bool,
    pub(super) block: Block,
    pub(super) literal: Literal,
}

/// Some rows of a part.
struct Piece<'a> {
    part: &'a Part,
    block: Block,
    bytes: &'a [u8],
    whole: bool,
}

/// Writes the parts that writer `writer` has, and says where each is: the tensor's place in the
/// index, and the block. All are on the disk afterwards.
pub(super) fn write(
    op: &'static str,
    folder: &Path,
    writer: usize,
    parts: &[Part],
) -> Result<Vec<(usize, index::Stored)>> {
    let pieces: Vec<Piece<'_>> = parts.iter().flat_map(pieces).collect();
    let files = distribute(pieces);
    let written = thread::scope(|scope| {
        let threads: Vec<_> = files
            .into_iter()
            .enumerate()
            .map(|(number, pieces)| {
                let file = format!("{writer:05}-{number:03}.safetensors");
                scope.spawn(move || write_file(op, folder, file, pieces))
            })
            .collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|_| {
                Err(Error::Internal {
                    what: op,
                    expected: "a file that can be written without a panic".into(),
                })
            })
        };
        // All of them end before the scope does; the first failure is what is told.
        threads
            .into_iter()
            .map(join)
            .collect::<Vec<Result<Vec<_>>>>()
    });
    let written = written.into_iter().collect::<Result<Vec<_>>>()?;
    Ok(written.into_iter().flatten().collect())
}

/// A part in pieces of consecutive rows.
fn pieces(part: &Part) -> Vec<Piece<'_>> {
    let bytes = part.literal.bytes();
    let one = || {
        vec![Piece {
            part,
            block: part.block.clone(),
            bytes,
            whole: part.whole,
        }]
    };
    let Some(first) = part.block.first().filter(|_| bytes.len() > PIECE) else {
        return one();
    };
    let row = bytes.len() / first.len().max(1);
    let rows = (PIECE / row.max(1)).max(1);
    if rows >= first.len() {
        return one();
    }
    let starts = first.clone().step_by(rows);
    starts
        .zip(bytes.chunks(rows * row))
        .map(|(start, bytes)| {
            let mut block = part.block.clone();
            block[0] = start..(start + rows).min(first.end);
            Piece {
                part,
                block,
                bytes,
                whole: false,
            }
        })
        .collect()
}

/// The pieces by file: largest first, each to the smallest file yet.
fn distribute(mut pieces: Vec<Piece<'_>>) -> Vec<Vec<Piece<'_>>> {
    let total: usize = pieces.iter().map(|piece| piece.bytes.len()).sum();
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let count = total.div_ceil(FILE).clamp(1, threads.min(FILES));
    pieces.sort_by_key(|piece| std::cmp::Reverse(piece.bytes.len()));
    let mut files: Vec<(usize, Vec<Piece<'_>>)> = (0..count).map(|_| (0, Vec::new())).collect();
    for piece in pieces {
        if let Some((size, file)) = files.iter_mut().min_by_key(|(size, _)| *size) {
            *size += piece.bytes.len();
            file.push(piece);
        }
    }
    let files = files.into_iter().map(|(_, file)| file);
    files.filter(|file| !file.is_empty()).collect()
}

fn write_file(
    op: &'static str,
    folder: &Path,
    file: String,
    pieces: Vec<Piece<'_>>,
) -> Result<Vec<(usize, index::Stored)>> {
    // The format's own name for something else.
    let mut names = HashSet::from(["__metadata__".to_owned()]);
    let mut stored = Vec::with_capacity(pieces.len());
    let mut tensors = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let Piece { part, block, .. } = piece;
        let mut name = part.name.clone();
        if !piece.whole {
            name.push_str(&blocks::text(&block));
        }
        while !names.insert(name.clone()) {
            name.push('_');
        }
        let dims = blocks::dims(&block);
        let content = Stored::part(op, part.literal.dtype(), dims, piece.bytes)?;
        tensors.push((name.clone(), content));
        let file = file.clone();
        stored.push((part.tensor, index::Stored { block, file, name }));
    }
    literal_file::write(&folder.join(&file), tensors, None)?;
    Ok(stored)
}
