//! The digits example, unchanged, under `xlarun` on two nodes.
#![cfg(feature = "gloo")]

mod digits;

use digits::{ARGUMENTS, Printed, Running, assert_same_as_one_device, built, example};
use std::net::TcpListener;
use std::process::{Command, Stdio};

/// Runs the example on two nodes, each started by what `node` returns, with one process each.
fn two_nodes(endpoint: &str, node: impl Fn(usize) -> Command) -> Printed {
    let mut running = [0, 1].map(|rank| {
        let mut command = node(rank);
        command.args(["--nnodes", "2", "--node-rank", &rank.to_string()]);
        command.args(["--rdzv-endpoint", endpoint, "--nproc-per-node", "1"]);
        command.arg(example()).args(ARGUMENTS);
        Some(Running::start(&mut command))
    });
    let mut printed = |node: usize| running[node].take().expect("taken once").printed();
    let first = printed(0);
    let second = printed(1);
    assert!(!second.text.contains("test accuracy"), "{}", second.text);
    first
}

#[test]
fn two_agents_on_loopback() {
    let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
    let endpoint = free.expect("there is a free port").to_string();
    let printed = two_nodes(&endpoint, |_| Command::new(built("xlarun")));
    assert_same_as_one_device(&printed, 2);
}

/// Two network namespaces with a cable between them: no shared loopback, as on two machines.
struct Namespaces([String; 2]);

impl Namespaces {
    /// The address of each end of the cable.
    const ADDRESSES: [&str; 2] = ["10.77.31.1", "10.77.31.2"];

    /// `None` where this user may not make any.
    fn new() -> Option<Namespaces> {
        let names = [0, 1].map(|node| format!("xla-{}-{node}", std::process::id()));
        if !ip(&["netns", "add", &names[0]]) {
            return None;
        }
        let namespaces = Namespaces(names);
        let [first, second] = &namespaces.0;
        let mut made = ip(&["netns", "add", second]);
        made &= ip(&[
            "-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns",
            second,
        ]);
        for (name, address) in namespaces.0.iter().zip(Self::ADDRESSES) {
            made &= ip(&[
                "-n",
                name,
                "addr",
                "add",
                &format!("{address}/24"),
                "dev",
                "cable",
            ]);
            made &= ip(&["-n", name, "link", "set", "cable", "up"]);
            made &= ip(&["-n", name, "link", "set", "lo", "up"]);
        }
        made.then_some(namespaces)
    }
}

impl Drop for Namespaces {
    fn drop(&mut self) {
        for name in &self.0 {
            ip(&["netns", "delete", name]);
        }
    }
}

fn ip(arguments: &[&str]) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn two_agents_that_share_no_loopback() {
    // Making namespaces is a right that not every user has; two agents on loopback are tested above.
    let Some(namespaces) = Namespaces::new() else {
        eprintln!("no network namespaces here");
        return;
    };
    let endpoint = format!("{}:29500", Namespaces::ADDRESSES[0]);
    let printed = two_nodes(&endpoint, |node| {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &namespaces.0[node]]);
        command.arg(built("xlarun"));
        command
    });
    assert_same_as_one_device(&printed, 2);
}
