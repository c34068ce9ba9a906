//! The wire protocol of PyTorch's `TCPStore`, as far as an address is left and found with it.
//!
//! torchrun's agent listens at `MASTER_ADDR:MASTER_PORT` with such a store, so nobody else can host
//! one there. The protocol is that of PyTorch 2.x
//! (`torch/csrc/distributed/c10d/TCPStore.cpp`, `TCPStoreBackend.hpp`), the same for both of its
//! servers, libuv's and the older one: a query is a byte for its kind, then numbers (little endian;
//! lengths are 64 bits) and bytes with their length before them.

use std::io::{self, Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::{Duration, Instant};

use xla_core::{Error, Result};

use crate::client::open;
use crate::wire::invalid;

/// Sent once a connection, before anything else.
const VALIDATION: u32 = 0x3C85_F7CE;

/// Kinds of queries.
const VALIDATE: u8 = 0;
const SET: u8 = 1;
const GET: u8 = 3;
const WAIT: u8 = 6;
const DELETE: u8 = 8;
const PING: u8 = 13;

/// The answer to [`WAIT`]: the keys are set.
const STOP_WAITING: u8 = 0;

/// Most bytes of a value that is read: an address is short.
const MAX_VALUE: u64 = 64 << 10;

/// How long an answer may take that the store does not wait for.
const PROMPT: Duration = Duration::from_secs(30);

/// A client of PyTorch's store.
pub(crate) struct TorchStore {
    stream: TcpStream,
    address: String,
}

impl TorchStore {
    /// Connects, and makes sure that such a store listens there.
    pub(crate) fn connect(host: &str, port: u16, deadline: Duration) -> Result<TorchStore> {
        let address = format!("{host}:{port}");
        let failed = |error: &io::Error| Error::Store {
            call: "rendezvous",
            address: address.clone(),
            reason: format!("torchrun's agent should listen there, with PyTorch's store: {error}"),
            advice: "; MASTER_ADDR and MASTER_PORT are torchrun's: leave them as they are",
        };
        let end = Instant::now() + deadline;
        let stream = loop {
            let left = end.saturating_duration_since(Instant::now());
            match open(&address, left.min(PROMPT)) {
                Ok(stream) => break stream,
                Err(error) if left.is_zero() => return Err(failed(&error)),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        };
        let mut store = TorchStore {
            stream,
            address: address.clone(),
        };
        store.greet().map_err(|error| failed(&error))?;
        Ok(store)
    }

    /// The address of this machine by which it reaches the agent's.
    pub(crate) fn own_ip(&self) -> Result<IpAddr> {
        match self.stream.local_addr() {
            Ok(address) => Ok(address.ip()),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Sets a key.
    pub(crate) fn set(&mut self, key: &str, value: &[u8]) -> Result<()> {
        let query = Query::of(SET).bytes(key.as_bytes()).bytes(value);
        let sent = self.stream.write_all(&query.0);
        sent.map_err(|error| self.failed(&error))
    }

    /// The value of a key, waited for until it is set.
    ///
    /// After an error the client is of no more use.
    pub(crate) fn get(&mut self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        match self.wait_and_get(key, deadline) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(Error::Deadline {
                what: format!("waiting for {key:?} at torchrun's agent ({})", self.address),
                after: deadline,
                advice: "; process 0 sets it: did it fail, or is it late?",
            }),
            Err(error) => Err(self.failed(&error)),
        }
    }

    /// Removes a key; whether it was set is not asked.
    pub(crate) fn delete(&mut self, key: &str) -> Result<()> {
        let query = Query::of(DELETE).bytes(key.as_bytes());
        let answered = self
            .stream
            .write_all(&query.0)
            .and_then(|()| self.read::<8>(PROMPT));
        answered.map(drop).map_err(|error| self.failed(&error))
    }

    fn greet(&mut self) -> io::Result<()> {
        // Any four bytes come back; PyTorch's clients send their process id.
        let nonce = std::process::id().to_le_bytes();
        let mut hello = Query::of(VALIDATE).raw(&VALIDATION.to_le_bytes()).0;
        hello.extend(Query::of(PING).raw(&nonce).0);
        self.stream.write_all(&hello)?;
        match self.read::<4>(PROMPT)? == nonce {
            true => Ok(()),
            false => Err(invalid("an answer of another kind")),
        }
    }

    /// `None` when the key is not set in time.
    fn wait_and_get(&mut self, key: &str, deadline: Duration) -> io::Result<Option<Vec<u8>>> {
        let query = Query::of(WAIT)
            .raw(&1_u64.to_le_bytes())
            .bytes(key.as_bytes());
        self.stream.write_all(&query.0)?;
        match self.read::<1>(deadline) {
            Ok([STOP_WAITING]) => {}
            Ok(_) => return Err(invalid("an answer of another kind")),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                return Ok(None);
            }
            Err(error) => return Err(error),
        }
        self.stream
            .write_all(&Query::of(GET).bytes(key.as_bytes()).0)?;
        let length = u64::from_le_bytes(self.read::<8>(PROMPT)?);
        if length > MAX_VALUE {
            return Err(invalid("a value longer than any address"));
        }
        let mut value = Vec::new();
        (&self.stream).take(length).read_to_end(&mut value)?;
        match value.len() as u64 == length {
            true => Ok(Some(value)),
            false => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }

    fn read<const N: usize>(&mut self, patience: Duration) -> io::Result<[u8; N]> {
        let patience = patience.max(Duration::from_millis(1));
        self.stream.set_read_timeout(Some(patience))?;
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn failed(&self, error: &io::Error) -> Error {
        Error::Store {
            call: "rendezvous",
            address: self.address.clone(),
            reason: format!("PyTorch's store of torchrun's agent: {error}"),
            advice: "; did torchrun end?",
        }
    }
}

/// A query's bytes.
struct Query(Vec<u8>);

impl Query {
    fn of(kind: u8) -> Query {
        Query(vec![kind])
    }

    fn raw(mut self, bytes: &[u8]) -> Query {
        self.0.extend_from_slice(bytes);
        self
    }

    fn bytes(self, bytes: &[u8]) -> Query {
        self.raw(&(bytes.len() as u64).to_le_bytes()).raw(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;
    use std::thread::JoinHandle;

    /// A server that expects these bytes and answers with those, recorded from PyTorch 2.9.
    fn replay(turns: Vec<(Vec<u8>, Vec<u8>)>) -> (u16, JoinHandle<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            for (expected, answer) in turns {
                let mut got = vec![0; expected.len()];
                stream.read_exact(&mut got).unwrap();
                assert_eq!(got, expected);
                stream.write_all(&answer).unwrap();
            }
            assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        });
        (port, served)
    }

    fn hello() -> (Vec<u8>, Vec<u8>) {
        let nonce = std::process::id().to_le_bytes();
        let sent = [b"\x00\xce\xf7\x85\x3c\x0d".as_slice(), &nonce].concat();
        (sent, nonce.to_vec())
    }

    #[test]
    fn the_bytes_are_pytorchs() {
        let set = b"\x01\x02\0\0\0\0\0\0\0/k\x05\0\0\0\0\0\0\0value";
        let wait = b"\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k";
        let get = b"\x03\x02\0\0\0\0\0\0\0/k";
        let value = b"\x05\0\0\0\0\0\0\0value";
        let delete = b"\x08\x02\0\0\0\0\0\0\0/k";
        let deleted = b"\x01\0\0\0\0\0\0\0";
        let (port, served) = replay(vec![
            hello(),
            (set.to_vec(), vec![]),
            (wait.to_vec(), vec![0]),
            (get.to_vec(), value.to_vec()),
            (delete.to_vec(), deleted.to_vec()),
        ]);
        let mut store = TorchStore::connect("127.0.0.1", port, PROMPT).unwrap();
        store.set("/k", b"value").unwrap();
        assert_eq!(store.get("/k", PROMPT).unwrap(), b"value");
        store.delete("/k").unwrap();
        drop(store);
        served.join().unwrap();
    }

    #[test]
    fn a_key_that_is_not_set_in_time_is_named() {
        let wait = b"\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k";
        let (port, served) = replay(vec![hello(), (wait.to_vec(), vec![])]);
        let mut store = TorchStore::connect("127.0.0.1", port, PROMPT).unwrap();
        let error = store.get("/k", Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }), "{error}");
        assert!(error.to_string().contains("/k"), "{error}");
        drop(store);
        served.join().unwrap();
    }

    #[test]
    fn a_huge_value_and_another_service_are_errors() {
        let wait = b"\x06\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0/k";
        let get = b"\x03\x02\0\0\0\0\0\0\0/k";
        let (port, served) = replay(vec![
            hello(),
            (wait.to_vec(), vec![0]),
            (get.to_vec(), vec![0xff; 8]),
        ]);
        let mut store = TorchStore::connect("127.0.0.1", port, PROMPT).unwrap();
        assert!(store.get("/k", PROMPT).is_err());
        drop(store);
        served.join().unwrap();

        let (port, served) = replay(vec![(hello().0, b"HTTP".to_vec())]);
        assert!(TorchStore::connect("127.0.0.1", port, PROMPT).is_err());
        served.join().unwrap();
    }
}
