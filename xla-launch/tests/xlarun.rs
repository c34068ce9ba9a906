//! `xlarun` on two nodes, which are two agents on this machine.

mod common;

use common::{assert_gone, finished, noted, text};
use rustix::process::{Pid, Signal, kill_process};
use std::net::TcpListener;
use std::process::{Child, Command, Output, Stdio};
use tempfile::TempDir;

/// An address that nobody listens at just now.
fn free_endpoint() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

/// Starts the agent of a node with two workers.
fn agent(node: usize, endpoint: &str, options: &[&str], program: &[&str]) -> Child {
    let node = node.to_string();
    Command::new(env!("CARGO_BIN_EXE_xlarun"))
        .args([
            "--nnodes",
            "2",
            "--nproc-per-node",
            "2",
            "--node-rank",
            &node,
        ])
        .args(["--rdzv-endpoint", endpoint])
        .args(options)
        .arg("--")
        .args(program)
        .env("XLA_STORE_TOKEN", "a secret")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn two_nodes(options: &[&str], program: &[&str]) -> [Output; 2] {
    let endpoint = free_endpoint();
    [0, 1]
        .map(|node| agent(node, &endpoint, options, program))
        .map(finished)
}

const WORKER: &str = env!("CARGO_BIN_EXE_xla-launch-worker");

#[test]
fn all_workers_start_again_after_one_has_failed() {
    let nodes = two_nodes(&["--max-restarts", "1"], &[WORKER, "external"]);
    for (node, output) in nodes.iter().enumerate() {
        let (lines, errors) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "node {node}: {errors}");
        for rank in [2 * node, 2 * node + 1] {
            for attempt in 0..2 {
                let line = format!("[{rank}] rank {rank} of 4 in attempt {attempt}");
                // A rank of the first attempt may be stopped before it says so.
                let said = lines.lines().any(|l| l == line);
                assert!(said || attempt == 0, "node {node}: no {line:?} in {lines}");
            }
        }
    }
}

#[test]
fn the_exit_code_is_that_of_the_worker_that_failed_and_its_words_are_told() {
    let nodes = two_nodes(&[], &["sh", "-c", "[ $RANK != 3 ] && sleep 100; exit 7"]);
    for output in &nodes {
        assert_eq!(output.status.code(), Some(7));
        let errors = text(&output.stderr);
        let expected = "xlarun: rank 3 (node 1) ended with exit code 7";
        assert!(errors.contains(expected), "{errors}");
    }
    let nodes = two_nodes(&[], &[WORKER, "external"]);
    let errors = text(&nodes[0].stderr);
    let expected = "rank 3 (node 1) ended with exit code 1: rank 3 failed: the first attempt fails";
    assert!(errors.contains(expected), "{errors}");
}

#[test]
fn a_node_that_does_not_come_is_named() {
    let alone = finished(agent(
        0,
        &free_endpoint(),
        &["--rdzv-timeout", "2"],
        &["true"],
    ));
    assert_eq!(alone.status.code(), Some(1));
    let errors = text(&alone.stderr);
    assert!(errors.contains("there came no agent of node 1"), "{errors}");
}

#[test]
fn an_agent_that_is_killed_leaves_no_worker_anywhere() {
    let (folder, endpoint) = (TempDir::new().unwrap(), free_endpoint());
    let path = folder.path().to_string_lossy().into_owned();
    let script = format!(
        "sleep 300 & echo -n $$ $! > {path}/new$RANK; mv {path}/new$RANK {path}/$RANK; wait"
    );
    let agents = [0, 1].map(|node| agent(node, &endpoint, &[], &["sh", "-c", &script]));
    let pids = noted(folder.path(), 4);
    kill_process(Pid::from_child(&agents[1]), Signal::KILL).unwrap();
    let [other, _] = agents.map(finished);
    assert_eq!(other.status.code(), Some(1));
    let errors = text(&other.stderr);
    assert!(errors.contains("node 1"), "{errors}");
    assert_gone(&pids);
}

#[test]
fn one_node_needs_no_endpoint() {
    let output = Command::new(env!("CARGO_BIN_EXE_xlarun"))
        .args([
            "--nproc-per-node",
            "3",
            "sh",
            "-c",
            "echo $LOCAL_RANK of $WORLD_SIZE",
        ])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0] 0 of 3", "[1] 1 of 3", "[2] 2 of 3"]);
}
