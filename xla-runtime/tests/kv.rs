//! What a client that is one of several is created with, recorded by a plugin made for it.

mod common;

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::Duration;
use xla_core::{DeviceKind, Error, Result};
use xla_runtime::{Client, ClientOptions, Cluster, KeyValueStore, Plugin, set_cluster};

/// The plugin, compiled into this folder.
fn recorder(folder: &Path) -> PathBuf {
    let library = folder.join("recorder.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plugins/recorder.c");
    let compiled = Command::new("cc")
        .args(["-shared", "-fPIC", "-Wall", "-Werror", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(compiled.success());
    library
}

/// A store in memory.
#[derive(Default)]
struct Memory {
    values: Mutex<HashMap<String, Vec<u8>>>,
    changed: Condvar,
}

impl KeyValueStore for Memory {
    fn get(&self, key: &str, deadline: Duration) -> Result<Vec<u8>> {
        let values = self.values.lock().unwrap();
        let (values, _) = self
            .changed
            .wait_timeout_while(values, deadline, |values| !values.contains_key(key))
            .unwrap();
        values.get(key).cloned().ok_or_else(|| Error::Deadline {
            what: format!("waiting for {key}"),
            after: deadline,
            advice: "",
        })
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        Ok(self.values.lock().unwrap().get(key).cloned())
    }

    fn put(&self, key: &str, value: &[u8]) -> Result<()> {
        let mut values = self.values.lock().unwrap();
        values.insert(key.to_owned(), value.to_vec());
        self.changed.notify_all();
        Ok(())
    }
}

fn options(node_id: usize, store: &Arc<impl KeyValueStore + 'static>) -> ClientOptions {
    ClientOptions {
        kind: DeviceKind::Cuda,
        cluster: Some(Cluster {
            node_id,
            node_count: 2,
            store: Arc::clone(store) as Arc<dyn KeyValueStore>,
            visible_devices: Some(vec![node_id, node_id + 2]),
        }),
        ..ClientOptions::default()
    }
}

/// What the plugin recorded: a line each.
fn record(client: &Client) -> Vec<&str> {
    client.platform_version().lines().collect()
}

#[test]
fn two_nodes_meet_through_the_store() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = Plugin::load(&recorder(folder.path())).unwrap();
    let store = Arc::new(Memory::default());
    thread::scope(|scope| {
        for node in 0..2 {
            let (plugin, options) = (&plugin, options(node, &store));
            scope.spawn(move || {
                let client = Client::create(plugin, &options).unwrap();
                let other = 1 - node;
                assert_eq!(
                    record(&client),
                    [
                        format!("option node_id={node}"),
                        "option num_nodes=2".into(),
                        format!("option visible_devices={node},{},", node + 2),
                        format!("own=from {node}0!"),
                        format!("other=from {other}0!"),
                        format!("tried own=from {node}0!"),
                        // NOT_FOUND and DEADLINE_EXCEEDED.
                        "tried missing: error 5: try_get: no process has put \"missing\" \
                         (PJRT error code 5)"
                            .into(),
                        "missing: error 4: waiting for missing did not finish within 30ms".into(),
                    ]
                );
                assert_eq!((client.process_index(), client.devices().len()), (node, 1));
                assert_eq!(client.global_device_count(), 2);
                // The store is there for as long as the client: "from 0", a zero and "!".
                let asked_again = client.device_memory(0).unwrap().unwrap();
                assert_eq!(asked_again.bytes_in_use, 8);
            });
        }
    });
    // The clients are gone, and nobody else has kept the store.
    assert_eq!(Arc::strong_count(&store), 1);
}

/// A store with nothing to offer.
struct Broken;

impl KeyValueStore for Broken {
    fn get(&self, _: &str, _: Duration) -> Result<Vec<u8>> {
        panic!("as the test asks")
    }

    fn try_get(&self, _: &str) -> Result<Option<Vec<u8>>> {
        Ok(Some(Vec::new()))
    }

    fn put(&self, key: &str, _: &[u8]) -> Result<()> {
        if key == "node/1" {
            return Err(Error::Config {
                name: "disk",
                expected: "space".into(),
                got: "none".into(),
            });
        }
        Ok(())
    }
}

#[test]
fn a_stores_error_is_the_clients_and_a_panic_is_one() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = Plugin::load(&recorder(folder.path())).unwrap();
    let store = Arc::new(Broken);
    match Client::create(&plugin, &options(1, &store)) {
        Err(Error::Pjrt { code, message, .. }) => {
            assert_eq!(
                (code, message.as_str()),
                (13, "disk: expected space, got \"none\"")
            );
        }
        other => panic!("{other:?}"),
    }
    let client = Client::create(&plugin, &options(0, &store)).unwrap();
    let record: BTreeMap<&str, &str> = record(&client)
        .into_iter()
        .filter_map(|line| line.split_once([':', '=']))
        .collect();
    assert!(record["own"].contains("error 13"), "{record:?}");
    // An empty value is one.
    assert_eq!(record["tried missing"], "");
}

#[test]
fn a_tpu_is_given_the_store_alone_and_a_cpu_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let plugin = Plugin::load(&recorder(folder.path())).unwrap();
    let mut options = options(0, &Arc::new(Memory::default()));
    if let Some(cluster) = &mut options.cluster {
        cluster.node_count = 1;
    }
    options.kind = DeviceKind::Tpu;
    let client = Client::create(&plugin, &options).unwrap();
    assert_eq!(record(&client)[..2], ["own=from 00!", "other=from 00!"]);
    options.kind = DeviceKind::Cpu;
    assert!(matches!(
        Client::create(&plugin, &options),
        Err(Error::Argument {
            argument: "cluster",
            ..
        })
    ));
    options.kind = DeviceKind::Cuda;
    options.cluster = None;
    let client = Client::create(&plugin, &options).unwrap();
    assert_eq!(record(&client), ["no store"]);
}

const CHILD: &str = "XLA_RUNTIME_TEST_ROLE";

/// In a process of its own: the process's client and its environment.
#[test]
fn the_processs_client_connects_to_the_cluster_that_was_set() {
    if std::env::var_os(CHILD).is_none() {
        let folder = tempfile::tempdir().unwrap();
        let output = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "the_processs_client_connects_to_the_cluster_that_was_set",
            ])
            .env(CHILD, "child")
            .env("PJRT_DEVICE", "CUDA")
            .env("PJRT_LIBRARY_PATH", recorder(folder.path()))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && text.contains("1 passed"),
            "{output:?}"
        );
        return;
    }
    let cluster = |node_id, node_count| Cluster {
        node_id,
        node_count,
        store: Arc::new(Memory::default()),
        visible_devices: None,
    };
    assert!(matches!(
        set_cluster(cluster(2, 2)),
        Err(Error::Argument {
            argument: "node_id",
            ..
        })
    ));
    set_cluster(cluster(0, 1)).unwrap();
    let client = Client::global().unwrap();
    assert_eq!(
        record(&client)[..2],
        ["option node_id=0", "option num_nodes=1"]
    );
    set_cluster(cluster(0, 1)).unwrap();
    match set_cluster(cluster(1, 2)) {
        Err(Error::Launch { reason, .. }) => assert!(reason.contains("exists"), "{reason}"),
        other => panic!("{other:?}"),
    }
    // With the client gone it is not too late any more.
    drop(client);
    Client::release_global(Duration::from_secs(20)).unwrap();
    set_cluster(cluster(1, 2)).unwrap();
}
