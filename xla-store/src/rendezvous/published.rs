//! Meetings whose address is not known beforehand: process 0 publishes it where all look.
//!
//! What is published may be old, from a run that was killed before it could take it away. So it
//! carries a random word that becomes part of the store's token: an old address leads nowhere, or to
//! a store that refuses, and is read again until the new one is there.

use std::fmt::Write as _;
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tempfile::NamedTempFile;
use xla_core::{Error, Result};

use super::{LaunchInfo, Place, Rendezvous, join, left, serve};
use crate::Store;
use crate::torch::TorchStore;

/// How long one attempt on an address that may be old may take.
const ATTEMPT: Duration = Duration::from_secs(5);

/// Pause before what is published is read again.
const AGAIN: Duration = Duration::from_millis(50);

/// Where an address is published.
pub(super) trait Board {
    /// The address on which process 0 is to host the store.
    fn bind_to(&self) -> Result<SocketAddr>;

    /// Puts a line there, in place of what was.
    fn publish(&mut self, line: &str) -> Result<()>;

    /// What is there; waits until something is, at most as long as this, where it can.
    fn read(&mut self, patience: Duration) -> Result<Option<String>>;

    /// Takes away what was published.
    fn clear(&mut self) -> Result<()>;
}

/// Meets through a board.
pub(super) fn meet(
    url: &str,
    place: &Place,
    mut board: impl Board,
    launch: &LaunchInfo,
    end: Instant,
) -> Result<Rendezvous> {
    if place.rank == 0 {
        let word = word()?;
        let launch = launch.with_word(&word);
        let server = serve(&board.bind_to()?, &launch)?;
        let address = server.address();
        board.publish(&format!("{address} {word}"))?;
        let store = Store::connect(&address.to_string(), &launch.connect(left(end)))?;
        // Taken away before anyone goes on: the next meeting in the same place finds nothing old.
        return join(url, place, store, Some(server), &launch, end, || {
            board.clear()
        });
    }
    let (store, launch) = find(url, &mut board, launch, end)?;
    join(url, place, store, None, &launch, end, || Ok(()))
}

/// Process 0's store, once what is published leads there.
fn find(
    url: &str,
    board: &mut impl Board,
    launch: &LaunchInfo,
    end: Instant,
) -> Result<(Store, LaunchInfo)> {
    let start = Instant::now();
    let mut last = "process 0 has not published the address of its store".to_owned();
    loop {
        let line = board.read(left(end))?.unwrap_or_default();
        if let Some((address, word)) = line.trim().split_once(' ') {
            let launch = launch.with_word(word);
            let options = launch.connect(ATTEMPT.min(left(end)));
            match Store::connect(address, &options) {
                Ok(store) => return Ok((store, launch)),
                Err(error) => last = error.to_string(),
            }
        }
        if left(end).is_zero() {
            return Err(Error::Rendezvous {
                url: url.into(),
                reason: format!("nothing after {:?}: {last}", start.elapsed()),
                advice: "look for the error of process 0",
            });
        }
        std::thread::sleep(AGAIN.min(left(end)));
    }
}

impl LaunchInfo {
    /// This, with a token that an older run's store does not know.
    fn with_word(&self, word: &str) -> LaunchInfo {
        LaunchInfo {
            external: self.external.clone(),
            token: Some(format!(
                "{}{word}",
                self.token.as_deref().unwrap_or_default()
            )),
        }
    }
}

fn word() -> Result<String> {
    let mut bytes = [0_u8; 16];
    getrandom::fill(&mut bytes).map_err(|error| Error::Store {
        call: "rendezvous",
        address: "this process".into(),
        reason: format!("the system gives no random numbers: {error}"),
        advice: "",
    })?;
    Ok(bytes.iter().fold(String::new(), |mut word, byte| {
        // Writing to a string cannot fail.
        let _ = write!(word, "{byte:02x}");
        word
    }))
}

/// A file that all processes reach.
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) bind_to: SocketAddr,
}

impl Board for File {
    fn bind_to(&self) -> Result<SocketAddr> {
        Ok(self.bind_to)
    }

    fn publish(&mut self, line: &str) -> Result<()> {
        // Renamed into place, so that nobody reads half of it; only its owner reads it at all.
        let folder = match self.path.parent() {
            Some(folder) if folder != Path::new("") => folder,
            _ => Path::new("."),
        };
        let io = |error| Error::io(&self.path, error);
        let mut file = NamedTempFile::new_in(folder).map_err(io)?;
        file.write_all(line.as_bytes()).map_err(io)?;
        match file.persist(&self.path) {
            Ok(_) => Ok(()),
            Err(error) => Err(io(error.error)),
        }
    }

    fn read(&mut self, _: Duration) -> Result<Option<String>> {
        match std::fs::read(&self.path) {
            Ok(bytes) => Ok(String::from_utf8(bytes).ok()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(&self.path, error)),
        }
    }

    fn clear(&mut self) -> Result<()> {
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(Error::io(&self.path, error))
            }
            _ => Ok(()),
        }
    }
}

/// The store of torchrun's agent.
pub(super) struct Agent {
    store: TorchStore,
    key: String,
}

impl Agent {
    pub(super) fn connect(host: &str, port: u16, attempt: u64, end: Instant) -> Result<Agent> {
        Ok(Agent {
            store: TorchStore::connect(host, port, left(end))?,
            // As torchrun's workers name what belongs to an attempt; PyTorch's client adds the
            // first slash to every key.
            key: format!("/worker/attempt_{attempt}/xla/store"),
        })
    }
}

impl Board for Agent {
    /// Process 0 may be on another machine than the agent that hosts; the address by which it
    /// reaches that agent is one by which the others reach it.
    fn bind_to(&self) -> Result<SocketAddr> {
        Ok(SocketAddr::new(self.store.own_ip()?, 0))
    }

    fn publish(&mut self, line: &str) -> Result<()> {
        self.store.set(&self.key, line.as_bytes())
    }

    fn read(&mut self, patience: Duration) -> Result<Option<String>> {
        let value = self.store.get(&self.key, patience)?;
        Ok(String::from_utf8(value).ok())
    }

    fn clear(&mut self) -> Result<()> {
        self.store.delete(&self.key)
    }
}
