//! The peers: what they are called, and which interpreter runs them.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

use clap::ValueEnum;

use crate::error::Result;
use crate::setup::Tool;
use crate::workspace;

/// A program that does the same work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Peer {
    /// JAX, one `jit` a step
    Jax,
    /// PyTorch/XLA, lazily traced
    TorchXla,
    /// PyTorch, eagerly
    Torch,
}

impl Peer {
    /// As the script names it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Peer::Jax => "jax",
            Peer::TorchXla => "torch_xla",
            Peer::Torch => "torch",
        }
    }

    /// An interpreter that has it: the user's, or one that is installed here.
    ///
    /// # Errors
    /// What keeps it from being installed.
    pub(super) fn python(self) -> Result<PathBuf> {
        let tool = match self {
            Peer::Jax => Tool::Jax,
            Peer::TorchXla | Peer::Torch => Tool::Torch,
        };
        match env::var_os(tool.variable()) {
            Some(python) if !python.is_empty() => Ok(PathBuf::from(python)),
            _ => tool.ensure(),
        }
    }

    /// Its side of the benchmarks, to be told the work.
    pub(super) fn command(self, python: &Path) -> Command {
        let mut command = Command::new(python);
        command.arg(workspace::root().join("benches").join("peers.py"));
        command.arg(self.name());
        command
    }
}
