//! Remembers that an installed file had the right SHA-256, so that it need not be hashed again.
//!
//! The stamp lies beside the file and holds what the file system says of it. It only ever saves
//! time: if anything differs, or the stamp cannot be read, the file is hashed.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// A file's SHA-256 and its state when that was computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Stamp {
    sha256: String,
    size: u64,
    /// Last modification, in nanoseconds since the epoch.
    modified: i128,
    /// Last change of the inode, which no program can set: a file whose modification time was put
    /// back is hashed again.
    changed: i128,
}

impl Stamp {
    /// The stamp of a file whose digest is known.
    pub(super) fn new(sha256: &str, metadata: &Metadata) -> Stamp {
        let nanoseconds =
            |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Stamp {
            sha256: sha256.to_owned(),
            size: metadata.len(),
            modified: nanoseconds(metadata.mtime(), metadata.mtime_nsec()),
            changed: nanoseconds(metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// The stamp beside `file`, if there is one that can be read.
    pub(super) fn read(file: &Path) -> Option<Stamp> {
        let text = std::fs::read(path(file)).ok()?;
        serde_json::from_slice(&text).ok()
    }

    /// Writes the stamp beside `file`, whole or not at all.
    pub(super) fn write(&self, file: &Path) -> io::Result<()> {
        let folder = file.parent().unwrap_or(Path::new("."));
        let mut temporary = tempfile::NamedTempFile::new_in(folder)?;
        serde_json::to_writer(&mut temporary, self)?;
        temporary.persist(path(file))?;
        Ok(())
    }
}

fn path(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".stamp");
    PathBuf::from(name)
}

/// The SHA-256 of what `reader` yields, in lower-case hexadecimal, and how many bytes it was.
pub(super) fn sha256(mut reader: impl io::Read) -> io::Result<(String, u64)> {
    let mut hasher = Sha256::new();
    let size = io::copy(
        &mut io::BufReader::with_capacity(1 << 20, &mut reader),
        &mut hasher,
    )?;
    Ok((hexadecimal(hasher), size))
}

/// The digest in lower-case hexadecimal.
pub(super) fn hexadecimal(hasher: Sha256) -> String {
    hasher
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_that_of_the_standard() {
        // FIPS 180-2, appendix B.1.
        let (digest, size) = sha256(&b"abc"[..]).unwrap();
        assert_eq!(
            digest,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(size, 3);
    }

    #[test]
    fn a_stamp_survives_the_file_system_and_a_change_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plugin.so");
        std::fs::write(&file, "right").unwrap();
        let stamp = Stamp::new("d", &file.metadata().unwrap());
        stamp.write(&file).unwrap();
        assert_eq!(Stamp::read(&file), Some(stamp.clone()));

        // The same size, and the modification time put back.
        let modified = file.metadata().unwrap().modified().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        std::fs::write(&file, "wrong").unwrap();
        let handle = std::fs::File::options().write(true).open(&file).unwrap();
        handle.set_modified(modified).unwrap();
        assert_ne!(Stamp::new("d", &file.metadata().unwrap()), stamp);
    }

    #[test]
    fn an_unreadable_stamp_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("plugin.so");
        assert_eq!(Stamp::read(&file), None);
        std::fs::write(path(&file), "{\"sha256\": \"").unwrap();
        assert_eq!(Stamp::read(&file), None);
    }
}
