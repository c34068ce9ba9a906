//! A folder that appears whole or not at all.

use super::index::{self, Index};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use tempfile::TempDir;
use xla_core::{Error, Result};
use xla_runtime::literal_file::{folder_of, foreign};

/// What the name of a folder begins with that is not complete yet, or no longer; the name that it is
/// to have, or had, follows.
pub(crate) const UNFINISHED: &str = ".unfinished-";

/// A folder beside the one that it becomes. Dropped before, it is removed.
#[derive(Debug)]
pub(crate) struct Draft {
    temporary: TempDir,
    target: PathBuf,
}

impl Draft {
    /// An empty one. The folder that `target` is in is made if there is none.
    pub(crate) fn new(target: &Path) -> Result<Draft> {
        check_replaceable(target)?;
        let parent = folder_of(target);
        fs::create_dir_all(&parent).map_err(|error| Error::io(&parent, error))?;
        let temporary = beside(target).map_err(|error| Error::io(&parent, error))?;
        Ok(Draft {
            temporary,
            target: target.to_owned(),
        })
    }

    /// Where it is for now.
    pub(crate) fn path(&self) -> &Path {
        self.temporary.path()
    }

    /// Adds the index, without which it is nothing, and gives it its name. A checkpoint that has the
    /// name is replaced.
    pub(crate) fn publish(self, index: &Index) -> Result<()> {
        let Draft { temporary, target } = self;
        let failed = |error| Error::io(&target, error);
        index.write(temporary.path())?;
        sync_folder(temporary.path()).map_err(failed)?;
        check_replaceable(&target)?;
        match fs::rename(temporary.path(), &target) {
            Ok(()) => {
                // Nothing has its former name any more that could be removed.
                let _ = temporary.keep();
            }
            // What had the name is removed with the temporary folder, whose place it takes.
            Err(_) if target.is_dir() => exchange(temporary.path(), &target).map_err(failed)?,
            Err(error) => return Err(failed(error)),
        }
        let parent = folder_of(&target);
        sync_folder(&parent).map_err(|error| Error::io(&parent, error))
    }
}

/// A new folder where `target` is.
fn beside(target: &Path) -> io::Result<TempDir> {
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let prefix = format!("{UNFINISHED}{name}-");
    let mut builder = tempfile::Builder::new();
    // Those of a folder that any program makes.
    #[cfg(unix)]
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    #[cfg(unix)]
    builder.permissions(permissions);
    builder.prefix(&prefix).tempdir_in(folder_of(target))
}

/// Renaming takes the place of nothing, of an empty folder, or of a checkpoint.
fn check_replaceable(target: &Path) -> Result<()> {
    let mut entries = match fs::read_dir(target) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(|error| Error::io(target, error))?,
    };
    if entries.next().is_none() || index::is_checkpoint(target) {
        return Ok(());
    }
    Err(foreign(
        target,
        "a checkpoint, or nothing, to be replaced by one",
        "a folder with something else in it",
    ))
}

/// Moves a folder away, so that no part of it is taken for the whole, and removes it.
pub(crate) fn remove(folder: &Path) -> Result<()> {
    let failed = |error| Error::io(folder, error);
    let grave = beside(folder).map_err(failed)?;
    fs::rename(folder, grave.path()).map_err(failed)?;
    grave.close().map_err(failed)
}

/// Gives each of two folders the other's name, at once where the system can.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    #[cfg(any(target_os = "linux", target_vendor = "apple"))]
    {
        use rustix::fs::{CWD, RenameFlags, renameat_with};
        use rustix::io::Errno;
        match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
            // Not on every file system.
            Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {}
            outcome => return Ok(outcome?),
        }
    }
    let aside = new.with_extension("old");
    fs::rename(old, &aside)?;
    fs::rename(new, old)?;
    fs::rename(aside, new)
}

/// Waits until a folder's names are on the disk.
fn sync_folder(folder: &Path) -> io::Result<()> {
    match File::open(folder)?.sync_all() {
        // Some file systems have no way to do it, and some systems do not open folders for it.
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported
            ) =>
        {
            Ok(())
        }
        outcome => outcome,
    }
}
