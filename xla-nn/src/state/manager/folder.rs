//! The folder of a run: which checkpoints are in it, and who may write to it.

use crate::state::checkpoint::{Stamp, UNFINISHED, remove};
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};
use xla_core::{Error, Result};

/// The file that says by its lock who writes.
const LOCK: &str = ".writer";

/// The folder of a step's checkpoint.
pub(super) fn of_step(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("step-{step}"))
}

/// The checkpoints there are, the one that was saved last at the end.
///
/// # Errors
/// [`Error::Io`] for a folder that is there and cannot be read.
pub(super) fn checkpoints(folder: &Path) -> Result<Vec<Stamp>> {
    let failed = |error| Error::io(folder, error);
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(failed)?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        let Some(step) = name.to_str().and_then(|name| name.strip_prefix("step-")) else {
            continue;
        };
        // Only what it would be called itself: no signs, no zeros in front.
        let Some(step) = step.parse().ok().filter(|n: &u64| n.to_string() == step) else {
            continue;
        };
        let stamp = Stamp::of(&entry.path())?;
        found.extend(stamp.filter(|stamp| stamp.step == step));
    }
    found.sort_by_key(|stamp| (stamp.saved, stamp.step));
    Ok(found)
}

/// Removes all but the last `keep` checkpoints.
pub(super) fn retire(folder: &Path, keep: usize) -> Result<()> {
    let all = checkpoints(folder)?;
    let old = all.len().saturating_sub(keep);
    for stamp in &all[..old] {
        remove(&of_step(folder, stamp.step))?;
    }
    Ok(())
}

/// The right to write to a folder. No other manager has it while this one lives, in any process; the
/// system takes it back when the process ends, however it does.
#[derive(Debug)]
pub(super) struct Lock {
    /// Open as long as the lock is held.
    _file: File,
}

impl Lock {
    /// Takes it, and removes what earlier writers have left unfinished.
    pub(super) fn take(op: &'static str, folder: &Path) -> Result<Lock> {
        fs::create_dir_all(folder).map_err(|error| Error::io(folder, error))?;
        let path = folder.join(LOCK);
        let failed = |error| Error::io(&path, error);
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false);
        let mut file = options.open(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {
                clean(folder);
                // For whoever finds it locked.
                let note = format!("process {}", std::process::id());
                file.set_len(0)
                    .and_then(|()| file.rewind())
                    .and_then(|()| file.write_all(note.as_bytes()))
                    .map_err(failed)?;
                Ok(Lock { _file: file })
            }
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = file.take(64).read_to_string(&mut holder);
                let expected = "a folder that no other CheckpointManager saves to";
                let got = format!("{}, which one of {holder} saves to", folder.display());
                Err(Error::argument(op, "folder", expected, got))
            }
            // A file system without locks: nobody can be kept out, so nothing is taken for left over.
            Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => {
                Ok(Lock { _file: file })
            }
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

/// Removes what this folder's managers have begun or given up. What cannot be removed stays.
fn clean(folder: &Path) {
    let unfinished = format!("{UNFINISHED}step-");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        if name
            .to_str()
            .is_some_and(|name| name.starts_with(&unfinished))
        {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
