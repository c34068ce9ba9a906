//! What a child and its parent say to each other, over a socket in a folder that only their user
//! can enter.

use crate::failure::{Failure, Outcome};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use tempfile::TempDir;
use xla_core::{Error, Result};

/// What an earlier launch returned to the parent: every rank's value, encoded, or its error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Recorded {
    /// Every rank's value.
    Values(Vec<Vec<u8>>),
    /// The rank that failed and its words.
    Failed(usize, String),
    /// The words of another error, which a child can only repeat.
    Refused(String),
}

/// What a child says.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum FromChild {
    /// Which process it is: once, first.
    Here(usize),
    /// How a replica ended, with its encoded value.
    Ended(usize, std::result::Result<Vec<u8>, Failure>),
}

/// What a parent says, once: what its earlier launches returned, by ordinal; none for one whose
/// values cannot be encoded, which a child runs again itself.
pub(crate) type FromParent = Vec<Option<Recorded>>;

impl FromChild {
    pub(crate) fn of(outcome: &Outcome<Vec<u8>>) -> Self {
        FromChild::Ended(outcome.rank, outcome.result.clone())
    }
}

/// A value as bytes.
///
/// # Errors
/// [`Error::Launch`] for a value that has no serialised form.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    rmp_serde::to_vec_named(value).map_err(|error| Error::Launch {
        reason: format!("a value cannot be serialised: {error}"),
        advice: "return something that serde can write as MessagePack and read back",
    })
}

/// A value from its bytes.
///
/// # Errors
/// [`Error::Launch`] for bytes that are no such value.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    rmp_serde::from_slice(bytes).map_err(|error| Error::Launch {
        reason: format!("a value cannot be read back: {error}"),
        advice: "return a type whose Deserialize reads what its Serialize writes",
    })
}

/// Sends one message.
///
/// # Errors
/// [`Error::System`] when the other side is gone.
pub(crate) fn send<T: Serialize>(mut stream: &UnixStream, message: &T) -> Result<()> {
    let bytes = encode(message)?;
    let mut frame = (bytes.len() as u64).to_le_bytes().to_vec();
    frame.extend(bytes);
    stream
        .write_all(&frame)
        .map_err(|error| Error::system("write to a launch's socket", error))
}

/// Waits for one message; none once the other side is gone.
///
/// # Errors
/// [`Error::Launch`] for bytes that are no message.
pub(crate) fn receive<T: DeserializeOwned>(mut stream: &UnixStream) -> Result<Option<T>> {
    let mut length = [0; 8];
    if stream.read_exact(&mut length).is_err() {
        return Ok(None);
    }
    let length = u64::from_le_bytes(length);
    let mut bytes = Vec::new();
    match stream.take(length).read_to_end(&mut bytes) {
        Ok(n) if n as u64 == length => decode(&bytes).map(Some),
        _ => Ok(None),
    }
}

/// The parent's end.
#[derive(Debug)]
pub(crate) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    closed: AtomicBool,
    /// Removed with everything in it when dropped.
    _folder: TempDir,
}

impl Socket {
    /// # Errors
    /// [`Error::Io`] when there can be no such file.
    pub(crate) fn new() -> Result<Self> {
        let folder_in = |parent: &Path| {
            tempfile::Builder::new()
                .prefix("xla-launch-")
                .tempdir_in(parent)
                .map_err(|error| Error::io(parent, error))
        };
        let mut folder = folder_in(&std::env::temp_dir())?;
        // An address has room for 108 bytes.
        if folder.path().as_os_str().len() > 90 {
            folder = folder_in(Path::new("/tmp"))?;
        }
        let path = folder.path().join("socket");
        let listener = UnixListener::bind(&path).map_err(|error| Error::io(&path, error))?;
        Ok(Socket {
            listener,
            path,
            closed: AtomicBool::new(false),
            _folder: folder,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next child; none once the socket is closed and all that came before have been
    /// taken.
    pub(crate) fn accept(&self) -> Option<UnixStream> {
        if self.closed.load(Ordering::SeqCst) {
            self.listener.set_nonblocking(true).ok()?;
        }
        let (stream, _) = self.listener.accept().ok()?;
        stream.set_nonblocking(false).ok()?;
        Some(stream)
    }

    /// Has nobody wait for children any more. To be called when there are none.
    pub(crate) fn close(&self) {
        // Whoever waits just now is woken by a child that says nothing.
        self.closed.store(true, Ordering::SeqCst);
        drop(UnixStream::connect(&self.path));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn messages_arrive_whole_and_an_end_is_no_message() {
        let (here, there) = UnixStream::pair().unwrap();
        let failure = Failure::new("disk full".into());
        for message in [
            FromChild::Here(3),
            FromChild::Ended(7, Ok(vec![0; 100_000])),
            FromChild::Ended(8, Err(failure.clone())),
        ] {
            let writer = here.try_clone().unwrap();
            let sent = std::thread::spawn(move || send(&writer, &message));
            match receive::<FromChild>(&there).unwrap().unwrap() {
                FromChild::Here(process) => assert_eq!(process, 3),
                FromChild::Ended(7, value) => assert_eq!(value.unwrap().len(), 100_000),
                FromChild::Ended(rank, result) => {
                    assert_eq!((rank, result), (8, Err(failure.clone())));
                }
            }
            sent.join().unwrap().unwrap();
        }
        // A process that dies amid a message has not said it.
        (&here).write_all(&[5, 0, 0]).unwrap();
        drop(here);
        assert!(receive::<FromChild>(&there).unwrap().is_none());
    }

    #[test]
    fn values_survive_with_what_json_has_no_words_for() {
        let values: BTreeMap<u32, (f32, String)> =
            [(7, (f32::INFINITY, "ä".into())), (9, (-0.0, String::new()))].into();
        let back: BTreeMap<u32, (f32, String)> = decode(&encode(&values).unwrap()).unwrap();
        assert_eq!(back, values);
        assert!(matches!(
            decode::<String>(&[0xc1]),
            Err(Error::Launch { .. })
        ));
    }
}
