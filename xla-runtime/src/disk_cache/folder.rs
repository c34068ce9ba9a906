//! The folder that holds the entries, shared by any number of processes.
//!
//! An entry is written under a temporary name and renamed, so it is whole wherever it is found, as
//! long as the machine does not crash. Nothing is synced to the disk: after a crash an entry may be
//! torn, which its checksum tells, and compiling once more costs less than waiting for the disk each
//! time.

use super::key::Key;
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io::{self, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

const ENTRY: &str = "xla";
const LOCK: &str = "lock";
const TEMPORARY: &str = ".writing-";

/// How long a process waits while another one compiles the same program, before it compiles it
/// itself: the other may have been stopped.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a process that was killed left behind is removed when it is this old.
const ABANDONED: Duration = Duration::from_secs(60 * 60);

/// A folder of entries.
pub(super) struct Folder {
    path: PathBuf,
    max_bytes: u64,
}

/// The right to compile a program while others wait, until dropped.
pub(super) struct Turn {
    // Given back by the system also when the process is killed.
    _lock: File,
    path: PathBuf,
}

impl Drop for Turn {
    fn drop(&mut self) {
        // Removed while it is held. Whoever has opened it already gets it next, and finds the entry.
        let _ = fs::remove_file(&self.path);
    }
}

impl Folder {
    pub(super) fn new(path: PathBuf, max_bytes: u64) -> Self {
        Folder { path, max_bytes }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the entry of a key is, if there is one.
    pub(super) fn file(&self, key: &Key) -> PathBuf {
        self.path.join(key.name()).with_extension(ENTRY)
    }

    /// The entry of a key, which thereby counts as used; `None` where there is none.
    pub(super) fn read(&self, key: &Key) -> io::Result<Option<Vec<u8>>> {
        let mut file = match File::open(self.file(key)) {
            Ok(file) => file,
            // A file where the folder should be is what writing complains about.
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        // The time of access is what many systems do not keep. Fails for another user's file.
        let _ = file.set_modified(SystemTime::now());
        Ok(Some(bytes))
    }

    /// Puts an entry into the folder in place of any other of its key, and removes what was not used
    /// for longest while the folder holds too much.
    pub(super) fn write(&self, key: &Key, bytes: &[u8]) -> io::Result<()> {
        if bytes.len() as u64 > self.max_bytes {
            tracing::debug!(bytes = bytes.len(), "larger than the persistent cache");
            return Ok(());
        }
        self.create()?;
        let mut builder = tempfile::Builder::new();
        builder.prefix(TEMPORARY);
        // What the user's mask leaves of it: a folder may be shared.
        #[cfg(unix)]
        builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
        let mut file = builder.tempfile_in(&self.path)?;
        file.write_all(bytes)?;
        file.persist(self.file(key)).map_err(|e| e.error)?;
        self.evict()
    }

    /// Waits until no other process compiles the program of this key. `None` where there is no
    /// telling, or it takes too long.
    pub(super) fn turn(&self, key: &Key) -> Option<Turn> {
        let path = self.path.join(key.name()).with_extension(LOCK);
        let lock = self
            .create()
            .and_then(|()| {
                File::options()
                    .create(true)
                    .truncate(false)
                    .write(true)
                    .open(&path)
            })
            .ok()?;
        let end = Instant::now() + PATIENCE;
        loop {
            match lock.try_lock() {
                Ok(()) => return Some(Turn { _lock: lock, path }),
                Err(TryLockError::WouldBlock) if Instant::now() < end => {
                    thread::sleep(Duration::from_millis(5));
                }
                Err(reason) => {
                    tracing::debug!(%reason, "a program is compiled out of turn");
                    return None;
                }
            }
        }
    }

    /// Only the user may enter a folder made here: what is in it is executed.
    fn create(&self) -> io::Result<()> {
        let mut builder = DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(&self.path)
    }

    fn evict(&self) -> io::Result<()> {
        let now = SystemTime::now();
        let mut entries = Vec::new();
        let mut total = 0;
        for file in fs::read_dir(&self.path)? {
            // Other processes remove files, too.
            let Ok((path, meta)) = file.and_then(|f| Ok((f.path(), f.metadata()?))) else {
                continue;
            };
            let used = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
            let extension = path.extension().and_then(|e| e.to_str());
            if extension == Some(ENTRY) {
                total += meta.len();
                entries.push((used, meta.len(), path));
            } else if is_transient(&path)
                && now.duration_since(used).is_ok_and(|age| age > ABANDONED)
            {
                let _ = fs::remove_file(&path);
            }
        }
        if total <= self.max_bytes {
            return Ok(());
        }
        entries.sort_unstable();
        for (_, bytes, path) in entries {
            if total <= self.max_bytes {
                break;
            }
            match fs::remove_file(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => {
                    tracing::debug!(%error, path = %path.display(), "not removed");
                    continue;
                }
            }
            total -= bytes;
        }
        Ok(())
    }
}

/// Whether it is a lock, or an entry being written.
fn is_transient(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or("");
    name.starts_with(TEMPORARY) || path.extension().is_some_and(|e| e == LOCK)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::new(&[0; 32], name, b"")
    }

    fn folder(max_bytes: u64) -> (tempfile::TempDir, Folder) {
        let root = tempfile::tempdir().unwrap();
        let folder = Folder::new(root.path().join("a/b"), max_bytes);
        (root, folder)
    }

    fn set_used(folder: &Folder, name: &str, seconds_ago: u64) {
        let file = File::options()
            .write(true)
            .open(folder.file(&key(name)))
            .unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds_ago))
            .unwrap();
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let (_root, folder) = folder(30);
        let has = |name| folder.read(&key(name)).unwrap().is_some();
        for (name, age) in [("a", 30), ("b", 20), ("c", 10)] {
            folder.write(&key(name), &[1; 10]).unwrap();
            set_used(&folder, name, age);
        }
        assert!(has("a"));
        folder.write(&key("d"), &[1; 10]).unwrap();
        assert!(has("a") && !has("b") && has("c") && has("d"));
        folder.write(&key("e"), &[1; 31]).unwrap();
        assert!(!has("e") && has("d"));
    }

    #[test]
    fn an_entry_is_replaced_whole_and_nothing_else_is_left() {
        let (_root, folder) = folder(1 << 20);
        assert_eq!(folder.read(&key("a")).unwrap(), None);
        for n in [100, 5, 7000] {
            folder.write(&key("a"), &vec![3; n]).unwrap();
            assert_eq!(folder.read(&key("a")).unwrap(), Some(vec![3; n]));
        }
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    #[cfg(unix)]
    fn a_folder_made_here_is_the_user_s_alone() {
        use std::os::unix::fs::PermissionsExt;
        let (_root, folder) = folder(1 << 20);
        folder.write(&key("a"), b"1").unwrap();
        let mode = fs::metadata(folder.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
    }

    #[test]
    fn what_a_killed_process_left_goes_after_an_hour() {
        let (_root, folder) = folder(1 << 20);
        folder.write(&key("a"), b"1").unwrap();
        let left: Vec<PathBuf> = [".writing-x", "k.lock", "user.txt"]
            .map(|name| folder.path().join(name))
            .into();
        for path in &left {
            let file = File::create(path).unwrap();
            file.set_modified(SystemTime::now() - 2 * ABANDONED)
                .unwrap();
        }
        folder.write(&key("b"), b"1").unwrap();
        let there: Vec<bool> = left.iter().map(|p| p.exists()).collect();
        assert_eq!(there, [false, false, true]);
    }

    #[test]
    fn the_second_waits_for_the_first_one_s_entry() {
        let (_root, folder) = folder(1 << 20);
        let first = folder.turn(&key("a")).unwrap();
        assert!(folder.turn(&key("b")).is_some());
        let found = thread::scope(|scope| {
            let second = scope.spawn(|| {
                let _turn = folder.turn(&key("a")).unwrap();
                folder.read(&key("a")).unwrap()
            });
            thread::sleep(Duration::from_millis(50));
            folder.write(&key("a"), b"made by the first").unwrap();
            drop(first);
            second.join().unwrap()
        });
        assert_eq!(found.as_deref(), Some(b"made by the first".as_slice()));
    }

    #[test]
    fn a_file_in_the_folder_s_place_is_an_error_of_writing_only() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("file");
        fs::write(&path, "").unwrap();
        let folder = Folder::new(path, 100);
        assert_eq!(folder.read(&key("a")).unwrap(), None);
        assert!(folder.turn(&key("a")).is_none());
        assert!(folder.write(&key("a"), b"1").is_err());
    }
}
