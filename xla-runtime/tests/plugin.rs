//! Finding and loading plugins, clients and their devices.

mod common;

use common::*;
use std::fs;
use std::path::Path;
use xla_core::Error;
use xla_runtime::{AttributeValue, Client, ClientOptions, Plugin};

#[test]
fn the_plugin_says_who_it_is() {
    let plugin = plugin();
    assert!(
        plugin.api_version() >= (0, 54),
        "{:?}",
        plugin.api_version()
    );
    match plugin.attributes().get("stablehlo_current_version") {
        Some(AttributeValue::IntList(version)) => assert_eq!(version.len(), 3),
        other => panic!("{other:?}"),
    }
    assert!(!plugin.extensions().is_empty());
    assert!(plugin.path().is_file());
    assert_eq!(plugin.sha256().unwrap(), plugin.sha256().unwrap());
}

#[test]
fn a_path_loads_once() {
    let plugin = plugin();
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("link.so");
    std::os::unix::fs::symlink(plugin.path(), &link).unwrap();
    assert_eq!(Plugin::load(&link).unwrap(), plugin);
}

#[test]
fn what_is_no_plugin_is_refused_with_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("missing.so");
    match Plugin::load(&missing) {
        Err(Error::Io { path, .. }) => assert_eq!(path, missing),
        other => panic!("{other:?}"),
    }
    let text = folder.path().join("text.so");
    fs::write(&text, "not a library").unwrap();
    match Plugin::load(&text) {
        Err(Error::PluginInvalid { reason, .. }) => {
            assert!(reason.contains("shared library"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
    match Plugin::load(&some_library()) {
        Err(Error::PluginInvalid { reason, .. }) => {
            assert!(reason.contains("GetPjrtApi"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

/// A shared library that every process has and that is no plugin: the C library's, found in this
/// process's own memory map.
fn some_library() -> std::path::PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines()
        .filter_map(|line| line.split_whitespace().last())
        .map(Path::new)
        .find(|p| {
            p.file_name()
                .is_some_and(|f| f.to_string_lossy().starts_with("libc.so"))
        })
        .unwrap()
        .to_owned()
}

#[test]
fn an_older_api_is_refused_with_both_versions() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("old.c");
    let library = folder.path().join("old.so");
    // The start of the API's table: size, extensions, then the version struct.
    fs::write(
        &source,
        "#include <stddef.h>
         struct version { size_t size; void *ext; int major, minor; };
         struct api { size_t size; void *ext; struct version version; void *functions[120]; };
         static struct api api = { sizeof(struct api), NULL, { 24, NULL, 0, 53 }, { NULL } };
         const struct api *GetPjrtApi(void) { return &api; }",
    )
    .unwrap();
    let compiled = std::process::Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .args([&library, &source])
        .status()
        .unwrap();
    assert!(compiled.success());
    match Plugin::load(&library) {
        Err(Error::PluginTooOld { found, wanted, .. }) => {
            assert_eq!((found, wanted), ((0, 53), (0, 54)));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn devices_are_numbered_and_named() {
    let client = client(3);
    assert_eq!((client.platform_name(), client.process_index()), ("cpu", 0));
    assert_eq!(client.global_device_count(), 3);
    let names: Vec<_> = client.devices().iter().map(ToString::to_string).collect();
    assert_eq!(names, ["CPU:0", "CPU:1", "CPU:2"]);
    for (i, device) in client.devices().iter().enumerate() {
        assert_eq!(device.ordinal(), i);
        assert!(!device.kind().is_empty() && !device.debug_string().is_empty());
        // The CPU does not count its memory; a number would have to be a sensible one.
        let memory = client.device_memory(i).unwrap();
        assert!(memory.is_none_or(|m| m.peak_bytes_in_use.is_none_or(|p| p >= m.bytes_in_use)));
    }
    assert!(matches!(
        client.device_memory(3),
        Err(Error::NoSuchDevice { asked: 3, count: 3 })
    ));
}

#[test]
fn create_options_that_end_the_process_are_errors() {
    for count in [0, 1025] {
        let options = ClientOptions {
            cpu_device_count: Some(count),
            ..ClientOptions::default()
        };
        let error = Client::create(&plugin(), &options).unwrap_err();
        assert!(matches!(error, Error::Argument { .. }), "{error}");
    }
}

#[test]
fn clients_come_and_go() {
    for devices in [1, 2, 1] {
        let client = client(devices);
        assert_eq!(client.devices().len(), devices);
        let buffer = upload(&client, &[1.0], devices - 1);
        drop(client);
        // The buffer keeps its client alive.
        assert_eq!(read(&buffer), [1.0]);
    }
}

#[test]
fn owners_cross_threads() {
    fn send_and_sync<T: Send + Sync>() {}
    send_and_sync::<Plugin>();
    send_and_sync::<Client>();
    send_and_sync::<xla_runtime::Buffer>();
    send_and_sync::<xla_runtime::Executable>();
    send_and_sync::<xla_runtime::Execution>();
    send_and_sync::<xla_runtime::Event>();
    send_and_sync::<xla_runtime::RealDevice>();
}
