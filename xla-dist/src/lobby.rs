//! Where the replicas of one process meet to make something together.

use crate::gang::{absent, named};
use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use xla_core::{Error, Result};
use xla_runtime::context::Launch;

/// The meetings of one kind that are going on, by what they are for.
pub(crate) struct Lobbies<K, T>(Mutex<HashMap<K, Weak<Lobby<T>>>>);

struct Lobby<T> {
    /// What those who come say that they want.
    subject: String,
    /// The device of each that has come, by position among those expected.
    devices: Mutex<Vec<Option<usize>>>,
    /// What the last one made, or why there will be nothing.
    made: OnceLock<Result<T>>,
}

/// One replica that comes.
pub(crate) struct Guest<'a> {
    /// What it calls.
    pub(crate) call: &'static str,
    /// Whose ends are watched while it waits.
    pub(crate) launch: &'a Launch,
    /// The ranks in that launch that are expected, ascending.
    pub(crate) expected: &'a [usize],
    /// Its own.
    pub(crate) rank: usize,
    /// The ordinal of its device.
    pub(crate) device: usize,
    /// What it wants, in words, as all others should.
    pub(crate) subject: String,
}

impl<K: Eq + Hash, T: Clone> Lobbies<K, T> {
    pub(crate) fn new() -> Self {
        Lobbies(Mutex::default())
    }

    /// Waits for the other replicas. The last to come makes, from the devices of all in the order
    /// of `expected`, what each of them gets.
    ///
    /// # Errors
    /// [`Error::ProcessGroup`] when a replica wants something else; [`Error::ReplicaLeft`],
    /// [`Error::ReplicaFailed`], [`Error::Deadline`] for one that does not come; or what `make`
    /// returns.
    pub(crate) fn meet(
        &self,
        key: K,
        guest: &Guest<'_>,
        make: impl FnOnce(Vec<usize>) -> Result<T>,
    ) -> Result<T> {
        let Guest {
            call,
            launch,
            expected,
            rank,
            device,
            subject,
        } = guest;
        let lobby = self.lobby(key, expected.len(), subject);
        if lobby.subject != *subject {
            let error = Error::ProcessGroup {
                what: call,
                state: format!(
                    "rank {rank} asks for {subject} where another rank asks for {}",
                    lobby.subject
                ),
                advice: "make the same groups in the same order on every rank",
            };
            let _ = lobby.made.set(Err(error.clone()));
            launch.notify();
            return Err(error);
        }
        let all = {
            let mut devices = lobby.devices();
            if let Some(slot) = expected
                .binary_search(rank)
                .ok()
                .and_then(|position| devices.get_mut(position))
            {
                *slot = Some(*device);
            }
            devices.iter().copied().collect::<Option<Vec<usize>>>()
        };
        if let Some(all) = all {
            // Others may give up meanwhile; then nobody needs what is made.
            let _ = lobby.made.set(make(all));
            launch.notify();
        }
        let wait = || {
            launch.wait_until(call, |standings| match lobby.made.get() {
                Some(made) => Some(made.clone()),
                None => {
                    absent(call, standings, expected, |m| lobby.devices()[m].is_some()).map(Err)
                }
            })
        };
        wait().unwrap_or_else(|timeout| {
            let missing: Vec<usize> = {
                let devices = lobby.devices();
                let absent = expected.iter().zip(devices.iter());
                let absent = absent.filter(|(_, device)| device.is_none());
                absent.map(|(rank, _)| *rank).collect()
            };
            if missing.is_empty() {
                // All are here. The last of them has come later and waits for others elsewhere, by
                // a deadline of its own: it will know whom to name.
                return wait()?;
            }
            Err(named(timeout, call, missing.into_iter()))
        })
    }

    /// That of a meeting. Who comes first says what it is for.
    fn lobby(&self, key: K, size: usize, subject: &str) -> Arc<Lobby<T>> {
        let mut lobbies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lobbies.retain(|_, lobby| lobby.strong_count() > 0);
        if let Some(lobby) = lobbies.get(&key).and_then(Weak::upgrade) {
            return lobby;
        }
        let lobby = Arc::new(Lobby {
            subject: subject.to_owned(),
            devices: Mutex::new(vec![None; size]),
            made: OnceLock::new(),
        });
        lobbies.insert(key, Arc::downgrade(&lobby));
        lobby
    }
}

impl<T> Lobby<T> {
    fn devices(&self) -> MutexGuard<'_, Vec<Option<usize>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
