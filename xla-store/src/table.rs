//! The keys and their values: what a [`Server`](crate::Server) serves and what
//! [`Store::local`](crate::Store::local) is.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde_bytes::ByteBuf;

use crate::wire::{MAX_KEY, MAX_KEYS, MAX_VALUE, Request, Response};

/// Most bytes that keys and values take together.
const MAX_BYTES: usize = 2 << 30;

/// How often a waiting request looks whether its client is still there.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Default)]
pub(crate) struct Table {
    entries: Mutex<Entries>,
    changed: Condvar,
}

#[derive(Default)]
struct Entries {
    values: BTreeMap<String, Vec<u8>>,
    bytes: usize,
}

impl Table {
    /// Answers everything but [`Request::Join`]; waits as long as the request says, or until
    /// `abandoned`.
    pub(crate) fn answer(&self, request: &Request<'_>, abandoned: impl Fn() -> bool) -> Response {
        let answer = check(request).and_then(|()| match *request {
            Request::Set { key, value } => {
                self.change(|entries| entries.set(key, value).map(|()| Response::Done))
            }
            Request::Get { key, milliseconds } => Ok(self
                .wait(milliseconds, abandoned, |entries| {
                    entries.values.get(key).cloned()
                })
                .map_or_else(|_| Response::Missing(vec![key.into()]), value)),
            Request::TryGet { key } => {
                let found = self.lock().values.get(key).cloned();
                Ok(found.map_or(Response::Absent, value))
            }
            Request::Wait {
                ref keys,
                milliseconds,
            } => {
                let all = |entries: &Entries| entries.missing(keys).is_empty().then_some(());
                let waited = self.wait(milliseconds, abandoned, all);
                Ok(waited.map_or_else(
                    |entries| Response::Missing(entries.missing(keys)),
                    |()| Response::Done,
                ))
            }
            Request::Add { key, amount } => {
                self.change(|entries| entries.add(key, amount).map(Response::Number))
            }
            Request::CompareAndSet {
                key,
                expected,
                desired,
            } => self.change(|entries| {
                if entries.values.get(key).map(Vec::as_slice) == expected {
                    entries.set(key, desired)?;
                }
                Ok(entries
                    .values
                    .get(key)
                    .cloned()
                    .map_or(Response::Absent, value))
            }),
            Request::Keys { prefix } => self.lock().keys(prefix).map(Response::Keys),
            Request::Delete { key } => {
                self.change(|entries| Ok(Response::Flag(entries.delete(key))))
            }
            Request::Join { .. } => Err("joining is no request of the table".into()),
        });
        answer.unwrap_or_else(Response::Refused)
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(
        &self,
        change: impl FnOnce(&mut Entries) -> Result<Response, String>,
    ) -> Result<Response, String> {
        let response = change(&mut self.lock());
        self.changed.notify_all();
        response
    }

    /// What `look` finds before the time is over, or the entries without it.
    fn wait<T>(
        &self,
        milliseconds: u64,
        abandoned: impl Fn() -> bool,
        look: impl Fn(&Entries) -> Option<T>,
    ) -> Result<T, MutexGuard<'_, Entries>> {
        let end = Instant::now().checked_add(Duration::from_millis(milliseconds));
        let mut entries = self.lock();
        loop {
            if let Some(found) = look(&entries) {
                return Ok(found);
            }
            let left = end.map_or(PATIENCE, |end| {
                end.saturating_duration_since(Instant::now()).min(PATIENCE)
            });
            if left.is_zero() {
                return Err(entries);
            }
            let (woken, waited) = match self.changed.wait_timeout(entries, left) {
                Ok(woken) => woken,
                Err(poisoned) => poisoned.into_inner(),
            };
            entries = woken;
            if waited.timed_out() {
                // Asked without the lock: it is a system call.
                drop(entries);
                let gone = abandoned();
                entries = self.lock();
                if gone {
                    return Err(entries);
                }
            }
        }
    }
}

impl Entries {
    fn set(&mut self, key: &str, value: &[u8]) -> Result<(), String> {
        let before = self.values.get(key).map_or(0, |old| key.len() + old.len());
        let after = self.bytes - before + key.len() + value.len();
        if after > MAX_BYTES {
            return Err(format!(
                "it is full: {after} bytes with this value, at most {MAX_BYTES}"
            ));
        }
        self.bytes = after;
        self.values.insert(key.into(), value.into());
        Ok(())
    }

    /// As in PyTorch's stores a counter is its decimal digits, so that `get` reads it.
    fn add(&mut self, key: &str, amount: i64) -> Result<i64, String> {
        let old = match self.values.get(key) {
            None => 0,
            Some(digits) => std::str::from_utf8(digits)
                .ok()
                .and_then(|digits| digits.parse::<i64>().ok())
                .ok_or_else(|| format!("the value of {key:?} is no number"))?,
        };
        let new = old
            .checked_add(amount)
            .ok_or_else(|| format!("{old} + {amount} is beyond 64 bits"))?;
        self.set(key, new.to_string().as_bytes())?;
        Ok(new)
    }

    fn delete(&mut self, key: &str) -> bool {
        let removed = self.values.remove(key);
        if let Some(value) = &removed {
            self.bytes -= key.len() + value.len();
        }
        removed.is_some()
    }

    fn keys(&self, prefix: &str) -> Result<Vec<String>, String> {
        let from = (Bound::Included(prefix), Bound::Unbounded);
        let mut keys = Vec::new();
        let mut bytes = 0;
        for (key, _) in self.values.range::<str, _>(from) {
            if !key.starts_with(prefix) {
                break;
            }
            bytes += key.len() + 4;
            if bytes > MAX_VALUE {
                return Err(format!("too many keys start with {prefix:?}"));
            }
            keys.push(key.clone());
        }
        Ok(keys)
    }

    fn missing(&self, keys: &[&str]) -> Vec<String> {
        let unset = keys.iter().filter(|key| !self.values.contains_key(**key));
        unset.map(|key| (*key).to_owned()).collect()
    }
}

fn value(bytes: Vec<u8>) -> Response {
    Response::Value(ByteBuf::from(bytes))
}

/// Whether a request keeps to the limits.
pub(crate) fn check(request: &Request<'_>) -> Result<(), String> {
    let key = |key: &str| limit("a key", key.len(), MAX_KEY);
    let value = |value: &[u8]| limit("a value", value.len(), MAX_VALUE);
    match request {
        Request::Set { key: k, value: v } => key(k).and_then(|()| value(v)),
        Request::CompareAndSet {
            key: k,
            expected,
            desired,
        } => {
            key(k)?;
            value(expected.unwrap_or_default())?;
            value(desired)
        }
        Request::Wait { keys, .. } => {
            if keys.len() > MAX_KEYS {
                return Err(format!(
                    "{} keys in one wait; at most {MAX_KEYS}",
                    keys.len()
                ));
            }
            limit("the keys", keys.iter().map(|k| k.len()).sum(), MAX_VALUE)?;
            keys.iter().try_for_each(|k| key(k))
        }
        Request::Get { key: k, .. }
        | Request::TryGet { key: k }
        | Request::Add { key: k, .. }
        | Request::Keys { prefix: k }
        | Request::Delete { key: k }
        | Request::Join { scope: k, .. } => key(k),
    }
}

fn limit(what: &str, bytes: usize, most: usize) -> Result<(), String> {
    match bytes <= most {
        true => Ok(()),
        false => Err(format!("{what} of {bytes} bytes; at most {most}")),
    }
}
