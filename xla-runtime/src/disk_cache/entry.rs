//! The form of an entry: whose it is, then what [`Executable::serialize`] gave, which says what
//! build of the plugin wrote it and carries a checksum.
//!
//! [`Executable::serialize`]: crate::Executable::serialize

use super::key::Key;
use xla_core::{Error, Result};

/// First bytes of an entry; the last is the version of its form.
const MAGIC: &[u8; 8] = b"XLARSPC\x01";
const HEADER: usize = MAGIC.len() + Key::LEN;

/// The entry of a serialised executable.
pub(super) fn seal(blob: &[u8], key: &Key) -> Vec<u8> {
    [MAGIC, key.bytes().as_slice(), blob].concat()
}

/// The serialised executable of an entry that was written under this very key. The executable's own
/// envelope is checked by whoever loads it.
pub(super) fn open<'a>(bytes: &'a [u8], key: &Key) -> Result<&'a [u8]> {
    let refuse = |expected, got| Err(Error::argument("compile", "entry", expected, got));
    let Some((header, blob)) = bytes.split_at_checked(HEADER) else {
        return refuse("an entry", "something shorter than its header");
    };
    let (magic, owner) = header.split_at(MAGIC.len());
    if magic != MAGIC {
        return refuse("an entry of this version", "other bytes");
    }
    if owner != key.bytes() {
        return refuse("the entry that the file's name promises", "another one");
    }
    Ok(blob)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_opens_under_its_own_key_and_version_only() {
        let (mine, other) = (Key::new(&[1; 32], "a", b"o"), Key::new(&[1; 32], "b", b"o"));
        let entry = seal(b"blob", &mine);
        assert_eq!(open(&entry, &mine).unwrap(), b"blob");
        assert!(open(&entry, &other).is_err());
        assert!(open(&entry[..HEADER - 1], &mine).is_err());
        assert!(open(b"", &mine).is_err());
        let mut newer = entry;
        newer[7] += 1;
        assert!(open(&newer, &mine).is_err());
    }
}
