//! What must hold for a whole process: its end with work pending, and the environment it sets up.
//! Each test runs one function of this binary in a process of its own.

mod common;

use common::*;
use std::process::{Command, Output};
use std::time::Duration;
use xla_core::{Error, Literal};
use xla_runtime::{Client, CpuThreads, set_cpu_threads};

const ROLE: &str = "XLA_RUNTIME_TEST_ROLE";

/// Runs the test `role` of this binary again, in a process that knows that it is the child.
fn child(role: &str, set: &[(&str, &str)]) -> Output {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", role, "--nocapture", "--test-threads=1"]);
    command
        .env_remove("XLA_FLAGS")
        .env_remove("TF_CPP_MIN_LOG_LEVEL")
        .env(ROLE, role);
    command.envs(set.iter().copied());
    command.output().unwrap()
}

/// Whether the child ran its one test and that passed.
fn passed(output: &Output) -> bool {
    output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed")
}

fn is_child() -> bool {
    std::env::var_os(ROLE).is_some()
}

fn start_something_long(client: &Client) -> xla_runtime::Execution {
    let n = 2048;
    let program = matmul(client, n);
    let ones = client
        .upload_owned(Literal::from_vec(vec![1.0f32; n * n], [n, n]).unwrap(), 0)
        .unwrap();
    program.execute(&[&ones], &on(0)).unwrap()
}

/// The worker ends with 7 if it waited for its work, with 8 if something still computed then.
#[test]
fn the_process_may_end_while_devices_work() {
    for how in ["return", "exit", "panic"] {
        let output = Command::new(env!("CARGO_BIN_EXE_xla-runtime-worker"))
            .arg(how)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains("still computing"), "{how}: {output:?}");
        assert_eq!(output.status.code(), Some(7), "{how}: {output:?}");
    }
}

#[test]
fn the_global_client_is_made_once_and_outlives_main() {
    if is_child() {
        let client = Client::global().unwrap();
        let again = std::thread::spawn(|| Client::global().unwrap())
            .join()
            .unwrap();
        assert_eq!(client, again);
        assert_eq!(client.devices().len(), 3);
        let run = start_something_long(&client);
        drop(run);
        return;
    }
    let name = "the_global_client_is_made_once_and_outlives_main";
    let output = child(name, &[("CPU_NUM_DEVICES", "3")]);
    assert!(passed(&output), "{output:?}");
}

#[test]
fn a_failed_global_client_is_an_error_each_time() {
    if is_child() {
        for _ in 0..2 {
            let error = Client::global().unwrap_err();
            assert!(error.to_string().contains("nowhere"), "{error}");
        }
        return;
    }
    let output = child(
        "a_failed_global_client_is_an_error_each_time",
        &[("PJRT_LIBRARY_PATH", "/nowhere/plugin.so")],
    );
    assert!(passed(&output), "{output:?}");
}

const WARN: &str = "--xla_cpu_collective_call_warn_stuck_timeout_seconds";
const TERMINATE: &str = "--xla_cpu_collective_call_terminate_timeout_seconds";

#[test]
fn time_outs_are_added_to_the_users_flags() {
    if is_child() {
        let _client = client(1);
        println!("FLAGS {}", std::env::var("XLA_FLAGS").unwrap_or_default());
        println!(
            "LEVEL {}",
            std::env::var("TF_CPP_MIN_LOG_LEVEL").unwrap_or_default()
        );
        return;
    }
    // The plugin may be in the very cache that the test replaces.
    let plugin = plugin();
    let plugin = ("PJRT_LIBRARY_PATH", plugin.path().to_str().unwrap());
    let cache = tempfile::tempdir().unwrap();
    let cache = cache.path().to_str().unwrap();
    let users = format!("--xla_cpu_enable_fast_math=false {TERMINATE}=77");
    // The first run tries the flags in a child of its own, the second remembers.
    for _ in 0..2 {
        let output = child(
            "time_outs_are_added_to_the_users_flags",
            &[plugin, ("XDG_CACHE_HOME", cache), ("XLA_FLAGS", &users)],
        );
        assert!(passed(&output), "{output:?}");
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(
            text.contains(&format!("FLAGS {users} {WARN}=86400\n")),
            "{text}"
        );
        assert!(text.contains("LEVEL 3\n"), "{text}");
    }
    let level = [
        plugin,
        ("XDG_CACHE_HOME", cache),
        ("TF_CPP_MIN_LOG_LEVEL", "1"),
    ];
    let output = child("time_outs_are_added_to_the_users_flags", &level);
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains(&format!("FLAGS {WARN}=86400 {TERMINATE}=172800\n")),
        "{text}"
    );
    assert!(text.contains("LEVEL 1\n"), "{text}");
}

