//! Where replicas meet to become a gang.

use crate::gang::{Shared, ThreadGang, absent, named};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use xla_core::{Error, Result};
use xla_lazy::Gang;
use xla_runtime::context::ReplicaContext;

/// Which meeting of a launch: all replicas make their groups in one order, so a replica's n-th meets
/// the others' n-th.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Meeting {
    /// How many default groups the replica has had before.
    pub(crate) generation: u64,
    /// How many further groups it had made of that one; 0 for the default group itself.
    pub(crate) child: u64,
}

struct Lobby {
    ranks: Vec<usize>,
    devices: Mutex<Vec<Option<usize>>>,
    /// The gang, once all have come, or why there will be none.
    gang: OnceLock<Result<Arc<Shared>>>,
}

/// Those in use, by launch.
type Lobbies = HashMap<(u64, Meeting), Weak<Lobby>>;

impl Lobby {
    /// That of a launch's meeting. Who comes first says for which ranks it is.
    fn of(context: &ReplicaContext, meeting: Meeting, ranks: &[usize]) -> Arc<Lobby> {
        static LOBBIES: OnceLock<Mutex<Lobbies>> = OnceLock::new();
        let lobbies = LOBBIES.get_or_init(Mutex::default);
        let mut lobbies = lobbies.lock().unwrap_or_else(PoisonError::into_inner);
        lobbies.retain(|_, lobby| lobby.strong_count() > 0);
        let key = (context.launch().id(), meeting);
        if let Some(lobby) = lobbies.get(&key).and_then(Weak::upgrade) {
            return lobby;
        }
        let lobby = Arc::new(Lobby {
            ranks: ranks.to_vec(),
            devices: Mutex::new(vec![None; ranks.len()]),
            gang: OnceLock::new(),
        });
        lobbies.insert(key, Arc::downgrade(&lobby));
        lobby
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Option<usize>>> {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for the other replicas among `ranks`, which are ascending, and returns this one's handle on
/// their gang; `None` where it is alone or not one of them.
///
/// # Errors
/// [`Error::ProcessGroup`] when a replica names other ranks in the same meeting;
/// [`Error::ReplicaLeft`], [`Error::ReplicaFailed`], [`Error::Deadline`] for one that does not come.
pub(crate) fn meet(
    what: &'static str,
    context: &ReplicaContext,
    meeting: Meeting,
    ranks: &[usize],
) -> Result<Option<Arc<dyn Gang>>> {
    if context.world_size() == 1 {
        return Ok(None);
    }
    let launch = context.launch();
    let lobby = Lobby::of(context, meeting, ranks);
    if lobby.ranks != ranks {
        let error = Error::ProcessGroup {
            what,
            state: format!(
                "rank {} asks for a group of the ranks {ranks:?} where another rank asks for {:?}",
                context.rank(),
                lobby.ranks
            ),
            advice: "make the same groups in the same order on every rank",
        };
        let _ = lobby.gang.set(Err(error.clone()));
        launch.notify();
        return Err(error);
    }
    let Ok(member) = ranks.binary_search(&context.rank()) else {
        return Ok(None);
    };
    if ranks.len() == 1 {
        return Ok(None);
    }
    {
        let mut devices = lobby.devices();
        devices[member] = Some(context.device().ordinal());
        if let Some(devices) = devices.iter().copied().collect::<Option<Vec<usize>>>() {
            let gang = || Ok(Shared::new(Arc::clone(launch), ranks.to_vec(), devices));
            lobby.gang.get_or_init(gang);
        }
    }
    if lobby.gang.get().is_some() {
        launch.notify();
    }
    let met = launch.wait_until(what, |standings| match lobby.gang.get() {
        Some(gang) => Some(gang.clone()),
        None => absent(what, standings, ranks, |m| lobby.devices()[m].is_some()).map(Err),
    });
    let shared = met.unwrap_or_else(|timeout| {
        let devices = lobby.devices();
        let missing = ranks.iter().zip(devices.iter());
        let missing = missing.filter(|(_, device)| device.is_none());
        Err(named(timeout, what, missing.map(|(rank, _)| *rank)))
    })?;
    Ok(Some(Arc::new(ThreadGang::new(shared, member))))
}
