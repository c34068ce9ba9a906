//! A worker's command, and what it leaves behind.

use super::{AgentOptions, Connection};
use crate::supervise::cpu_share;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Which worker it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) rank: usize,
    pub(super) local_rank: usize,
    pub(super) world_size: usize,
    pub(super) attempt: u64,
    /// Where it may write its error.
    pub(super) error_file: PathBuf,
}

/// The program with the variables of its place: torchrun's, so that a program which knows that
/// launcher is at home, and the store's, by which this project's own knows this one.
pub(super) fn command(options: &AgentOptions, store: &Connection, place: &Place) -> Command {
    let (host, port) = store
        .address
        .rsplit_once(':')
        .unwrap_or((&store.address, ""));
    let number = |n: usize| n.to_string();
    let mut command = Command::new(&options.program);
    command
        .args(&options.arguments)
        .envs([
            ("RANK", number(place.rank)),
            ("WORLD_SIZE", number(place.world_size)),
            ("LOCAL_RANK", number(place.local_rank)),
            ("LOCAL_WORLD_SIZE", number(options.nproc_per_node)),
            ("GROUP_RANK", number(options.node_rank)),
            ("GROUP_WORLD_SIZE", number(options.nnodes)),
            ("ROLE_NAME", "default".into()),
            ("ROLE_RANK", number(place.rank)),
            ("ROLE_WORLD_SIZE", number(place.world_size)),
            ("MASTER_ADDR", host.trim_matches(['[', ']']).into()),
            ("MASTER_PORT", port.into()),
            ("XLA_STORE_ADDR", store.address.clone()),
            ("XLA_RESTART_COUNT", place.attempt.to_string()),
            ("TORCHELASTIC_RESTART_COUNT", place.attempt.to_string()),
            (
                "TORCHELASTIC_MAX_RESTARTS",
                options.max_restarts.to_string(),
            ),
            ("TORCHELASTIC_RUN_ID", "xlarun".into()),
        ])
        .env("TORCHELASTIC_ERROR_FILE", &place.error_file)
        // Its value here would be another launcher's.
        .env_remove("TORCHELASTIC_USE_AGENT_STORE");
    if let Some(token) = &store.token {
        command.env("XLA_STORE_TOKEN", token);
    }
    let lookup = |name: &str| std::env::var(name).ok();
    let devices = options.devices_per_process.unwrap_or(1);
    command.envs(cpu_share(lookup, options.nproc_per_node, devices));
    if let Some(devices) = options.devices_per_process {
        command
            .env("CPU_NUM_DEVICES", number(devices))
            .env("XLA_LAUNCH_DEVICES", number(devices));
    }
    command
}

/// What a worker wrote of its error, in the form that torchrun has for it.
pub(super) fn own_words(error_file: &Path) -> Option<String> {
    let text = std::fs::read_to_string(error_file).ok()?;
    let document: serde_json::Value = serde_json::from_str(&text).ok()?;
    let message = document.get("message")?;
    let words = message.get("message").unwrap_or(message);
    words.as_str().map(str::to_owned)
}
