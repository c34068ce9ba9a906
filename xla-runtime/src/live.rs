//! How much of each device's memory this process's arrays take.
//!
//! Not every plugin counts (XLA's CPU plugin does not), and none tells the arrays apart from what
//! running programs need for themselves.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the arrays that exist, by device.
pub(crate) struct Live(Vec<Count>);

/// On a cache line of its own, since each device has a thread that counts.
#[derive(Default)]
#[repr(align(64))]
struct Count(AtomicU64);

impl Live {
    pub(crate) fn new(devices: usize) -> Self {
        Live((0..devices).map(|_| Count::default()).collect())
    }

    pub(crate) fn add(&self, device: usize, bytes: usize) {
        if let Some(count) = self.0.get(device) {
            count.0.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn remove(&self, device: usize, bytes: usize) {
        if let Some(count) = self.0.get(device) {
            count.0.fetch_sub(bytes as u64, Ordering::Relaxed);
        }
    }

    pub(crate) fn bytes(&self, device: usize) -> u64 {
        self.0
            .get(device)
            .map_or(0, |count| count.0.load(Ordering::Relaxed))
    }
}
