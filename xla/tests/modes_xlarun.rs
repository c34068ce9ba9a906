//! The digits example, unchanged, under `xlarun` on two nodes.
#![cfg(feature = "gloo")]

mod digits;

use digits::{ARGUMENTS, Running, assert_same_as_one_device, built, example};
use std::net::TcpListener;
use std::process::Command;

#[test]
fn two_agents_on_loopback() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let endpoint = free.expect("there is a free port").to_string();
    let running = [0, 1].map(|rank| {
        let mut command = Command::new(built("xlarun"));
        command.args(["--nnodes", "2", "--node-rank", &rank.to_string()]);
        command.args(["--rdzv-endpoint", &endpoint, "--nproc-per-node", "1"]);
        command.arg(example()).args(ARGUMENTS);
        Running::start(&mut command)
    });
    let [first, second] = running.map(Running::printed);
    assert!(!second.text.contains("test accuracy"), "{}", second.text);
    assert_same_as_one_device(&first, 2);
}
