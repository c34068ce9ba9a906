//! The user's cache folder: where the plugin is installed, and small facts about plugins that are
//! slow to find out.

use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;
use xla_core::{Error, Result};

/// `$XDG_CACHE_HOME/xla-rs` or `~/.cache/xla-rs`; among the temporary files for a user without a
/// home.
pub(crate) fn folder() -> PathBuf {
    private_folder().unwrap_or_else(|| std::env::temp_dir().join(".cache/xla-rs"))
}

/// The same, where it is the user's own.
pub(crate) fn private_folder() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|p| p.is_absolute())
    };
    absolute("XDG_CACHE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".cache")))
        .map(|caches| caches.join("xla-rs"))
}

/// SHA-256 of a file, remembered for as long as its path, size and time of change stay the same.
pub(crate) fn file_sha256(path: &Path) -> Result<[u8; 32]> {
    if let Some(known) = recall(path, "sha256").and_then(|text| from_hex(&text)) {
        return Ok(known);
    }
    let io = |e| Error::io(path, e);
    let mut file = fs::File::open(path).map_err(io)?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block).map_err(io)? {
            0 => break,
            n => hasher.update(&block[..n]),
        }
    }
    let digest: [u8; 32] = hasher.finalize().into();
    remember(path, "sha256", &hex(&digest));
    Ok(digest)
}

/// What was remembered of a file under this name, if the file has not changed since.
pub(crate) fn recall(file: &Path, name: &str) -> Option<String> {
    fs::read_to_string(entry(file, name)?).ok()
}

/// Remembers something about a file. A cache that cannot be written costs time, never correctness,
/// so failure is silent.
pub(crate) fn remember(file: &Path, name: &str, text: &str) {
    let Some(path) = entry(file, name) else {
        return;
    };
    // Written aside and moved, so that another process never reads half of it.
    let mut aside = OsString::from(&path);
    aside.push(format!(".{}", std::process::id()));
    let written = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&aside, text))
        .and_then(|()| fs::rename(&aside, &path));
    if let Err(error) = written {
        tracing::debug!(%error, path = %path.display(), "not remembered");
        let _ = fs::remove_file(&aside);
    }
}

fn entry(file: &Path, name: &str) -> Option<PathBuf> {
    let meta = fs::metadata(file).ok()?;
    let changed = meta.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    let mut hasher = Sha256::new();
    hasher.update(file.as_os_str().as_encoded_bytes());
    hasher.update(meta.len().to_le_bytes());
    hasher.update(changed.as_nanos().to_le_bytes());
    let key = hex(&hasher.finalize()[..16]);
    Some(folder().join("files").join(format!("{key}.{name}")))
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn from_hex(text: &str) -> Option<[u8; 32]> {
    let text = text.trim();
    if text.len() != 64 || !text.is_ascii() {
        return None;
    }
    let mut bytes = [0; 32];
    for (i, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * i..2 * i + 2], 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hex_round_trips_and_refuses_junk() {
        let bytes: [u8; 32] = std::array::from_fn(|i| (i * 8) as u8);
        assert_eq!(from_hex(&hex(&bytes)), Some(bytes));
        assert_eq!(from_hex("00"), None);
        assert_eq!(from_hex(&"zz".repeat(32)), None);
    }
}
