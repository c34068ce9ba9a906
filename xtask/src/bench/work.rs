//! What is measured in a comparison.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use super::peer::Peer;

/// A work with its options, as typed: `chain-2000 --grad`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Work(String);

/// Those of a comparison that names none.
const ALL: [&str; 10] = [
    "chain-20",
    "chain-2000",
    "chain-2000 --grad",
    "mlp",
    "cnn",
    "gpt",
    "gpt-spmd",
    "ddp",
    "first",
    "first-warm",
];

impl Work {
    pub(super) fn all() -> Vec<Work> {
        ALL.map(|work| Work(work.to_owned())).to_vec()
    }

    /// The command line's words.
    pub(super) fn arguments(&self) -> impl Iterator<Item = &str> {
        self.0.split_whitespace()
    }

    fn name(&self) -> &str {
        self.arguments().next().unwrap_or_default()
    }

    /// Timed steps: a second or a few for the slowest, and as many as a fast one needs to be stable.
    pub(super) fn steps(&self) -> u32 {
        let operators = self.name().strip_prefix("chain-");
        match (self.name(), operators.and_then(|n| n.parse::<u32>().ok())) {
            (_, Some(n)) if n < 200 => 2000,
            (_, Some(_)) => 200,
            ("mlp" | "ddp", _) => 300,
            ("cnn", _) => 40,
            _ => 15,
        }
    }

    /// Whether what has been compiled before is to be found by the process that is measured.
    pub(super) fn starts_warm(&self) -> bool {
        self.name() == "first-warm"
    }

    /// How many CPU devices the process is told to have, if that matters.
    pub(super) fn devices(&self) -> Option<&'static str> {
        (self.name() == "gpt-spmd").then_some("4")
    }

    /// Whether a peer has this work.
    pub(super) fn has(&self, peer: Peer) -> bool {
        match (peer, self.name()) {
            (Peer::Jax, _) => !self.0.contains("--grad"),
            (Peer::TorchXla, name) => !of_several(name),
            (Peer::Torch, name) => !of_several(name) && name != "first-warm",
        }
    }
}

/// Whether a work is for several devices.
fn of_several(name: &str) -> bool {
    matches!(name, "ddp" | "gpt-spmd")
}

impl FromStr for Work {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Work, Infallible> {
        Ok(Work(text.trim().to_owned()))
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_work_is_a_name_with_options() {
        let Ok(work) = " chain-2000 --grad".parse::<Work>();
        assert!(work.arguments().eq(["chain-2000", "--grad"]));
        assert_eq!(work.steps(), 200);
        assert!(!work.has(Peer::Jax) && work.has(Peer::Torch));
    }

    #[test]
    fn data_parallel_training_is_jax_only() {
        let Ok(work) = "ddp".parse::<Work>();
        let peers = [Peer::Jax, Peer::TorchXla, Peer::Torch];
        assert_eq!(peers.map(|peer| work.has(peer)), [true, false, false]);
    }
}
