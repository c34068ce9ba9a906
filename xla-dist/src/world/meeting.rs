//! This process's meetings with others: one for each method, for as long as the process runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use xla_core::Result;
use xla_store::{LaunchInfo, Rendezvous, Store};

pub(super) struct Meeting {
    rendezvous: Rendezvous,
    /// Worlds that were made of it: the n-th of one process is the n-th of the others.
    worlds: AtomicU64,
}

/// The meeting by this method, held now if it was not before. A process that hosts the store cannot
/// do so twice, and a group that is destroyed and made again meets in the same one.
pub(super) fn of_process(url: &str, deadline: Duration) -> Result<Arc<Meeting>> {
    static ALL: Mutex<Vec<(String, Arc<Meeting>)>> = Mutex::new(Vec::new());
    // Both say: as the environment does.
    let name = match url {
        "xla://" => "env://",
        other => other,
    };
    let lock = || ALL.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, known)) = lock().iter().find(|(known, _)| known == name) {
        return Ok(Arc::clone(known));
    }
    let rendezvous = xla_store::rendezvous(url, &LaunchInfo::from_environment()?, deadline)?;
    let meeting = Arc::new(Meeting {
        rendezvous,
        worlds: AtomicU64::new(0),
    });
    lock().push((name.to_owned(), Arc::clone(&meeting)));
    Ok(meeting)
}

impl Meeting {
    pub(super) fn processes(&self) -> usize {
        self.rendezvous.processes
    }

    pub(super) fn process_index(&self) -> usize {
        self.rendezvous.process_index
    }

    /// Whether the others lose the store when this process ends.
    pub(super) fn is_host(&self) -> bool {
        self.rendezvous.is_host()
    }

    /// The store of the next world.
    pub(super) fn next_world(&self) -> Store {
        let number = self.worlds.fetch_add(1, Ordering::Relaxed);
        self.rendezvous.store.prefixed(&format!("world-{number}"))
    }
}