#[test]
fn the_plugin_is_silent() {
    if is_child() {
        let client = client(2);
        let signature = xla_runtime::Signature::default();
        let options = xla_runtime::CompileOptions::default();
        assert!(client.compile("garbage", &signature, &options).is_err());
        return;
    }
    let output = child("the_plugin_is_silent", &[]);
    assert!(passed(&output), "{output:?}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
}

fn thread_count() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

/// A CPU client starts as many threads for its devices as it may use cores, and as many again.
#[test]
fn a_client_gets_the_threads_that_were_asked_for() {
    let name = "a_client_gets_the_threads_that_were_asked_for";
    let waiting = CpuThreads {
        processes: 2,
        blocking_calls: true,
    };
    if is_child() {
        let users = std::env::var("PJRT_NPROC").ok();
        // The probe of flags starts nothing in this process, but must be out of the way.
        drop(client(1));
        let before = thread_count();
        set_cpu_threads(waiting).unwrap();
        let four = client(4);
        let wanted = match &users {
            Some(n) => n.parse().unwrap(),
            None => 10.max(std::thread::available_parallelism().unwrap().get() / 2),
        };
        assert_eq!(thread_count() - before, 2 * wanted);
        assert_eq!(std::env::var("PJRT_NPROC").ok(), users);
        set_cpu_threads(waiting).unwrap();
        drop(four);
        let shared = CpuThreads {
            processes: 1024,
            blocking_calls: false,
        };
        set_cpu_threads(shared).unwrap();
        if users.is_none() {
            // As many threads as devices: too late to ask for calls that wait.
            let _tight = client(4);
            match set_cpu_threads(waiting) {
                Err(Error::Launch { reason, .. }) => {
                    assert!(reason.contains("threads"), "{reason}")
                }
                other => panic!("{other:?}"),
            }
        }
        set_cpu_threads(waiting).unwrap();
        return;
    }
    for set in [&[][..], &[("PJRT_NPROC", "7")]] {
        let output = child(name, set);
        assert!(passed(&output), "{output:?}");
    }
}

/// What a crate keeps of the client to be faster.
static KEPT: std::sync::Mutex<Option<xla_runtime::Executable>> = std::sync::Mutex::new(None);

#[test]
fn the_global_client_can_be_released_once_nobody_uses_it() {
    const LONG: Duration = Duration::from_secs(30);
    if is_child() {
        Client::release_global(LONG).unwrap();
        let client = Client::global().unwrap();
        Client::on_release(|| drop(KEPT.lock().unwrap().take()));
        *KEPT.lock().unwrap() = Some(add(&client, 1, false));
        let x = upload(&client, &[1.0, 2.0], 0);
        drop(client);
        match Client::release_global(LONG) {
            Err(Error::Launch { reason, .. }) => assert!(reason.contains("1 owner"), "{reason}"),
            other => panic!("{other:?}"),
        }
        // Refused, and nothing is lost but what was kept to be faster.
        assert!(KEPT.lock().unwrap().is_none());
        assert_eq!(read(&x), [1.0, 2.0]);
        drop(x);
        let run = start_something_long(&Client::global().unwrap());
        let too_soon = Client::release_global(Duration::from_millis(1));
        assert!(
            matches!(too_soon, Err(Error::Deadline { .. })),
            "{too_soon:?}"
        );
        drop(run);
        let before = thread_count();
        Client::release_global(LONG).unwrap();
        assert!(thread_count() < before);
        let again = Client::global().unwrap();
        assert_eq!(read(&upload(&again, &[3.0], 2)), [3.0]);
        return;
    }
    let name = "the_global_client_can_be_released_once_nobody_uses_it";
    let output = child(name, &[("CPU_NUM_DEVICES", "3")]);
    assert!(passed(&output), "{output:?}");
}
