//! Where what is installed once is kept, and who may install it.

use std::env;
use std::fs::{self, File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::note;

/// The folder of everything that is installed once for all checkouts.
///
/// # Errors
/// [`Error::NoCacheFolder`].
pub(super) fn folder() -> Result<PathBuf> {
    cache_folder(|name| env::var_os(name).map(PathBuf::from)).map(|folder| folder.join("xla-rs"))
}

/// `$XDG_CACHE_HOME`, else `$HOME/.cache`. A relative path counts as unset, as the XDG base
/// directory specification says.
fn cache_folder(variable: impl Fn(&str) -> Option<PathBuf>) -> Result<PathBuf> {
    let absolute = |name| variable(name).filter(|path: &PathBuf| path.is_absolute());
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .ok_or(Error::NoCacheFolder)
}

/// Held while something is installed, so that two runs do not install into one folder. The
/// operating system takes it back from a run that is killed.
pub(super) struct Installing {
    _lock: File,
}

impl Installing {
    /// Waits for another run that installs into `folder`, which lies beside its lock.
    ///
    /// # Errors
    /// [`Error::Busy`] after `deadline`; [`Error::File`] where there can be no lock.
    pub(super) fn begin(folder: &Path, deadline: Duration) -> Result<Installing> {
        let parent = folder.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(parent).map_err(Error::file("create", parent))?;
        let path = folder.with_added_extension("lock");
        let lock = File::create(&path).map_err(Error::file("create", &path))?;
        let end = Instant::now() + deadline;
        let mut told = false;
        loop {
            match lock.try_lock() {
                Ok(()) => return Ok(Installing { _lock: lock }),
                Err(TryLockError::Error(error)) => return Err(Error::file("lock", &path)(error)),
                Err(TryLockError::WouldBlock) if Instant::now() > end => {
                    return Err(Error::Busy {
                        folder: folder.to_path_buf(),
                        after: deadline,
                    });
                }
                Err(TryLockError::WouldBlock) => {}
            }
            if !told {
                note(format_args!(
                    "waiting for another run that installs {}",
                    folder.display()
                ));
                told = true;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_folder_follows_the_xdg_specification() {
        let given = |xdg: Option<&str>, home: Option<&str>| {
            cache_folder(|name| match name {
                "XDG_CACHE_HOME" => xdg.map(PathBuf::from),
                _ => home.map(PathBuf::from),
            })
        };
        assert_eq!(given(Some("/c"), Some("/h")).unwrap(), Path::new("/c"));
        assert_eq!(
            given(Some("c"), Some("/h")).unwrap(),
            Path::new("/h/.cache")
        );
        assert_eq!(given(Some(""), Some("/h")).unwrap(), Path::new("/h/.cache"));
        assert!(matches!(given(None, None), Err(Error::NoCacheFolder)));
    }

    #[test]
    fn one_run_installs_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("tool-1.0");
        let first = Installing::begin(&folder, Duration::ZERO).unwrap();
        let second = Installing::begin(&folder, Duration::ZERO);
        assert!(matches!(second, Err(Error::Busy { .. })));
        drop(first);
        assert!(Installing::begin(&folder, Duration::ZERO).is_ok());
    }
}
