//! What the PJRT client of a process is told of the others, before it exists.
//!
//! A CPU plugin connects no processes: there this crate's handlers wait for them, which takes threads.
//! A plugin for other devices connects them itself, through the world's store.

use std::sync::Arc;
use std::time::Duration;
use xla_core::{DeviceKind, Result};
use xla_runtime::context::Topology;
use xla_runtime::{Cluster, CpuThreads, KeyValueStore, set_cluster, set_cpu_threads};
use xla_store::Store;

/// The processes of a world that share this one's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Neighbours {
    /// How many there are, this one included.
    pub(super) here: usize,
    /// How many of them come before this one.
    pub(super) before: usize,
}

impl Neighbours {
    /// The devices of the machine that are this process's, so many for each of the processes in
    /// their order; all of them where there is no other.
    fn devices(self, replicas: usize) -> Option<Vec<usize>> {
        let first = self.before * replicas;
        (self.here > 1).then(|| (first..first + replicas).collect())
    }
}

/// Prepares the process's client for a world.
///
/// # Errors
/// Those of [`set_cpu_threads`] and [`set_cluster`]: that it comes too late.
pub(super) fn prepare(
    kind: DeviceKind,
    topology: Topology,
    neighbours: Neighbours,
    store: &Store,
) -> Result<()> {
    if kind == DeviceKind::Cpu {
        return set_cpu_threads(CpuThreads {
            processes: neighbours.here,
            blocking_calls: true,
        });
    }
    set_cluster(Cluster {
        node_id: topology.process_index,
        node_count: topology.processes,
        store: Arc::new(Shared(store.prefixed("pjrt"))),
        visible_devices: neighbours.devices(topology.replicas),
    })
}

/// A part of the world's store, as plugins ask for one.
struct Shared(Store);

impl KeyValueStore for Shared {
    fn get(&self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        self.0.get(key, deadline)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.0.try_get(key)
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        self.0.set(key, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use xla_core::Error;

    #[test]
    fn processes_of_one_machine_share_its_devices_in_order() {
        let devices = |here, before, replicas| Neighbours { here, before }.devices(replicas);
        assert_eq!(devices(1, 0, 2), None);
        assert_eq!(devices(3, 0, 2), Some(vec![0, 1]));
        assert_eq!(devices(3, 2, 2), Some(vec![4, 5]));
        assert_eq!(devices(8, 3, 1), Some(vec![3]));
    }

    #[test]
    fn a_plugin_sees_what_other_processes_put_and_nothing_else() {
        let store = Store::local();
        let (one, other) = (store.prefixed("pjrt"), store.prefixed("pjrt"));
        let (one, other) = (Shared(one), Shared(other));
        one.put("topology/0", b"a\0b").unwrap();
        store.set("topology/1", b"not the plugin's").unwrap();
        let second = Duration::from_secs(1);
        assert_eq!(other.get("topology/0", second).unwrap(), b"a\0b");
        assert_eq!(other.try_get("topology/0").unwrap().unwrap(), b"a\0b");
        assert_eq!(other.try_get("topology/1").unwrap(), None);
        let late = other.get("topology/1", Duration::from_millis(10));
        assert!(matches!(late, Err(Error::Deadline { .. })), "{late:?}");
    }
}
