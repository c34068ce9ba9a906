//! The envelope of serialised executables: which build of the plugin wrote it, and a checksum.
//!
//! A plugin that is handed another build's executable, or a damaged one, may corrupt its heap rather
//! than refuse it. The envelope is checked before the plugin sees a byte.

use sha2::{Digest, Sha256};
use xla_core::{Error, Result};

/// First bytes of the envelope; the last is its version.
const MAGIC: &[u8; 8] = b"XLARSEX\x01";
const HASH: usize = 32;
const HEADER: usize = MAGIC.len() + 2 * HASH;

/// Wraps what the plugin with this hash serialised.
pub(crate) fn seal(payload: &[u8], plugin: &[u8; HASH]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(HEADER + payload.len());
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(plugin);
    bytes.extend_from_slice(&Sha256::digest(payload));
    bytes.extend_from_slice(payload);
    bytes
}

/// The payload, if it is whole and this plugin wrote it.
pub(crate) fn open<'a>(bytes: &'a [u8], plugin: &[u8; HASH]) -> Result<&'a [u8]> {
    let refuse =
        |expected: &str, got: &str| Err(Error::argument("load_serialized", "bytes", expected, got));
    let Some((header, payload)) = bytes.split_at_checked(HEADER) else {
        return refuse(
            "a serialised executable",
            "something shorter than its header",
        );
    };
    let (magic, hashes) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return refuse("a serialised executable of this version", "other bytes");
    }
    let (writer, checksum) = hashes.split_at(HASH);
    if writer != plugin {
        return refuse(
            "an executable of the plugin in use",
            "one of another build of it",
        );
    }
    if checksum != Sha256::digest(payload).as_slice() {
        return refuse("an undamaged executable", "one whose checksum differs");
    }
    Ok(payload)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_writers_whole_blob_opens() {
        let (mine, other) = ([7; HASH], [8; HASH]);
        let blob = seal(b"machine code", &mine);
        assert_eq!(open(&blob, &mine).unwrap(), b"machine code");
        assert!(open(&blob, &other).is_err());
        assert!(open(&blob[..blob.len() - 1], &mine).is_err());
        assert!(open(&blob[..40], &mine).is_err());
        assert!(open(b"junk", &mine).is_err());
        for position in [0, 7, 8, 40, HEADER, blob.len() - 1] {
            let mut damaged = blob.clone();
            damaged[position] ^= 1;
            assert!(open(&damaged, &mine).is_err(), "byte {position}");
        }
    }
}
