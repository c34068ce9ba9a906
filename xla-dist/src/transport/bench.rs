//! For benchmarks: the exchange without the program around it, and what it is measured against.

use super::Channel;
use super::collectives::{self, Party};
use super::peers::Peers;
use super::reduce::Reduce;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use xla_core::{DType, Result};
use xla_lazy::stablehlo::Reduction;
use xla_store::Store;

const DEADLINE: Duration = Duration::from_secs(120);

/// What this process has spent so far on announcing its collectives and on comparing them with those
/// of others, without waiting for them.
pub fn checking() -> Duration {
    crate::gang::spent_on_checks()
}

/// Connected processes.
pub struct Connected {
    peers: Peers,
    processes: Vec<usize>,
    reduce: Reduce,
    next: AtomicU32,
}

impl Connected {
    /// Connects with the others.
    ///
    /// # Errors
    /// As for a process group.
    pub fn new(store: &Store, index: usize, processes: usize) -> Result<Self> {
        Ok(Connected {
            peers: Peers::connect(store, index, processes, DEADLINE)?,
            processes: (0..processes).collect(),
            reduce: Reduce::new(DType::F32, Reduction::Sum)
                .unwrap_or_else(|| unreachable!("floats have a sum")),
            next: AtomicU32::new(0),
        })
    }

    /// The sum of all processes' numbers, as a program's collective computes it.
    ///
    /// # Errors
    /// The failure, in words.
    pub fn all_reduce(&self, input: &[f32], output: &mut [f32]) -> Result<(), String> {
        let party = Party {
            transport: &self.peers,
            processes: &self.processes,
            channel: Channel::new(self.next.fetch_add(1, Ordering::Relaxed), &[]),
            end: Instant::now() + DEADLINE,
        };
        let input = bytemuck::cast_slice(input);
        let output = bytemuck::cast_slice_mut(output);
        collectives::all_reduce(&party, self.reduce, &[input], vec![output])
            .map_err(|failure| failure.to_string())
    }

    /// The same by Gloo's own ring algorithm, in place.
    ///
    /// # Errors
    /// Gloo's words.
    pub fn gloo_all_reduce(&self, numbers: &mut [f32]) -> Result<(), String> {
        let tag = self.next.fetch_add(1, Ordering::Relaxed);
        self.peers.own_all_reduce(tag, numbers, DEADLINE)
    }
}
