//! The IDX format of the MNIST files: one array behind a short big-endian header, gzipped or not.

use flate2::bufread::MultiGzDecoder;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use xla_core::{DType, Error, Literal, Result, Shape};

const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Reads one IDX file, gzipped or plain, into a literal of the file's dtype and shape.
///
/// The format knows `u8`, `i8`, `i16`, `i32`, `f32` and `f64`. The file must hold exactly the
/// elements that its header announces: a download that stopped half way is an error, never a
/// shorter array.
///
/// # Errors
/// [`Error::Io`] when the file cannot be opened or read; [`Error::FileFormat`] when it is cut
/// short, is too long, fails its checksum or is no IDX file.
pub fn read_idx(path: impl AsRef<Path>) -> Result<Literal> {
    let path = path.as_ref();
    let file = File::open(path).map_err(|e| Error::io(path, e))?;
    let mut raw = BufReader::new(file);
    let gzipped = raw
        .fill_buf()
        .map_err(|e| Error::io(path, e))?
        .starts_with(&GZIP);
    if gzipped {
        read(path, &mut MultiGzDecoder::new(raw))
    } else {
        read(path, &mut raw)
    }
}

fn read(path: &Path, input: &mut dyn Read) -> Result<Literal> {
    let malformed = |expected: String, got: String| Error::FileFormat {
        path: path.to_owned(),
        expected,
        got,
    };
    let failed = |what: &str, error: std::io::Error| match error.kind() {
        std::io::ErrorKind::UnexpectedEof => {
            malformed(what.to_owned(), "a file that ends early".into())
        }
        std::io::ErrorKind::InvalidData | std::io::ErrorKind::InvalidInput => {
            malformed(what.to_owned(), format!("a damaged gzip stream ({error})"))
        }
        _ => Error::io(path, error),
    };

    let mut magic = [0u8; 4];
    input
        .read_exact(&mut magic)
        .map_err(|e| failed("the 4-byte magic number of an IDX file", e))?;
    let dtype = match magic {
        [0, 0, 0x08, _] => DType::U8,
        [0, 0, 0x09, _] => DType::I8,
        [0, 0, 0x0b, _] => DType::I16,
        [0, 0, 0x0c, _] => DType::I32,
        [0, 0, 0x0d, _] => DType::F32,
        [0, 0, 0x0e, _] => DType::F64,
        other => {
            return Err(malformed(
                "an IDX magic number: 0, 0, an element type of 0x08 to 0x0e, the rank".into(),
                format!("{other:02x?}"),
            ));
        }
    };
    let mut dims = vec![0usize; usize::from(magic[3])];
    for dim in &mut dims {
        let mut length = [0u8; 4];
        input
            .read_exact(&mut length)
            .map_err(|e| failed(&format!("{} axis lengths", magic[3]), e))?;
        *dim = u32::from_be_bytes(length) as usize;
    }
    let shape = Shape::new(&dims);
    let wanted = shape.numel().saturating_mul(dtype.size());
    let announced = format!("{wanted} bytes for {dtype}{shape}");

    // One byte more than announced is asked for: it tells a file that is too long, and reaching
    // the end is what makes the decoder compare the checksum. Memory grows with what is really
    // there, whatever the header claims.
    let mut bytes = Vec::new();
    input
        .take((wanted as u64).saturating_add(1))
        .read_to_end(&mut bytes)
        .map_err(|e| failed(&announced, e))?;
    if bytes.len() != wanted {
        let got = if bytes.len() < wanted {
            format!("{} bytes", bytes.len())
        } else {
            "more".into()
        };
        return Err(malformed(announced, got));
    }
    if cfg!(target_endian = "little") && dtype.size() > 1 {
        for element in bytes.chunks_exact_mut(dtype.size()) {
            element.reverse();
        }
    }
    Literal::from_fill(dtype, &shape, |out| {
        out.copy_from_slice(&bytes);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;
    use std::path::PathBuf;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    fn file(name: &str, bytes: &[u8]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        (folder, path)
    }

    fn expect_malformed(bytes: &[u8], expected: &str, got: &str) {
        let (_folder, path) = file("digits", bytes);
        match read_idx(&path) {
            Err(Error::FileFormat {
                path: named,
                expected: e,
                got: g,
            }) => {
                assert_eq!(named, path);
                assert!(e.contains(expected), "{e}");
                assert!(g.contains(got), "{g}");
            }
            other => panic!("{other:?}"),
        }
    }

    const SMALL: [u8; 18] = [0, 0, 8, 2, 0, 0, 0, 2, 0, 0, 0, 3, 1, 2, 3, 4, 5, 255];

    #[test]
    fn gzipped_and_plain_files_read_the_same() {
        for bytes in [SMALL.to_vec(), gzip(&SMALL)] {
            let (_folder, path) = file("digits", &bytes);
            let literal = read_idx(&path).unwrap();
            assert_eq!(literal.shape().dims(), [2, 3]);
            assert_eq!(literal.to_vec::<u8>().unwrap(), [1, 2, 3, 4, 5, 255]);
        }
    }

    #[test]
    fn wide_elements_are_big_endian() {
        let (_folder, path) = file(
            "i32",
            &[
                0, 0, 0x0c, 1, 0, 0, 0, 2, 0, 0, 1, 2, 0xff, 0xff, 0xff, 0xfe,
            ],
        );
        assert_eq!(read_idx(&path).unwrap().to_vec::<i32>().unwrap(), [258, -2]);
        let (_folder, path) = file("f32", &[0, 0, 0x0d, 1, 0, 0, 0, 1, 0x3f, 0xc0, 0, 0]);
        assert_eq!(read_idx(&path).unwrap().to_vec::<f32>().unwrap(), [1.5]);
    }

    #[test]
    fn a_half_written_file_is_an_error() {
        expect_malformed(&SMALL[..15], "6 bytes for u8[2, 3]", "3 bytes");
        expect_malformed(&SMALL[..9], "2 axis lengths", "ends early");
        expect_malformed(&[], "magic number", "ends early");
        let whole = gzip(&SMALL);
        for cut in 3..whole.len() {
            let (_folder, path) = file("digits.gz", &whole[..cut]);
            assert!(
                matches!(read_idx(&path), Err(Error::FileFormat { .. })),
                "cut at {cut} of {}",
                whole.len()
            );
        }
    }

    #[test]
    fn other_damage_is_an_error() {
        let mut longer = SMALL.to_vec();
        longer.push(7);
        expect_malformed(&longer, "6 bytes", "more");
        expect_malformed(&gzip(&longer), "6 bytes", "more");
        expect_malformed(b"\x89PNG\r\n", "IDX magic", "89");
        // The last 8 bytes of a gzip file are its checksum and length.
        let mut flipped = gzip(&SMALL);
        let at = flipped.len() - 8;
        flipped[at] ^= 1;
        expect_malformed(&flipped, "6 bytes", "gzip");
        // A header that claims 2^96 bytes must not be believed.
        let huge = [&[0, 0, 8, 3][..], &[0xff; 12], &[1, 2, 3]].concat();
        expect_malformed(&huge, "bytes for u8", "3 bytes");
    }

    #[test]
    fn a_missing_file_names_its_path() {
        let (_folder, path) = file("here", &[]);
        let missing = path.with_file_name("missing");
        assert!(matches!(read_idx(&missing), Err(Error::Io { path, .. }) if path == missing));
    }
}
